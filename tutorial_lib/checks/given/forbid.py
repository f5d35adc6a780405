"""What an exercise forbids, declared on its check, and refused while an answer runs.

A forbidden function keeps its identity and loses its code: whatever name it was imported under,
and whenever, a call of it is refused. A notebook gets the code back when the check is over; the
process of a graded answer never does, and there it is gone before any line of the answer runs.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

METERS = (
    "tutorial_lib.memory.meter",
    "tutorial_lib.instruments.predicting.prediction",
    "tutorial_lib.instruments.cap",
)
LOG = "tutorial_lib.memory.storages:StorageLog"  # what they are made of
# All that the library's solver of plans is made of.
SOLVER = tuple(
    f"tutorial_lib.instruments.planning.chain.{name}"
    for name in ("solve", "costs", "floor", "exact", "nested", "single")
)


@dataclass(frozen=True)
class Forbidden:
    """Functions that an answer may not call, and what the learner reads whose answer does.

    A name is `package.module` for all that a module defines, and `package.module:name` for one
    function, or for all methods of one class.
    """

    message: str
    names: tuple[str, ...]

    @property
    def modules(self) -> list[str]:
        """The modules that are forbidden as a whole."""
        return [name for name in self.names if ":" not in name]


def checkpointing(message: str) -> Forbidden:
    """Forbid PyTorch's checkpoint, and all that it is made of."""
    return Forbidden(message, ("torch.utils.checkpoint",))


def meter(advice: str, names: tuple[str, ...] = (*METERS, LOG)) -> Forbidden:
    """Forbid the meters and predictions of memory, or some of them; advice says what to do."""
    several = "memory.measure, memory.watch, memory.predict and memory.capped count as the oracle"
    return Forbidden(f"{several} does, so your function may not call them. {advice}", names)


def saved(advice: str) -> Forbidden:
    """Forbid `memory.saved`; advice says what to do."""
    message = f"memory.saved is the oracle here, so your function may not call it. {advice}"
    return Forbidden(message, ("tutorial_lib.memory.saved_tensors",))


def own_code(names: tuple[str, ...]) -> Forbidden:
    """Forbid what other checks run and what this exercise asks for."""
    message = "that is the checks' own code for what you write here: your answer may not call it."
    return Forbidden(message, names)


@contextlib.contextmanager
def refused(forbidden: Sequence[Forbidden], error: Callable[[str], Exception]) -> Iterator[None]:
    """Refuse what is forbidden in a block, and at its end again where an answer has caught that."""
    used: list[str] = []
    undo = remove(forbidden, error, used)
    try:
        yield
    finally:
        for put_back in reversed(undo):
            put_back()
    if used:
        raise error(used[0])


def remove(
    forbidden: Sequence[Forbidden], error: Callable[[str], Exception], used: list[str] | None = None
) -> list[Callable[[], None]]:
    """Have everything that is forbidden raise, noting each message in `used`.

    Returns what puts it all back.
    """
    used = [] if used is None else used
    undo = []
    for one in forbidden:
        for name in one.names:
            undo += _emptied(name, functools.partial(_refuse, one.message, error, used))
    return undo


def _refuse(
    message: str, error: Callable[[str], Exception], used: list[str], *_: Any, **__: Any
) -> NoReturn:
    used.append(message)
    raise error(message)


def _emptied(name: str, refuse: Callable[..., NoReturn]) -> list[Callable[[], None]]:
    module_name, _, path = name.partition(":")
    module = importlib.import_module(module_name)
    if not path:
        return [_without_code(f, refuse) for f in _functions_of(module)]
    found = attrgetter(path)(module)
    functions = _functions_in(found, set()) if isinstance(found, type) else _unwrapped(found, set())
    if functions:
        return [_without_code(function, refuse) for function in functions]
    owner, _, last = path.rpartition(".")  # of C: nothing to empty, and no second name for it
    holder = attrgetter(owner)(module) if owner else module
    setattr(holder, last, refuse)
    return [functools.partial(setattr, holder, last, found)]


def _functions_of(module: ModuleType) -> list[FunctionType]:
    found: dict[FunctionType, None] = {}
    seen: set[int] = set()
    for value in vars(module).values():
        if getattr(value, "__module__", None) == module.__name__:
            found |= dict.fromkeys(
                _functions_in(value, seen) if isinstance(value, type) else _unwrapped(value, seen)
            )
    return list(found)


def _functions_in(kind: type, seen: set[int]) -> list[FunctionType]:
    found = [function for value in vars(kind).values() for function in _unwrapped(value, seen)]
    return [f for f in found if f.__module__ == kind.__module__]  # an enum holds Enum's own, too


def _unwrapped(value: Any, seen: set[int]) -> list[FunctionType]:
    """List the functions that a value is made of: a method, a property, a decorated function."""
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, FunctionType):
        home = sys.modules.get(value.__module__)
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        inner = [c for c in cells if sys.modules.get(getattr(c, "__module__", "")) is home]
        return [value, *(f for part in inner for f in _unwrapped(part, seen))]
    parts = [getattr(value, name, None) for name in ("__func__", "__wrapped__", "func", "fget")]
    kinds = (FunctionType, MethodType, functools.partial, staticmethod, classmethod, property)
    return [f for part in parts if isinstance(part, kinds) for f in _unwrapped(part, seen)]


def _is_filled(cell: Any) -> bool:
    with contextlib.suppress(ValueError):
        return cell.cell_contents is not None
    return False


def _without_code(function: FunctionType, refuse: Callable[..., NoReturn]) -> Callable[[], None]:
    def refused_call(*args: Any, _refuse: Any = None, **kwargs: Any) -> None:
        _refuse()

    before = function.__code__, function.__defaults__, function.__kwdefaults__
    code = refused_call.__code__
    _assign(function, code.replace(co_freevars=before[0].co_freevars), None, {"_refuse": refuse})
    return functools.partial(_assign, function, *before)


def _assign(function: FunctionType, code: Any, defaults: Any, kwdefaults: Any) -> None:
    function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, kwdefaults
