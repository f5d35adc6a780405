"""What every check does around an answer: both halves, and what a learner reads and never sees."""

import contextlib
import functools
import math
import random
import sys
import warnings

import numpy as np
import pytest
import torch

from tutorial_lib.checks import CheckError
from tutorial_lib.checks.given import RunHalf, forbid
from tutorial_lib.checks.given.values import Opaque, plain
from tutorial_lib.checks.vocabulary import Exercise, exercise, expect


def double(x):
    return 2 * x


def judge_double(case, result):
    faults = [("It is x itself.", case["x"])]
    expect.number_of_bytes(result["seen"], 2 * case["x"], "double(x)", faults)


def run_double(answer, case):
    return {"seen": answer(case["x"])}


def make_check(forbidden=(), **changes):
    settings = {
        "run": RunHalf("toy.double", "7.2", run_double, forbidden),
        "passed": "everything doubled",
        "cases": lambda draw: [{"x": 21}, {"x": 4}],
        "judge": judge_double,
    }
    return Exercise(**(settings | changes))


def refusal(answer, **changes):
    with pytest.raises(CheckError) as caught:
        make_check(**changes)(answer)
    return str(caught.value)


def test_success_prints_one_fixed_line_and_returns_nothing(capsys):
    assert make_check()(double) is None
    assert capsys.readouterr() == ("7.2 passed: everything doubled\n", "")


def test_prints_and_warnings_of_an_answer_stay_unseen(capsys, recwarn):
    def loud(x):
        print("looking at", x)
        print("really", file=sys.stderr)
        warnings.warn("about to double", stacklevel=1)
        warnings.simplefilter("error")
        return 2 * x

    filters = list(warnings.filters)
    make_check()(loud)
    assert capsys.readouterr() == ("7.2 passed: everything doubled\n", "")
    assert not recwarn.list
    assert warnings.filters == filters


def test_prints_are_shown_where_the_answer_raises():
    def loud(x):
        print("x" * 600, "the end")
        raise KeyError(x)

    message = refusal(loud)
    assert message.startswith("your function raised KeyError: 21\n")
    assert 'call = checks.toy.case("7.2", 0), then call(your_function)' in message
    assert message.endswith("x the end\n")
    assert "x" * 500 not in message


def test_both_halves_leave_the_random_state_of_the_caller():
    def judge(case, result):
        judge_double(case, result)
        torch.rand(3)

    def draws(x):
        torch.manual_seed(5)
        return 2 * x

    torch.manual_seed(0)
    wanted = torch.rand(2)
    torch.manual_seed(0)
    make_check(judge=judge)(draws)
    assert torch.equal(torch.rand(2), wanted)


@pytest.mark.parametrize("settings", ["no_grad", "device", "dtype", "both"])
def test_settings_of_the_notebook_do_not_reach_a_case(settings, request):
    def looks(x):
        made = torch.ones(1) * torch.ones(1, requires_grad=True)
        assert (made.device.type, made.dtype, made.requires_grad) == ("cpu", torch.float32, True)
        return 2 * x

    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    request.addfinalizer(lambda: torch.set_default_device(None))
    if settings in ("device", "both"):
        torch.set_default_device("meta")  # as somebody on Colab does with "cuda"
    if settings in ("dtype", "both"):
        torch.set_default_dtype(torch.float64)
    before = torch.ones(1)
    with torch.set_grad_enabled(settings != "no_grad"):
        make_check()(looks)
    after = torch.ones(1)
    assert (after.device, after.dtype) == (before.device, before.dtype)


def set_all(x):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(3)
    torch.set_anomaly_enabled(True)
    torch.use_deterministic_algorithms(True)
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_grad_enabled(False)
    random.seed(0)
    return 2 * x


def everything_set():
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_grad_enabled(),
        random.getstate(),
    )


def test_what_an_answer_sets_is_put_back_before_it_is_judged():
    before, at_the_judge = everything_set(), []
    make_check(judge=lambda case, result: at_the_judge.append(everything_set()))(set_all)
    assert all(settings == before for settings in [*at_the_judge, everything_set()])


def test_the_seed_comes_from_the_environment(monkeypatch):
    asked = []
    monkeypatch.setenv(exercise.SEED_VARIABLE, "30")
    make_check(cases=lambda draw: asked.append(draw.random()) or [])(double)
    monkeypatch.delenv(exercise.SEED_VARIABLE)
    make_check(cases=lambda draw: asked.append(draw.random()) or [])(double)
    assert asked == [random.Random(seed).random() for seed in (30, 0)]


def test_a_remote_answer_is_judged_by_what_comes_back():
    class Remote:
        def run_remotely(self, check, case):
            asked.append((check, case["x"]))
            return {"seen": 2 * case["x"] if case["x"] == 21 else 0}

    asked = []
    assert "double(x): 0 is less" in refusal(Remote())
    assert asked == [("toy.double", 21), ("toy.double", 4)]


def blank(x):
    raise NotImplementedError("exercise 7.1: write the body, then run the check below")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (blank, "exercise 7.1 is still blank, and your answer to 7.2 calls it: replace"),
        (lambda x: blank(x) + x, "exercise 7.1 is still blank, and your answer to 7.2 calls it"),
        (12, "exercise 7.2 needs a function, but got int: was its name used"),
        (None, "exercise 7.2 needs a function, but got NoneType"),
        (lambda: 3, "your function raised TypeError:"),
        (lambda x: 1 // 0, "your function raised ZeroDivisionError: "),
        (lambda x: x, "double(x): 21 is not what the meter counts. It is x itself."),
        (lambda x: 43, "double(x): 43 is more than the meter counts, and is none of the usual"),
        (lambda x: 2.0 * x, "double(x) should be an int, but is 42.0: whole numbers come from"),
        (lambda x: str(2 * x), "double(x) should be an int, but is '42'."),
        (lambda x: None, "double(x) should be an int, but is None: what does it return?"),
        (lambda x: True, "double(x) should be an int, but is True."),
        (lambda x: {2 * x}, "double(x) should be an int, but is set."),
        (lambda x: [2 * x], "double(x) should be an int, but is [42]."),
        (lambda x: -2 * x, "double(x) should be an int from 0 on, but is negative"),
        (lambda x: 10**9999, "double(x) should be an int from 0 on, but is 2**63 or more"),
    ],
)
def test_what_is_said_of_a_wrong_answer(answer, message):
    assert refusal(answer).startswith(message)


@pytest.mark.parametrize("seen", [0, 21, 41, 43])
def test_what_was_wanted_stands_in_no_refusal(seen):
    assert "42" not in refusal(lambda x: seen)


@pytest.mark.parametrize("decorated", [lambda f: f, contextlib.contextmanager, functools.cache])
@pytest.mark.parametrize("said", ["", "later", "exercise 7.2"])
def test_a_blank_of_any_wording_is_one(said, decorated):
    def unwritten(x):
        raise NotImplementedError(said)

    assert refusal(decorated(unwritten)).startswith("exercise 7.2 is still blank: replace the line")


def test_the_refused_half_raises_nothing_but_a_check_error():
    assert "raised RecursionError" in refusal(lambda x: endless(x))
    with pytest.raises(KeyboardInterrupt):  # the learner's own stop button
        make_check()(interrupted)


def endless(x):
    return endless(x)


def interrupted(x):
    raise KeyboardInterrupt


def test_plain_keeps_values_and_cuts_every_tie():
    graph = torch.ones(2, requires_grad=True) * 2
    made = plain({"t": graph, 3: (1, 2.5, None, "s", True), "odd": object(), "n": np.int64(7)})
    assert torch.equal(made.pop("t"), torch.tensor([2.0, 2.0]))
    assert made == {"3": [1, 2.5, None, "s", True], "odd": Opaque("object"), "n": 7}
    assert type(made["n"]) is int
    copy = plain(graph)
    assert copy.grad_fn is None
    assert copy.data_ptr() != graph.data_ptr()


def test_a_forbidden_call_is_refused_under_any_name_and_comes_back():
    no_luck = forbid.Forbidden("do it without luck.", ("random:randint", "math:factorial"))
    under_another_name = random.randint

    def uses_random(x):
        return 2 * x + 0 * under_another_name(0, 1)

    def uses_what_is_written_in_c(x):
        return 2 * x * math.factorial(1)

    def hides_it(x):
        with contextlib.suppress(Exception):
            uses_random(x)
        return 2 * x

    for answer in (uses_random, uses_what_is_written_in_c, hides_it):
        assert refusal(answer, forbidden=[no_luck]) == "do it without luck."
    make_check(forbidden=[no_luck])(double)
    assert under_another_name(3, 3) == 3
    assert math.factorial(3) == 6


def test_a_forbidden_module_is_refused_with_all_that_it_is_made_of():
    """Aliases, decorated functions, methods, internals: what an everyday line imports goes on."""
    from torch.autograd.graph import saved_tensors_hooks
    from torch.utils.checkpoint import CheckpointFunction, checkpoint, checkpoint_sequential

    x = torch.ones(2, requires_grad=True)
    calls = [
        lambda: checkpoint(torch.sin, x, use_reentrant=False),
        lambda: checkpoint(torch.sin, x, use_reentrant=True),
        lambda: checkpoint_sequential([torch.sin], 1, x, use_reentrant=False),
        lambda: CheckpointFunction.apply(torch.sin, True, x),
        lambda: torch.utils.checkpoint._checkpoint_hook(None),
        lambda: next(torch.utils.checkpoint._checkpoint_without_reentrant_generator(torch.sin)),
    ]
    undo = forbid.remove([forbid.checkpointing("not this")], CheckError)
    try:
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            x.sin().sum().backward()
        for call in calls:
            with pytest.raises(CheckError, match="not this"):
                call()
    finally:
        for put_back in undo:
            put_back()
    assert torch.equal(calls[0](), calls[1]())


def told(word, *args, **kwargs):
    with pytest.raises(CheckError) as caught:
        word(*args, **kwargs)
    return str(caught.value)


def test_a_number_of_bytes_is_compared_and_its_fault_is_named():
    faults = [("twice too much.", 14), ("none of it.", 0)]
    expect.number_of_bytes(7, 7, "the sum", faults)
    said = told(expect.number_of_bytes, 14, 7, "the sum", faults)
    assert said == "the sum: 14 is not what the meter counts. twice too much."
    assert "9 is more than" in told(expect.number_of_bytes, 9, 7, "the sum", faults)
    said = told(expect.number_of_bytes, "7", 7, "the sum", faults)
    assert said == "the sum should be an int, but is '7'."


def test_words_begin_every_message_of_a_block():
    def judge():
        with expect.about("window 2: "):
            expect.fact(False, "it is odd.")

    assert told(judge) == "window 2: it is odd."


@pytest.mark.parametrize(
    ("said", "came"),
    [
        ("", "it went through"),
        ("KeyError: 7 and 8", "this came: 'KeyError: 7 and 8'"),
        ("ValueError: 7 and 80", "this came: 'ValueError: 7 and 80'"),
    ],
)
def test_an_error_that_names_things_is_expected(said, came):
    expect.refuses("ValueError: 7 of 8,000", ValueError, "seven", [7, 8000])
    message = told(expect.refuses, said, ValueError, "seven is none", [7, 8])
    assert message == f"seven is none, but {came}: a ValueError that names 7 and 8 is wanted."


def test_what_was_found_changed_is_told_and_nonsense_is_no_list_of_it():
    expect.unchanged({"changed": []})
    assert told(expect.unchanged, {"changed": ["modes"]}, {"modes": "put back"}) == "put back"
    assert "train() nor eval()" in told(expect.unchanged, {"changed": ["modes"]})
    assert told(expect.unchanged, {"changed": ["x"]}) == (
        "changed: a list of names is wanted, but list came."
    )


def test_a_refusal_is_shown_in_whole_words_on_lines_that_fit():
    error = CheckError("a table:\n  1  2\n" + "word-with-hyphens " * 12)
    lines = error._render_traceback_()
    assert lines[:2] == ["CheckError: a table:", "  1  2"]
    assert max(map(len, lines)) <= 80
    assert all(line.split() == ["word-with-hyphens"] * len(line.split()) for line in lines[2:])
