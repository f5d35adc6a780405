"""Every check of every lab: it is found under its name, and its cases are plain and drawn."""

import functools
import json
import math

import pytest
import torch
from test_wrong_answers import EXERCISES
from torch import nn

from solutions.answers import solved
from tutorial_lib import checks, memory
from tutorial_lib.checks import CheckError
from tutorial_lib.checks.given.half import run_in_place
from tutorial_lib.checks.given.values import Opaque
from tutorial_lib.checks.lab02.given.machine import PretendGPU
from tutorial_lib.checks.vocabulary import Exercise
from tutorial_lib.checks.vocabulary.exercise import SEED_VARIABLE

LABS = {name: getattr(checks, name) for name in checks.LABS}
CHECKS = {
    f"{lab}.{name}": value
    for lab, module in LABS.items()
    for name, value in vars(module).items()
    if isinstance(value, Exercise)
}
SEEDS = range(4)
each_check = pytest.mark.parametrize("name", CHECKS)


@each_check
def test_a_check_is_found_under_its_name(name):
    assert CHECKS[name].name == name


@each_check
def test_cases_are_plain_and_drawn_from_the_seed(name):
    drawn = [CHECKS[name].cases(seed) for seed in SEEDS]
    assert json.loads(json.dumps(drawn)) == drawn == [CHECKS[name].cases(seed) for seed in SEEDS]
    assert any(cases != drawn[0] for cases in drawn)


def blank(*args, **kwargs):
    raise KeyError("a slip")


@each_check
def test_a_learner_can_make_the_call_of_every_case(name):
    check, lab = CHECKS[name], getattr(checks, name.partition(".")[0])
    for number, _ in enumerate(check.cases(0)):
        call = lab.case(check.exercise, number)
        assert call.args
        assert len(str(call)) < 300, "too long to be read"
        with pytest.raises(KeyError, match="a slip"):
            call(blank)


def test_the_message_of_a_failed_call_names_the_case_that_can_be_built(monkeypatch):
    monkeypatch.setenv(SEED_VARIABLE, "7")

    def fails_on_ties(model):
        tied = len({id(p) for p in model.parameters()}) < len([*model.state_dict()])
        return sum(p.nbytes for p in model.parameters()) if not tied else 1 / 0

    with pytest.raises(CheckError) as caught:
        checks.lab01.parameter_bytes(fails_on_ties)
    way = 'call = checks.lab01.case("1.1", 1, seed=7), then call(your_function).'
    assert way in str(caught.value)
    call = eval(way.removeprefix("call = ").partition(", then")[0])
    with pytest.raises(ZeroDivisionError):
        call(fails_on_ties)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(("9.9",), "'9.9' has no check: try"), (("1.1", 9), r"number \(=9\) must be from 0 to 3")],
)
def test_a_case_that_is_not_there_is_refused(words, sentence):
    with pytest.raises(ValueError, match=sentence):
        checks.lab01.case(*words)


NONSENSE = {
    "nothing": None,
    "a number of 400 digits": 10**400,
    "nan": math.nan,
    "words": "gone",
    "a tensor": torch.ones(2),
    "an object": Opaque("X"),
    "a list of one": [Opaque("X")],
    "a list of a list": [[]],
    "a list of a table": [{}],
}


@pytest.fixture(scope="module")
def results_of():
    """What the solution gives in every case of a check, computed once."""

    @functools.cache
    def compute(name):
        (exercise,) = (e for e in EXERCISES if e.number == CHECKS[name].exercise)
        answer = getattr(solved(exercise.lab), exercise.asked)
        return [
            (case, run_in_place(CHECKS[name].half, answer, case)) for case in CHECKS[name].cases(0)
        ]

    return compute


# They choose the words of a refusal, and are no reason for one.
FOR_WORDS = {"used_no_sync", "has_graph", "read_at_entry"}


def refuses(judge, case, result):
    try:
        judge(case, result)
    except CheckError:
        return True
    return False


@each_check
def test_a_judge_refuses_nonsense_and_looks_at_each_flag(name, results_of):
    judge, flags, looked_at = CHECKS[name].judge, set(FOR_WORDS), set(FOR_WORDS)
    for case, result in results_of(name):
        assert not refuses(judge, case, result)
        assert refuses(judge, case, {})
        for nonsense in NONSENSE.values():
            assert refuses(judge, case, dict.fromkeys(result, nonsense))
        for key, value in result.items():
            if isinstance(value, bool) or (isinstance(value, list) and not value):
                flags.add(key)  # an empty list is of what was changed
                other = ["weights"] if value == [] else not value
                looked_at |= {key} if refuses(judge, case, {**result, key: other}) else set()
    assert flags == looked_at


def measure(*arguments, **options):
    memory.measure(lambda: torch.ones(2, requires_grad=True).sum().backward(), warmup=0)


def watch(*arguments, **options):
    with memory.watch():
        pass


def predict(*arguments, **options):
    def make():
        layer = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        return lambda: layer(torch.ones(2)).sum().backward(), layer, optimizer

    memory.predict(make, kernels="cpu")


def saved(*arguments, **options):
    memory.saved(lambda: None)


def own_log(*arguments, **options):
    PretendGPU()


INSTRUMENTS = {"lab01": (measure, watch, predict), "lab02": (measure, watch, saved, own_log)}
FORBIDDEN = [
    (name, instrument)
    for name in CHECKS
    for instrument in INSTRUMENTS.get(name.partition(".")[0], ())
]


@pytest.mark.parametrize(("name", "instrument"), [*FORBIDDEN, ("lab01.chain_saved_bytes", saved)])
def test_a_check_refuses_the_instrument_that_judges_it(name, instrument):
    with pytest.raises(CheckError, match="the oracle"):
        CHECKS[name](instrument)
    instrument()  # and it is back
