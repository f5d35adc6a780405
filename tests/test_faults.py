"""Each fault that a check knows is told in its own words where an answer gives its value.

Wrong answers show that a mistake gives a value; this shows that the value gets the mistake's words,
for all of them: a judge that meets a fault's own value in place of the right one must name it.
"""

import re
from collections import defaultdict
from unittest import mock

import pytest
from test_wrong_answers import SEEDS, each_exercise, verdict

from solutions.answers import solved
from tutorial_lib.checks import CheckError
from tutorial_lib.checks.vocabulary import Exercise, expect

# Faults that hang on more than a value: 1.5 names the nearest, 4.6 asks for the answer's own peak.
HANG_ON_MORE = {"1.5", "4.6"}
NUMBERS = re.compile(r"\[[^]]*\]|[-+]?\d[\d,.e+-]*")  # they differ from case to case


def judged(exercise, seed):
    """Give the check, the case and the result of each case that the solution is tried on."""
    seen, judge = [], Exercise.judge

    def keep(check, case, result):
        seen.append((check, case, result))
        judge(check, case, result)

    with mock.patch.object(Exercise, "judge", keep):
        answer = getattr(solved(exercise.lab), exercise.asked)
        assert verdict(exercise, answer, seed) == (exercise.line, None)
    return seen


def judge_meeting(check, case, result, close):
    with mock.patch.object(expect, "close", close):
        check.judge(case, result)


def faults_met(check, case, result):
    """Give each call of `expect.close`, and its faults, as a judge of the right result makes it."""
    calls = []

    def note(seen, wanted, faults=(), **more):
        calls.append((wanted, list(faults), more))

    judge_meeting(check, case, result, note)
    return calls


def told(check, case, result, number, value):
    """Give what the judge says where its call of `expect.close` of that number meets a value."""
    calls, close = [], expect.close

    def exchange(seen, wanted, faults=(), **more):
        calls.append(wanted)
        if len(calls) - 1 == number:
            close(value, wanted, faults, **more)

    try:
        judge_meeting(check, case, result, exchange)
    except CheckError as error:
        return str(error)
    return None


def faults_of(exercise, seed):
    """Give each fault's words, those of all faults of its value, and what the judge tells of it.

    The last is None where the case does not tell the fault's value from the right one.
    """
    for check, case, result in judged(exercise, seed):
        for number, (wanted, faults, more) in enumerate(faults_met(check, case, result)):
            tolerance = more.get("tolerance", expect.EXACT)
            near = more.get("fault_tolerance") or tolerance
            for words, value in faults:
                same = [w for w, other in faults if expect.is_close(value, other, near)]
                is_right = expect.is_close(value, wanted, tolerance)
                yield words, same, None if is_right else told(check, case, result, number, value)


def every_fault_is_told(exercise, seeds):
    shown = defaultdict(bool)
    for seed in seeds:
        for words, same, message in faults_of(exercise, seed):
            shown[NUMBERS.sub("#", words)] |= message is not None and words in message
            named = message is None or any(other in message for other in same)
            assert named, f"seed {seed}: {words!r} is told {message!r}"
    never = [words for words, was in shown.items() if not was]
    assert not never or exercise.number in HANG_ON_MORE, "no case tells these"


@each_exercise
def test_a_faults_own_value_is_told_in_its_words(exercise):
    every_fault_is_told(exercise, SEEDS[:1])


@pytest.mark.weekly
@each_exercise
def test_a_faults_own_value_is_told_in_its_words_under_every_seed(exercise):
    every_fault_is_told(exercise, SEEDS)
