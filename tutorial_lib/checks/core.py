"""What a check is: cases, a half that runs the answer, and a half that judges plain data.

A check has two halves so that the same object serves a learner and a grader. In a notebook both
halves run in place. A grader puts a `RemoteAnswer` where the learner's function was: then `run`
happens in another process, and only plain data comes back to be judged.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import operator
import os
import random
import re
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Protocol

import torch
import torch.utils.checkpoint as torch_checkpoint

from tutorial_lib.checks.forbid import Forbidden, refused
from tutorial_lib.checks.printed import Printed

Answer = Callable[..., Any]
Case = Mapping[str, Any]
Result = Mapping[str, Any]

SEED_VARIABLE = "TUTORIAL_LIB_CHECK_SEED"
# In the case of a memory exam: what the step may use beyond what is there before it.
EXAM_BYTES = "exam_bytes"

# Where an answer raises, its process knows no more: the check that asked puts words in its place.
_CALL = "(how to call it)"
_IN_EXAM = "That was in the memory exam, which only graders hold."
_BLANK = re.compile(r"exercise (?P<number>\d+(?:\.\d+)*):")


class CheckError(AssertionError):
    """An answer did not pass: says what was seen, what was wanted and what to try."""

    def _render_traceback_(self) -> list[str]:
        return [f"CheckError: {self}"]


class RemoteAnswer(Protocol):
    """Stands where the learner's function was while a grader runs the check."""

    def run_remotely(self, check: str, case: Case) -> Result | None:
        """Run the `run` half elsewhere; None for a memory exam that cannot be held."""


@dataclass(frozen=True)
class Opaque:
    """A value that is not plain data: only the name of its type is kept."""

    type_name: str


@dataclass(frozen=True)
class Exam:
    """The memory exam of a check (see `checks.exam`); only a grader can hold it.

    Args:
        case: From a seed to the exam's case, which has `EXAM_BYTES`.
        run: As a check's `run`.
        judge: As a check's `judge`, without an oracle.
    """

    case: Callable[[int], Case]
    run: Callable[[Callable[..., Any], Case], Result]
    judge: Callable[[Case, Result], None]


@dataclass(frozen=True, eq=False)
class Check:
    """One check of one exercise; call it with the answer.

    Args:
        name: Where to find this object, as in `lab01.parameter_bytes`.
        exercise: The exercise's mark, as in `1.1`.
        passed: The line printed on success, the same on every machine.
        cases: From a seed to the cases; a case is plain data.
        run: The only half that touches the answer; returns plain data.
        judge: Decides on the case and that data alone; raises `CheckError`. Where there is an
            oracle, that is its third argument.
        oracle: Made from a case, and kept for the next time that this case is judged: a class
            whose cached properties compute what is right when the judge first asks.
        forbidden: What the answer may not call.
        exam: A training step that must fit into little memory; only graders hold it.
    """

    name: str
    exercise: str
    passed: str
    cases: Callable[[int], Sequence[Case]]
    run: Callable[[Callable[..., Any], Case], Result]
    judge: Callable[..., None]
    oracle: Callable[[Case], Any] | None = None
    forbidden: Sequence[Forbidden] = ()
    exam: Exam | None = None

    def __post_init__(self) -> None:
        """Give the judge its oracle, so that who calls it need not know of one."""
        if self.oracle is not None:
            judged, of_text = self.judge, _kept_by_case(self.oracle)

            def judge(case: Case, result: Result) -> None:
                judged(case, result, of_text(json.dumps(case)))

            object.__setattr__(self, "judge", judge)

    def __call__(self, answer: Callable[..., Any] | RemoteAnswer) -> None:
        """Check an answer.

        Raises:
            CheckError: When the answer is blank, fails, or is judged wrong.
        """
        if vars(self)["judge"] is None:  # in the process of a graded answer, which sees no judge
            return
        remote = getattr(type(answer), "run_remotely", None)
        # Judging draws random numbers too, so the caller's state is kept around both halves.
        with torch.random.fork_rng(devices=[]), _quick_collections() as freeze:
            seed = int(os.environ.get(SEED_VARIABLE, "0"))
            exams = [self.exam.case(seed)] if remote is not None and self.exam else []
            for number, case in enumerate([*self.cases(seed), *exams]):
                freeze()
                try:
                    if remote is not None:
                        result = remote(answer, self.name, case)
                    else:
                        result = run_in_place(self, answer, case)  # type: ignore[arg-type]
                except CheckError as error:
                    if _CALL not in str(error):
                        raise
                    how = _IN_EXAM if case in exams else self._how_to_call(number, seed)
                    raise CheckError(str(error).replace(_CALL, how)) from error
                if result is not None:
                    with _usual_settings():
                        (self.exam.judge if case in exams else self.judge)(case, result)  # type: ignore[union-attr]
        print(f"{self.exercise} passed: {self.passed}")

    def _how_to_call(self, number: int, seed: int) -> str:
        lab, seeded = self.name.partition(".")[0], f", seed={seed}" if seed else ""
        return (
            f'To call it as this check does: call = checks.{lab}.case("{self.exercise}", {number}'
            f"{seeded}), then call(your_function). Print call to see with what."
        )


def _kept_by_case(oracle: Callable[[Case], Any]) -> Callable[[str], Any]:
    # A check is run again and again on the same cases: by a class, by the tests.
    return lru_cache(maxsize=64)(lambda text: oracle(json.loads(text)))


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    (lambda: torch.get_autocast_dtype("cpu"), partial(torch.set_autocast_dtype, "cpu")),
    (random.getstate, random.setstate),
)


@contextlib.contextmanager
def _usual_settings() -> Iterator[None]:
    # Cases mean gradients, the CPU and float32, whatever a notebook has set. What an answer sets is
    # put back: neither the judge nor the next case nor the notebook has asked for it.
    device, before = torch.get_default_device(), [get() for get, _ in _SETTINGS]
    torch.set_default_dtype(torch.float32)
    # Sums come out the same to the last bit. And a grader's forked process has no pool of threads:
    # an operation that waits for its parent's never ends.
    torch.set_num_threads(1)
    try:
        with (
            torch.enable_grad(),
            contextlib.nullcontext() if device.type == "cpu" else torch.device("cpu"),
        ):
            _first_use()
            yield
    finally:
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        for (get, put), value in zip(_SETTINGS, before, strict=True):
            if get() != value:
                put(value)


@cache
def _first_use() -> None:
    # It imports torch._dynamo, which makes tensors: a meter around it would count them.
    x = torch.zeros(1, requires_grad=True)
    torch_checkpoint.checkpoint(torch.sin, x, use_reentrant=False).backward()


# It looks at each object, so once a process. Who freezes some later loses speed, nothing else.
_count_frozen = cache(gc.get_freeze_count)


@contextlib.contextmanager
def _quick_collections() -> Iterator[Callable[[], None]]:
    # A meter collects garbage twice a reading: a quarter of a second where much is imported. It
    # need not look at what was there before a case (an optimizer's first step imports much, too).
    was_frozen = _count_frozen()
    try:
        yield gc.freeze
    finally:
        if not was_frozen:
            gc.unfreeze()


def run_in_place(check: Check, answer: Callable[..., Any], case: Case) -> Result:
    """Run the first half here; prints, warnings and the RNG of the caller stay undisturbed.

    Raises:
        CheckError: When the answer is no function, is blank, or raises.
    """
    if not callable(answer):
        raise CheckError(
            f"exercise {check.exercise} needs a function, and got {type(answer).__name__}: "
            "was its name used for something else?"
        )
    with quietly() as printed:
        try:
            half = check.exam if check.exam and EXAM_BYTES in case else check
            with refused(check.forbidden, CheckError):
                return {key: plain(value) for key, value in half.run(answer, case).items()}
        except CheckError:
            raise
        except Exception as error:
            if isinstance(error, NotImplementedError) and _is_blank(answer, error):
                raise CheckError(_still_blank(check.exercise, error)) from error
            said = f"\nIt printed:\n{printed.getvalue()[-500:]}" if printed.getvalue() else ""
            raise CheckError(
                f"your function raised {type(error).__name__}: {error}\n{_CALL}{said}"
            ) from error


@contextlib.contextmanager
def quietly() -> Iterator[Printed]:
    """Run an answer under the usual settings; prints, warnings and random state stay in here."""
    printed = Printed()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
        _usual_settings(),
    ):
        warnings.simplefilter("ignore")
        yield printed


def _is_blank(answer: Callable[..., Any], error: NotImplementedError) -> bool:
    code = getattr(inspect.unwrap(answer), "__code__", None)  # a decorated one shows its wrapper
    return bool(_BLANK.match(str(error)) or (code and _raises_blank(code)))


def _still_blank(exercise: str, error: NotImplementedError) -> str:
    # A blank says which exercise it is: an answer may call an earlier one that is still blank.
    said = _BLANK.match(str(error))
    blank = said["number"] if said else exercise
    called = "" if blank == exercise else f", and your answer to {exercise} calls it"
    return (
        f"exercise {blank} is still blank{called}: replace the line that raises "
        "NotImplementedError, run that cell, then this one."
    )


def _raises_blank(code: types.CodeType) -> bool:
    # a blank may stand in a function within the function
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return "NotImplementedError" in code.co_names or any(map(_raises_blank, inner))


def plain(value: Any) -> Any:
    """Reduce a value to what may cross between processes: numbers, text, tensors, containers."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()  # as good as Python's own numbers and lists
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu").clone()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(type(value), "__index__"):
        return int(operator.index(value))
    return Opaque(type(value).__name__)
