"""Lab 05: what exercise 5.4 needs an answer to look at, and refuses where it doesn't."""

import itertools

import pytest

from tutorial_lib import checks
from tutorial_lib.checks import CheckError
from tutorial_lib.checks.lab05 import ex5_numbers
from tutorial_lib.checks.vocabulary.exercise import SEED_VARIABLE


def _fewest_flops(parts, budget, seen):
    """Try all choices of the options that `seen` gives of a part."""
    ways = []
    for chosen in itertools.product(*(enumerate(seen(part, parts)) for part in parts)):
        numbers, options = zip(*chosen, strict=True)
        if ex5_numbers.peak_bytes(options) <= budget:
            ways.append((ex5_numbers.total_flops(options), numbers))
    if not ways:
        raise ValueError(f"nothing fits into {budget} bytes.")
    return list(min(ways)[1])


UNSEEN = {
    "each option's own working bytes": lambda part, _: [
        ex5_numbers.Option(o.kept_bytes, part[0].working_bytes, o.flops) for o in part
    ],
    "each part's own number of options": lambda part, parts: part[: len(parts[0])],
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("words", UNSEEN)
def test_an_answer_that_does_not_look_at_this_is_refused(monkeypatch, words, seed):
    monkeypatch.setenv(SEED_VARIABLE, str(seed))
    with pytest.raises(CheckError):
        checks.lab05.fewest_flops(lambda parts, n: _fewest_flops(parts, n, UNSEEN[words]))
    checks.lab05.fewest_flops(lambda parts, n: _fewest_flops(parts, n, lambda part, _: part))
