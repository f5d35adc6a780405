"""Answers to 4.4, Revolve's tree."""

from solutions.answers import right, wrong
from tutorial_lib.instruments.planning import solve
from tutorial_lib.instruments.planning.chain.stages import Stage

keeps_everything = wrong(
    "no stage runs twice in", "tree(0, num_stages, num_places)", "tuple(range(num_stages))"
)
checkpoints_each_stage = wrong("places are taken at once", "fewest(n, c)[1]", "1")
gives_the_segment_one_place = wrong(
    "The first segment leaves places empty", "tree(start, k, c)", "tree(start, k, 1)"
)
splits_in_the_middle = wrong(
    "A boundary isn't where 4.3's minimum", "fewest(n, c)[1]", "n // 2 if c > 1 else n - 1"
)
nests_the_later_part = wrong(
    "in ((((0,), (1,)), (2,)), (3,)) a tuple ends with a tuple", "*tree(", "tree("
)
begins_each_part_with_zero = wrong(
    "those from 0 to 3, each once and in order", "tree(start + k", "tree(0"
)
gives_the_number = wrong(
    "the tree should be a tuple, but is int",
    "tree(0, num_stages, num_places)",
    "fewest(num_stages, num_places)[0]",
)
by_the_forwards_alone = right("min(ways)", "min(ways, key=lambda way: way[0])")
with_the_later_of_equal_splits = right("min(ways)", "min(ways, key=lambda way: (way[0], -way[1]))")


@wrong("stages are kept at the same time in")
def takes_segments_of_three(num_stages, num_places):
    parts = [tuple(range(at, min(at + 3, num_stages))) for at in range(0, num_stages, 3)]
    return (*parts[:-1], *parts[-1])


@wrong("planning.solve and planning.floor_bytes are the library's solver")
def asks_the_solver(num_stages, num_places):
    stage = Stage(forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=99)
    return solve([stage] * num_stages, budget_bytes=num_places + 101).tree
