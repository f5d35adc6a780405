"""What a check works with, noted before any line of an answer runs, and compared afterwards.

An answer can reach every module of its process, and put another function into one. Noted is what
the library's modules define or name: their own functions, those of the modules and classes of
PyTorch and Python that they use, and Python's built-in ones. Where to look is found once, in the
process that forks those of answers.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from torch.optim import Optimizer

from tutorial_lib.checks.given.half import RunHalf
from tutorial_lib.instruments.private_torch.operations import interceptors

EXCHANGED = "exchanged"  # in a result: the first thing that was found to be another
# How a value is shown decides nothing, and torch.Storage follows the default dtype.
_FREE = {"__repr__", "__str__", "showwarning", "Storage"}
_OTHERS = "PyTorch's own operations (a mode that is still on, or a kernel of yours)"
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")  # of a function
_WATCHERS = ("setprofile", "settrace", "monitoring")  # of each call, and of what it returns


Places = tuple[list[tuple[str, Mapping[str, Any], list[str], set[str]]], list[Any]]


class Seal:
    """Notes what stands in `places`; `broken` names what was found to be another later."""

    def __init__(self, where: Places) -> None:
        for name in _WATCHERS:
            vars(sys).pop(name, None)
        package, _, own = __name__.rpartition(".")
        for names, name in ((sys.modules, __name__), (vars(sys.modules[package]), own)):
            names.pop(name, None)  # what is imported anew is another
        called, functions = zip(*where[1], strict=True)
        gets = (functools.partial(map, operator.attrgetter(part)) for part in _PARTS)
        parts = [("", functions, called, set[str](), get, [*get(functions)]) for get in gets]
        self.broken, self.interceptors = "", interceptors()
        self.look = functools.partial(_first_exchanged, [*map(_noted, where[0]), *parts])

    def check(self) -> None:
        """Look once."""
        self.note(self.look(), self.interceptors)

    def note(self, found: str, modes: object) -> None:
        """Keep a finding, or that other modes intercept calls now; the first one is kept."""
        if not self.broken and found:
            self.broken = found
        elif not self.broken and interceptors() != modes:
            self.broken = _OTHERS

    def around(self, answer: Any) -> Any:
        """Look each time that an answer returns; a class is left as it is."""
        if not isinstance(answer, FunctionType):
            return answer

        @functools.wraps(answer)
        def call(*args: Any, **kwargs: Any) -> Any:
            # a meter's mode may be on, and a run half may have made an instrument refuse
            before, modes = self.look(), interceptors()
            returned = answer(*args, **kwargs)
            found = self.look()
            self.note(found if found != before else "", modes)
            return returned

        return call


def places(more: Mapping[str, Any]) -> Places:
    """List where to look: of each module and class its names, and what a new one would hide.

    Args:
        more: A module's names that are to stay as they are, beside those of the library.

    Returns:
        These, and the functions whose code is to stay what it is, by name.
    """
    ours = {name: vars(m) for name, m in sys.modules.items() if _is_ours(name)}
    spaces = {**ours, "the grader": more}
    used = {id(value): value for names in spaces.values() for value in list(names.values())}
    others = [u for u in used.values() if isinstance(u, ModuleType) and not _is_ours(u.__name__)]
    others = [module for module in others if module is not sys]  # libraries set its hooks
    kinds = {kind: None for u in used.values() if isinstance(u, type) for kind in u.__mro__}
    for kind in kinds.keys() - {Optimizer}:
        if issubclass(kind, Optimizer):  # the first one of a kind changes its class
            Optimizer.__setstate__(object.__new__(kind), {"defaults": {}})
    found = [(name, n, [*n], {*vars(builtins)} - {*n}) for name, n in spaces.items()]
    everything: list[Any] = [builtins, *others, *kinds]
    found += [
        (place.__name__, vars(place), _functions(vars(place)), _inherited(place))
        for place in everything
    ]
    functions = [
        (f"{place}.{name}", function)
        for place, names, keys, _ in found
        for name in keys
        for function in _inside(names[name])
    ]
    return found, functions


def _is_ours(name: str) -> bool:
    return name.split(".")[0] == "tutorial_lib"


def _functions(names: Mapping[str, Any]) -> list[str]:
    """Choose what works: the data of others change as they like."""
    works = [n for n, v in names.items() if callable(v) or hasattr(type(v), "__get__")]
    return [name for name in works if name not in _FREE]


def _inherited(place: Any) -> set[str]:
    bases = getattr(place, "__mro__", ())
    return {name for base in bases for name in vars(base)} - {*vars(place)} - _FREE


def _inside(value: Any) -> Iterator[FunctionType]:
    parts: list[Any] = [value.function, value.exam] if isinstance(value, RunHalf) else []
    if isinstance(value, FunctionType | staticmethod | classmethod | property):
        names = ("__wrapped__", "__func__", "fget")
        parts = [value, *(getattr(value, name, None) for name in names)]
    return (part for part in parts if isinstance(part, FunctionType))


def _noted(place: tuple[str, Mapping[str, Any], list[str], set[str]]) -> tuple[Any, ...]:
    """Note a place's values; a name that is gone before any line of an answer is to stay away."""
    name, names, keys, hidden = place
    there = [key for key in keys if key in names]
    get = operator.itemgetter(*there, there[0]) if there else tuple  # of one alone it is no tuple
    values = [*get(names)] if there else []
    return f"{name}.", names, there, {*hidden, *keys} - {*there}, get, values


def _first_exchanged(
    noted: list[Any], kept: Any = (map, all, zip, next, operator.is_, KeyError)
) -> str:
    """Name what is another now; nothing is looked up here that an answer could exchange.

    It goes over ten thousand names several times a case, so its loops are those of Python's own C.
    An object of the answer's own may say that it is equal to anything: only the same one is right.
    """
    map_, all_, zip_, next_, is_, missing = kept
    for place, source, keys, hidden, get, values in noted:
        try:
            if not all_(map_(is_, get(source), values)):
                now = zip_(keys, get(source), values)
                return f"{place}{next_(key for key, new, old in now if not is_(new, old))}"
        except missing as gone:
            return f"{place}{gone.args[0]}"
        if hidden and not source.keys().isdisjoint(hidden):
            return f"{place}{next_(name for name in source.keys() & hidden)}"
    return ""
