"""Lab 05's answers against all choices, and on real tensors."""

import itertools
import random

import pytest

from solutions.answers import solved
from tutorial_lib import checks
from tutorial_lib.checks import CheckError
from tutorial_lib.checks.lab05 import ex5_4
from tutorial_lib.checks.vocabulary.exercise import SEED_VARIABLE

LAB = solved("lab05")


def draw_parts(draw, count):
    return [
        [ex5_4.Option(draw.randint(1, 30), draw.randint(20, 60), draw.randint(0, 50))
         for _ in range(draw.randint(1, 4))]
        for _ in range(count)
    ]  # fmt: skip


def test_no_choice_has_fewer_flops():
    draw = random.Random(0)
    for _ in range(300):
        parts = draw_parts(draw, draw.randint(1, 5))
        ways = [(ex5_4.peak_bytes(w), ex5_4.total_flops(w)) for w in itertools.product(*parts)]
        target = draw.choice(ways)[0] + draw.randint(-5, 5)
        fitting = [flops for peak, flops in ways if peak <= target]
        if not fitting:
            with pytest.raises(ValueError, match=f"={target}"):
                LAB.fewest_flops(parts, target)
            continue
        chosen = [p[n] for p, n in zip(parts, LAB.fewest_flops(parts, target), strict=True)]
        assert ex5_4.peak_bytes(chosen) <= target
        assert ex5_4.total_flops(chosen) == min(fitting)


def _fewest_flops(parts, budget, seen):
    """Try all choices of the options that `seen` gives of a part."""
    ways = []
    for chosen in itertools.product(*(enumerate(seen(part, parts)) for part in parts)):
        numbers, options = zip(*chosen, strict=True)
        if ex5_4.peak_bytes(options) <= budget:
            ways.append((ex5_4.total_flops(options), numbers))
    if not ways:
        raise ValueError(f"nothing fits into {budget} bytes.")
    return list(min(ways)[1])


UNSEEN = {
    "each option's own working bytes": lambda part, _: [
        ex5_4.Option(o.kept_bytes, part[0].working_bytes, o.flops) for o in part
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
