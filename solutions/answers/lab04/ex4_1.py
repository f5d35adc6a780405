"""Answers to 4.1, segments of one length; wrong ones leave out or add one thing."""

import functools

from solutions.answers import right, solved, wrong
from tutorial_lib.instruments import planning

recomputes_all = wrong("your time recomputes the last segment too", "end < last", "end <= last")
empties_the_list = wrong(
    "your call changed its arguments", "    return peak", "    stages.clear()\n    return peak"
)
looks_at_the_first_forward = right(
    "            seconds +=",
    "            peak = max(peak, held + dropped_needs(stages, start, end + 1, last))\n"
    "            seconds +=",
)
forgets_the_gradient_that_waits = wrong(
    "your peak lacks the gradient", "index, end)", "index, last)"
)
lets_a_gradient_wait_too_early = right(
    "            seconds +=",
    "            peak = max(peak, held + dropped_needs(stages, start, end + 1, end))\n"
    "            seconds +=",
)
adds_each_stages_input = wrong(
    "you counted a stage's own input twice", "+ inside", "+ inside + stages[index].input_bytes"
)
counts_forwards_alone = wrong(
    "the backward is missing in the time", " + stage.backward_seconds", ""
)
gives_the_extra_time = wrong(
    "the time is what recomputing adds",
    "sum(stage.forward_seconds + stage.backward_seconds for stage in stages)",
    "0",
)
gives_the_plain_time = wrong(
    "that of a step without any recomputation",
    "seconds += sum(stage.forward_seconds for stage in stages[start : end + 1])",
    "pass",
)
keeps_a_full_segment = wrong(
    "as many as a full segment has",
    "stages[start : end + 1]",
    "stages[start : min(end + 1, len(stages) - length)]",
)
forgets_the_input = wrong(
    "the chain's own input is missing in the peak",
    "stages[start].input_bytes",
    "stages[start].input_bytes if start else 0",
)
holds_later_boundaries = wrong(
    "your sum holds all boundaries at the peak",
    "held + inside",
    "sum(stage.input_bytes for stage in stages[::length]) + inside",
)
forgets_earlier_boundaries = wrong(
    "your sum holds only one boundary at a time", "held += ", "held = "
)
forgets_the_neighbours = wrong(
    "your sum leaves out the other stages",
    "            inside += stages[index].saved_bytes\n",
    "",
)
gives_the_peak_alone = wrong(
    "2 values are wanted, the peak and the seconds", "return peak, seconds", "return peak"
)
adds_the_boundaries_up_each_time = right(
    "held += stages[start].input_bytes",
    "held = sum(stage.input_bytes for stage in stages[: start + 1 : length])",
)


@wrong("but not what a stage holds while it runs")
def adds_boundaries_and_inside(stages, length):
    boundaries = sum(stage.input_bytes for stage in stages[::length])
    saved = [stage.saved_bytes for stage in stages]
    insides = [sum(saved[at : at + length]) for at in range(0, len(stages), length)]
    return boundaries + max(insides), solved("lab04").segments_cost(stages, length)[1]


@wrong("that is the peak of a step that keeps everything")
def drops_nothing(stages, length):
    cost = solved("lab04").segments_cost
    return cost(stages, len(stages))[0], cost(stages, length)[1]


@wrong("planning.simulate and planning.Plan are the oracle")
def asks_the_simulator(stages, length):
    run = planning.simulate(stages, solved("lab04").segments(len(stages), length))
    return run.peak_bytes, run.seconds


@right
def from_the_last_segment_to_the_first(stages, length):
    lab, count = solved("lab04"), len(stages)
    boundaries, peaks = stages[::length], []
    for number in reversed(range(len(boundaries))):
        start, stop = number * length, min(number * length + length, count)
        held = sum(stage.input_bytes for stage in boundaries[: number + 1])
        if stop < count:
            peaks.append(held + lab.dropped_needs(stages, start, stop, count - 1))
        for index in range(start, stop):
            inside = sum(stage.saved_bytes for stage in stages[start:index])
            peaks.append(held + inside + lab.kept_needs(stages, index, stop - 1))
    again = stages[: (len(boundaries) - 1) * length]
    forward = functools.reduce(lambda total, stage: total + stage.forward_seconds, again, 0)
    return max(peaks), forward + sum(s.forward_seconds + s.backward_seconds for s in stages)
