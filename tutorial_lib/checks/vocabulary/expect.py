"""Compare an answer's results with the right ones, and name the fault that explains a difference.

A fault is a pair: what to tell the learner, and the value that this fault gives. Faults come as an
iterable, best from a generator function: then none is computed where the value is right.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.given.surroundings import MESSAGES
from tutorial_lib.checks.given.values import CheckError, Result
from tutorial_lib.checks.vocabulary import read

EXACT = 1e-12  # relative, for sums of the same terms in another order, in float64
Faults = Iterable[tuple[str, Any]]
_MOST_NUMBERS = 10  # in an error


def relative_error(seen: Any, wanted: Any) -> float:
    """Return the relative difference of two numbers, two tensors (in norm) or two lists of tensors.

    Args:
        seen: A value of the kind of `wanted`, or None in the place of a tensor.
        wanted: What it is compared with. A list may hold None where no tensor is wanted.

    Returns:
        The largest of a list; 1 where a tensor is missing or has another shape; inf for nan (no
        comparison with a nan is true, so it would pass) and for any difference from 0.
    """
    if isinstance(wanted, Sequence):
        pairs = zip(seen, wanted, strict=True)
        return max((relative_error(s, w) for s, w in pairs), default=0.0)
    if wanted is None or seen is None:
        return float(seen is not wanted)
    if isinstance(wanted, Tensor):
        if seen.shape != wanted.shape:
            return 1.0
        difference, size = float((seen - wanted).norm()), float(wanted.norm())
        if torch.equal(seen, wanted):
            return 0.0
    else:
        difference, size = abs(seen - wanted), abs(wanted)
        if seen == wanted:
            return 0.0
    error = difference / size if size else math.inf
    return error if math.isfinite(error) else math.inf


def is_close(seen: Any, wanted: Any, tolerance: float = EXACT) -> bool:
    """Tell whether two values are one, to a relative tolerance."""
    return relative_error(seen, wanted) <= tolerance


def same_bits(one: Any, other: Any) -> bool:
    """Tell whether two are tensors of one dtype and shape, with the same bits, or both None."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is None and other is None
    return one.dtype == other.dtype and torch.equal(one, other)


def close(
    seen: Any,
    wanted: Any,
    faults: Faults = (),
    *,
    otherwise: str | Callable[[], str],
    tolerance: float = EXACT,
    fault_tolerance: float | None = None,
    where: str = "",
) -> None:
    """Expect a number, a tensor or a list of tensors; name the first fault that fits.

    Args:
        seen: Of the kind of `wanted`.
        wanted: What is right.
        faults: Looked at only where the value is wrong, one after the other.
        otherwise: What to say when it is none of them.
        tolerance: Relative difference allowed.
        fault_tolerance: The same between `seen` and a fault; None for the same number.
        where: Begins every message.
    """
    if is_close(seen, wanted, tolerance):
        return
    near = tolerance if fault_tolerance is None else fault_tolerance
    for words, value in faults:
        if is_close(seen, value, near):
            raise CheckError(f"{where}{words}")
    raise CheckError(f"{where}{otherwise if isinstance(otherwise, str) else otherwise()}")


@contextlib.contextmanager
def about(where: str) -> Iterator[None]:
    """Begin every message of a block with words that say which part of a case it is about."""
    try:
        yield
    except CheckError as error:
        error.args = (f"{where}{error}",)
        raise


def fact(is_so: bool, words: str) -> None:
    """Expect that something is so; otherwise raise a CheckError with these words."""
    if not is_so:
        raise CheckError(words)


def no_fault(faults: Mapping[str, bool]) -> None:
    """Expect that no fault is there: each comes as words, and whether it is there."""
    for words, is_there in faults.items():
        fact(not is_there, words)


def unchanged(result: Result, messages: Mapping[str, str] = MESSAGES) -> None:
    """Expect that nothing was found changed; messages are other words for some of `MESSAGES`."""
    for name in changes(result):
        raise CheckError(messages.get(name, MESSAGES[name]))


def changes(result: Result) -> list[str]:
    """Read the names of the found changes from a result."""
    names = result.get("changed")
    if isinstance(names, list) and all(isinstance(n, str) and n in MESSAGES for n in names):
        return names
    raise CheckError(f"changed: a list of names is wanted, but {type(names).__name__} came.")


def refuses(said: Any, kind: type[Exception], reason: str, names: Sequence[int | str] = ()) -> None:
    """Expect that an answer raised a certain error, and that its text names certain things.

    Args:
        said: The error's name and text, empty for none, as from `observe.error_said`.
        kind: What is wanted.
        reason: Why, which begins the message.
        names: What the text must hold: whole numbers, with commas or without, or text.
    """
    text = str(said)
    numbers = [*map(str, numbers_named(text)), *re.findall(r"\d+", text)]
    is_named = [str(n) in (numbers if isinstance(n, int) else text.lower()) for n in names]
    if not text.startswith(kind.__name__) or not all(is_named):
        named = f" that names {' and '.join(dict.fromkeys(map(str, names)))}" if names else ""
        came = f"this came: {text[:200]!r}" if text else "it went through"
        raise CheckError(f"{reason}, but {came}: a {kind.__name__}{named} is wanted.")


def numbers_named(said: str) -> set[int]:
    """Return the whole numbers that an error names, with commas or without; too many are refused.

    An error that names every number there is names none.
    """
    found = re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d)[,_](?=\d)", "", said))
    fact(
        len(found) <= _MOST_NUMBERS,
        f"the error has {len(found)} numbers, and says {said[:120]!r} ...: name only those that "
        f"matter. {_MOST_NUMBERS} are enough to say what came, and what would do.",
    )
    return {int(number) for number in found if "." not in number}


def number_of_bytes(seen: Any, wanted: int, name: str, faults: Faults = ()) -> None:
    """Expect the meter's number of bytes, exactly. No message contains the right number."""
    found = read.integer(seen, name)
    side = "more" if found > wanted else "less"
    close(
        found,
        wanted,
        ((f"{found:,} is not what the meter counts. {words}", number) for words, number in faults),
        otherwise=f"{found:,} is {side} than the meter counts, and is none of the usual faults. "
        "Take the case apart by hand, one tensor at a time.",
        tolerance=0,
        where=f"{name}: ",
    )


def loss(seen: Any, wanted: float, faults: Faults = ()) -> None:
    """Expect the loss that the update minimised, as a float, to 1e-6: people read it."""
    found = read.number(seen, "the loss")
    if math.isnan(found):
        raise CheckError(
            "the gradient is right, but the loss returned is nan: is there a mean over nothing? A "
            "sum of nothing is 0."
        )
    close(
        found,
        wanted,
        ((f"the loss returned is wrong: {words}", fault) for words, fault in faults),
        otherwise=f"the gradient is right, but the loss returned is {found / wanted:.7g} times "
        "that of the whole window: return what the update minimised.",
        tolerance=1e-6,
    )
