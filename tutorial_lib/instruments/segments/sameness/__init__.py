"""Whether recomputing and accumulating leave a training as it is, found by looking at it.

    found = judge(make, find_stages)  # make(samples) returns loss and model
    print(found)  # a sentence on recomputing, a sentence on accumulating
    found.recomputed, found.accumulated  # exact, rounding, redrawn, untried or another

`look` runs a forward on tensors without memory and tells by value numbers which stages would
compute something else if they ran again. `tried` replaces samples of a small batch for real, and
looks whether a sample's part of the gradient depends on the others.
"""

from tutorial_lib.instruments.segments.sameness.judgement import Sameness, judge
from tutorial_lib.instruments.segments.sameness.look import Seen, look
from tutorial_lib.instruments.segments.sameness.trial import Tried

__all__ = ["Sameness", "Seen", "Tried", "judge", "look"]
