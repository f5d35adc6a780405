"""Steps of 6.5 that fail: nothing of them may remain."""

from tutorial_lib.checks.given.surroundings import MESSAGES, SWITCHES
from tutorial_lib.checks.vocabulary import Case, Result, expect, fact

from .given.steps import SAID

_THIRD = "the third of the micro-batches by its number"
# In which ways a step fails: what the learner reads about it, and what the error has to name.
HOW = {
    "no steps": ("num_steps=0", "num_steps, and its value"),
    "too many steps": ("more micro-batches than rows", "both numbers, the steps and the rows"),
    "all masked": ("a batch without one target", ""),
    "nan": ("a loss of nan in the third micro-batch", _THIRD),
    "inf": ("an infinite loss in the third micro-batch", _THIRD),
    "backward": (
        "an out-of-memory error in the backward of the third micro-batch",
        "what PyTorch said",
    ),
    "raises": (
        "an interrupt (a BaseException) raised by the model in the third micro-batch",
        "what the model said",
    ),
}
_PASSED_ON = {"backward": "OutOfMemoryError", "raises": "_FromTheModel"}  # kinds of errors
_SWITCH = "a mode of the model, a requires_grad or the grad mode is another than before."
_MESSAGES = {
    "weights": "an error was raised, and the parameters had been updated before.",
    "gradients": "the error came, and the .grad that were there before did not come back. Hold "
    "them in a list, set each to None, and put them back when something is raised.",
    "buffers": "the model's buffers stayed as the failed forward left them: call the function "
    "that remember gave you.",
    "random state": "the random state stayed where the failed step left it: the retry would draw "
    "other numbers.",
    **dict.fromkeys(SWITCHES, _SWITCH),
}
_IN_FORWARD = (
    "it came, and not everything is as it was, which it was after an error in forward: put "
    "backward into the try, too."
)
_PASSED_BY = (
    "it came, and not everything is as it was, which it was after an error of your own: an except "
    "for Exception, or for less, lets it pass by."
)


def judge(case: Case, result: Result) -> None:
    """Demand an error that names the failure, and that nothing else happened."""
    how, raised, said = case["fails"], result["raised"], str(result["said"])
    what, named = HOW[how]
    fact(
        raised != "nothing" and isinstance(result["said"], str),
        f"{what}: nothing was raised. A step that cannot be made says so, and makes none.",
    )
    wanted, advice = "ValueError", "a ValueError in your own words is wanted"
    if how in _PASSED_ON:
        wanted, advice = _PASSED_ON[how], "what the model raises is passed on as it is"
    fact(raised == wanted, f"{what}: a {raised} came ({said[:80]}), and {advice}.")
    # what came before an interrupt has passed, so what is put back is right
    messages = {**MESSAGES, **_MESSAGES}
    if how in _PASSED_ON:
        messages = dict.fromkeys(MESSAGES, _IN_FORWARD if how == "backward" else _PASSED_BY)
    expect.unchanged(result, {name: f"{what}: {words}" for name, words in messages.items()})
    fact(
        how not in ("nan", "inf") or "3" in said or "2" not in said,
        f"{what}: {said[:120]!r} counts it from 0, and people count from 1.",
    )
    words = {"no steps": ["0"], "too many steps": [str(case["rows"]), str(case["num_steps"])]}
    words |= {"backward": [SAID], "raises": [SAID], "all masked": []}
    is_named = all(word in said for word in words.get(how, ["3"]))
    every = {*range(1, case["num_steps"] + 1)}
    fact(
        how not in ("nan", "inf") or not every <= expect.numbers_named(said),
        f"{what}: the message {said[:120]!r} names every micro-batch: which one is it?",
    )
    fact(is_named, f"{what}: the message {said[:120]!r} does not name {named}.")
