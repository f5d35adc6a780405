"""Lab 05: what exercise 5.4 needs an answer to look at, and refuses where it doesn't."""

import pytest

from solutions.answers import solved
from tutorial_lib import checks
from tutorial_lib.checks import CheckError
from tutorial_lib.checks.lab05 import ex5_numbers
from tutorial_lib.checks.vocabulary.exercise import SEED_VARIABLE

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
    answer = solved("lab05").fewest_flops
    with pytest.raises(CheckError):
        checks.lab05.fewest_flops(lambda ps, n: answer([UNSEEN[words](p, ps) for p in ps], n))
    checks.lab05.fewest_flops(answer)
