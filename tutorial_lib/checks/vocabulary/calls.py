"""The arguments with which a check calls an answer, so that a learner can make the call as well."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.given.settings import quietly
from tutorial_lib.checks.given.values import Case
from tutorial_lib.checks.vocabulary.exercise import Exercise


@dataclass(frozen=True)
class Call:
    """One call of an answer, with its arguments."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Call a function with these arguments."""
        return function(*self.args, **self.kwargs)

    def __repr__(self) -> str:
        """List the arguments: of tensors the type and shape, of modules and functions the name."""
        words = [_described(value) for value in self.args]
        words += [f"{name}={_described(value)}" for name, value in self.kwargs.items()]
        return f"called with ({', '.join(words)})"


def exercises_of(lab: str) -> dict[str, Any]:
    """Return the names of a lab's package: its exercises, and `case`, which returns their calls."""
    folder = importlib.import_module(lab).__path__
    names = sorted(m.name for m in pkgutil.iter_modules(folder) if m.name.startswith("ex"))
    modules = [importlib.import_module(f"{lab}.{name}") for name in names]
    values = {name: value for module in modules for name, value in vars(module).items()}
    exercises = {name: value for name, value in values.items() if isinstance(value, Exercise)}
    return {**exercises, "__all__": [*exercises], "case": case_of([*exercises.values()])}


def case_of(exercises: list[Exercise]) -> Callable[..., Call]:
    """Make the function `case` of a lab's checks."""

    def case(exercise: str, number: int = 0, *, seed: int = 0) -> Call:
        """Return the arguments with which an exercise's check first calls the answer.

        Args:
            exercise: As in `3.1`.
            number: Which of its cases, from 0 on.
            seed: What the cases are drawn from; 0 in a notebook.

        Raises:
            ValueError: When there is no such exercise or case.
        """
        checks = {check.exercise: check for check in exercises}
        if exercise not in checks:
            raise ValueError(f"exercise {exercise!r} has no check: try {', '.join(checks)}.")
        cases = checks[exercise].cases(seed)
        if not 0 <= number < len(cases):
            raise ValueError(f"number (={number}) must be from 0 to {len(cases) - 1}.")
        return _first_call(checks[exercise], cases[number])

    return case


class _CalledError(BaseException):
    """Ends the run of a check at the answer's first call, past any `except Exception`."""


class _Recorder:
    """Stands where the answer was: a function, or a Function with `apply`."""

    def __init__(self) -> None:
        self.call: Call | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.call = self.call or Call(args, kwargs)
        raise _CalledError

    apply = __call__


def _first_call(check: Exercise, case: Case) -> Call:
    recorder = _Recorder()
    with quietly():
        try:
            check.again(recorder, case)
        except (_CalledError, Exception):
            if recorder.call is None:
                raise
    if recorder.call is None:
        raise ValueError(f"the check of exercise {check.exercise} calls nothing in that case.")
    return recorder.call


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, nn.Module):
        return type(value).__name__
    if isinstance(value, list | tuple):
        long = len(value) > 3 and not all(isinstance(item, str | int | float) for item in value)
        shown = [_described(item) for item in (value[:2] if long else value)]
        return f"[{', '.join([*shown, f'... {len(value)} in all'] if long else shown)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_described(item)}' for key, item in value.items())}}}"
    plain = value is None or isinstance(value, str | int | float | torch.dtype | torch.device)
    return repr(value) if plain else getattr(value, "__name__", type(value).__name__)
