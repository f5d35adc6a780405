"""Steps of 6.5 that fail: nothing of them may remain."""

import tomllib
from pathlib import Path

from tutorial_lib.checks.given.surroundings import MESSAGES
from tutorial_lib.checks.vocabulary import Case, Result, expect

from .given.steps import SAID

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
HOW = _TABLE["how"]


def judge(case: Case, result: Result) -> None:
    """Demand an error that names the failure, and that nothing else happened."""
    how, raised, said = case["fails"], result["raised"], str(result["said"])
    what, named, passed_on = HOW[how]["what"], HOW[how]["named"], HOW[how].get("passed_on")
    expect.fact(
        raised != "nothing" and isinstance(result["said"], str),
        f"{what}: nothing was raised. A step that cannot be made says so, and makes none.",
    )
    advice = "what the model raises is passed on as it is"
    advice = advice if passed_on else "a ValueError in your own words is wanted"
    expect.fact(
        raised == (passed_on or "ValueError"),
        f"{what}: a {raised} came ({said[:80]}), and {advice}.",
    )
    # what came before an interrupt has passed, so what is put back is right
    messages = {**MESSAGES, **_TABLE["changed"]}
    if passed_on:
        messages = dict.fromkeys(MESSAGES, HOW[how]["changed"])
    expect.unchanged(result, {name: f"{what}: {words}" for name, words in messages.items()})
    expect.fact(
        how not in ("nan", "inf") or "3" in said or "2" not in said,
        f"{what}: {said[:120]!r} counts it from 0, and people count from 1.",
    )
    words = {"no steps": ["0"], "too many steps": [str(case["rows"]), str(case["num_steps"])]}
    words |= {"backward": [SAID], "raises": [SAID], "all masked": []}
    is_named = all(word in said for word in words.get(how, ["3"]))
    every = {*range(1, case["num_steps"] + 1)}
    expect.fact(
        how not in ("nan", "inf") or not every <= expect.numbers_named(said),
        f"{what}: the message {said[:120]!r} names every micro-batch: which one is it?",
    )
    expect.fact(is_named, f"{what}: the message {said[:120]!r} does not name {named}.")
