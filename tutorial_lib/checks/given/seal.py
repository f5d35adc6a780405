"""What a check measures with: noted before any line of an answer runs, and compared afterwards.

An answer can reach every module of its process, and exchange a function for one that says something
else. Noted is all that the library's modules define or use: their own functions, and those of the
modules and classes of PyTorch and Python that they name.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from torch.optim import Optimizer

from tutorial_lib.checks.given.half import RunHalf

EXCHANGED = "exchanged"  # in a result: the first thing that was found to be another
_SHOWS = {"__repr__", "__str__"}  # how a value is shown decides nothing
_WATCHERS = ("setprofile", "settrace")  # they see what a run half returns, and may change it


class Seal:
    """Notes what is there when it is made, and keeps in `broken` what is another later.

    From then on no code can watch each call of this process.

    Args:
        more: A module's names that are to stay as they are, beside those of the library.
    """

    def __init__(self, more: Mapping[str, Any]) -> None:
        for name in _WATCHERS:
            setattr(sys, name, _refuse)
        if hasattr(sys, "monitoring"):  # from Python 3.12 on
            sys.monitoring.use_tool_id = _refuse
        self.broken = ""
        self.look = functools.partial(_first_exchanged, *_noted(more))

    def check(self) -> None:
        """Look once; the first finding is kept."""
        self.broken = self.broken or self.look()

    def around(self, answer: Any) -> Any:
        """Look each time that an answer returns; a class is left as it is."""
        if not isinstance(answer, FunctionType):
            return answer

        @functools.wraps(answer)
        def call(*args: Any, **kwargs: Any) -> Any:
            returned = answer(*args, **kwargs)
            self.check()
            return returned

        return call


def _noted(more: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    ours = {name: vars(module) for name, module in sys.modules.items() if _is_ours(name)}
    spaces = {**ours, "the grader": more}
    used = {id(value): value for names in spaces.values() for value in list(names.values())}
    kinds = {id(k): k for u in used.values() if isinstance(u, type) for k in u.__mro__}
    for kind in {*kinds.values()} - {Optimizer}:
        if issubclass(kind, Optimizer):  # the first one of a kind changes its class
            Optimizer.__setstate__(object.__new__(kind), {"defaults": {}})
    theirs = [u for u in used.values() if isinstance(u, ModuleType) and not _is_ours(u.__name__)]
    noted = [(name, names, dict(names)) for name, names in spaces.items()]
    # of others only what works: their data change as they like
    noted += [
        (getattr(place, "__name__", ""), vars(place), _working(vars(place)))
        for place in (builtins, *theirs, *kinds.values())
    ]
    functions = [
        (f"{place}.{name}", function, _code(function))
        for place, _, values in noted
        for name, value in values.items()
        for function in _functions_in(value)
    ]
    hidden = [(name, names, {*vars(builtins)} - {*names}) for name, names in spaces.items()]
    hidden += [
        (kind.__name__, vars(kind), _inherited(kind) - {*vars(kind)} - _SHOWS)
        for kind in kinds.values()
    ]
    return noted, functions, hidden


def _is_ours(name: str) -> bool:
    return name.split(".")[0] == "tutorial_lib"


def _inherited(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name in vars(base)}


def _working(names: Mapping[str, Any]) -> dict[str, Any]:
    works = {n: v for n, v in names.items() if callable(v) or hasattr(type(v), "__get__")}
    return {name: value for name, value in works.items() if name not in _SHOWS}


def _functions_in(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, RunHalf):
        yield from (f for f in (value.function, value.exam) if isinstance(f, FunctionType))
    if isinstance(value, FunctionType | staticmethod | classmethod | property):
        inside = (getattr(value, name, None) for name in ("__wrapped__", "__func__", "fget"))
        yield from (f for f in (value, *inside) if isinstance(f, FunctionType))


def _code(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _first_exchanged(
    noted: list[Any], functions: list[Any], hidden: list[Any], gone: object = object()
) -> str:
    """Name what is another now; nothing is looked up here that an answer could exchange."""
    for place, names, values in noted:
        for name, value in values.items():
            if names.get(name, gone) is not value:
                return f"{place}.{name}"
    for name, function, (code, defaults, keywords) in functions:
        if function.__code__ is not code or function.__defaults__ is not defaults:
            return f"{name}"
        if function.__kwdefaults__ is not keywords:
            return f"{name}"
    for place, names, others in hidden:  # a new name before a built-in one, or an inherited one
        for name in names.keys() & others:
            return f"{place}.{name}"
    return ""


def _refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError("no code may watch each call while an answer is graded: leave it out.")
