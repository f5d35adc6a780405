"""Answers to 4.5, the smallest budget."""

from solutions.answers import right, solved, wrong
from tutorial_lib.instruments import planning
from tutorial_lib.instruments.planning import floor_bytes

forgets_the_input = wrong(
    "the chain's own input is missing", "return stages[0].input_bytes + ", "return "
)
counts_the_input_twice = wrong(
    "you counted the chain's own input twice", "return stages[0]", "return 2 * stages[0]"
)
nests_nothing = wrong(
    "that is the best without a segment inside a segment",
    "    @cache\n",
    "    def kept(start, end):\n"
    "        later = stages[start].saved_bytes + kept(start + 1, end) if start < end else 0\n"
    "        return max(kept_needs(stages, start, end), later)\n"
    "\n"
    "    @cache\n",
    "needs(start, split - 1)",
    "kept(start, split - 1)",
)
keeps_as_at_the_end = wrong(
    "`kept_needs` was asked for the end of the chain",
    "kept_needs(stages, start, end)",
    "kept_needs(stages, start, len(stages) - 1)",
)
drops_as_at_the_end = wrong(
    "`dropped_needs` was asked for the end of the chain",
    "start, split, end",
    "start, split, len(stages) - 1",
)
adds_what_comes_one_after_the_other = wrong(
    "your sum makes keeping too expensive",
    "later = stages[start].saved_bytes + needs(start + 1, end)",
    "later = kept_needs(stages, start, end) + needs(start + 1, end)",
)
forgets_what_was_saved = wrong(
    "what a kept stage saved is missing",
    "stages[start].saved_bytes + needs",
    "needs",
)
forgets_the_boundary = wrong(
    "the input of stage `split` is missing", "stages[split].input_bytes + ", ""
)
stops_one_split_early = wrong(
    "`split` may be `end`", "range(start + 1, end + 1)", "range(start + 1, end)"
)
gives_a_pair = wrong(
    "should be an int, but is [", "needs(0, len(stages) - 1)", "needs(0, len(stages) - 1), ()"
)
keeps_the_least_so_far = right(
    "            ways.append(max(dropping, rest, needs(start, split - 1)))",
    "            ways = [min(ways[0], max(dropping, rest, needs(start, split - 1)))]",
)


def peak(stages, tree):
    return planning.simulate(stages, tree).peak_bytes


@wrong("that is the peak of a step that keeps everything")
def keeps_everything(stages):
    return peak(stages, tuple(range(len(stages))))


@wrong("that is a checkpoint around each stage")
def checkpoints_each_stage(stages):
    *before, last = range(len(stages))
    return peak(stages, (*((index,) for index in before), last))


@wrong("that is one segment, the first half")
def drops_the_first_half(stages):
    half = len(stages) // 2
    return peak(stages, (tuple(range(half)), *range(half, len(stages))))


@wrong("planning.solve and planning.floor_bytes are the library's solver")
def asks_the_library(stages):
    return floor_bytes(stages)


@right
def from_short_parts_to_long_ones(stages):
    lab, count, needs = solved("lab04"), len(stages), {}
    for end in range(count):
        for start in range(end, -1, -1):
            rest = stages[start].saved_bytes + needs.get((start + 1, end), 0)
            ways = [max(lab.kept_needs(stages, start, end), rest if start < end else 0)]
            for split in range(start + 1, end + 1):
                dropping = lab.dropped_needs(stages, start, split, end)
                later = stages[split].input_bytes + needs[split, end]
                ways.append(max(dropping, later, needs[start, split - 1]))
            needs[start, end] = min(ways)
    return stages[0].input_bytes + needs[0, count - 1]
