"""Answers to 4.5, the smallest budget."""

from functools import cache

from tutorial_lib.instruments import planning
from tutorial_lib.instruments.planning import floor_bytes
from wrong_answers import right, solved, wrong


def floor(stages, *, nested=True, own_input=1, at_the_end=(), held=1, boundary=1, leave_out=0,
          keep=None):  # fmt: skip
    """The right answer where no word is given."""
    lab, last = solved("lab04"), len(stages) - 1

    def kept_needs(start, end):
        return lab.kept_needs(stages, start, last if "kept" in at_the_end else end)

    def dropped_needs(start, stop, end):
        return lab.dropped_needs(stages, start, stop, last if "dropped" in at_the_end else end)

    @cache
    def kept(start, end):
        later = stages[start].saved_bytes + kept(start + 1, end) if start < end else 0
        return max(kept_needs(start, end), later)

    @cache
    def needs(start, end):
        later = held * stages[start].saved_bytes + needs(start + 1, end) if start < end else 0
        ways = [max(kept_needs(start, end), later)]
        if keep and start < end:
            ways = [keep(kept_needs(start, end), needs(start + 1, end))]
        for split in range(start + 1, end + 1 - leave_out):
            dropping = dropped_needs(start, split, end)
            inside = needs(start, split - 1) if nested else kept(start, split - 1)
            rest = boundary * stages[split].input_bytes + needs(split, end)
            ways.append(max(dropping, rest, inside))
        return min(ways)

    return own_input * stages[0].input_bytes + needs(0, len(stages) - 1)


def peak(stages, tree):
    return planning.simulate(stages, tree).peak_bytes


@wrong("The chain's own input is missing")
def forgets_the_input(stages):
    return floor(stages, own_input=0)


@wrong("The chain's own input is in it twice")
def counts_the_input_twice(stages):
    return floor(stages, own_input=2)


@wrong("That is the peak of a step that keeps everything")
def keeps_everything(stages):
    return peak(stages, tuple(range(len(stages))))


@wrong("That is a checkpoint around each stage")
def checkpoints_each_stage(stages):
    *before, last = range(len(stages))
    return peak(stages, (*((index,) for index in before), last))


@wrong("That is one segment, the first half")
def drops_the_first_half(stages):
    half = len(stages) // 2
    return peak(stages, (tuple(range(half)), *range(half, len(stages))))


@wrong("That is the best without a segment inside a segment")
def nests_nothing(stages):
    return floor(stages, nested=False)


@wrong("`kept_needs` was asked for the end of the chain")
def keeps_as_at_the_end(stages):
    return floor(stages, at_the_end=["kept"])


@wrong("`dropped_needs` was asked for the end of the chain")
def drops_as_at_the_end(stages):
    return floor(stages, at_the_end=["dropped"])


@wrong("Keeping is never the best way in your sum")
def adds_what_comes_one_after_the_other(stages):
    return floor(stages, keep=lambda own, rest: own + rest)


@wrong("What a kept stage saved is held while the rest runs")
def forgets_what_was_saved(stages):
    return floor(stages, held=0)


@wrong("The input of stage `split` is held")
def forgets_the_boundary(stages):
    return floor(stages, boundary=0)


@wrong("`split` may be `end`")
def stops_one_split_early(stages):
    return floor(stages, leave_out=1)


@wrong("should be an int, and is [")
def gives_a_pair(stages):
    return floor(stages), ()


@wrong("planning.solve and planning.floor_bytes are the library's solver")
def asks_the_library(stages):
    return floor_bytes(stages)


@right
def with_every_word_right(stages):
    return floor(stages)


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
