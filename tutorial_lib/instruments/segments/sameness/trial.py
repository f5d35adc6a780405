"""A trial for real: whether a micro-batch's gradient is the mean of its samples' own.

Let G be the gradient of a micro-batch. If each sample adds a part of its own, then replacing one
sample changes G in the same way, whatever the others are: for a sample p, others q, and samples p'
and q' in their place, G(p, q) - G(p', q) - G(p, q') + G(p', q') is zero. A loss that divides by a
number that depends on the samples, such as a count of targets, gives each of the four its own
factor. In every other case samples are compared. All four use the same random numbers, and float64.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tutorial_lib import memory
from tutorial_lib.instruments.random_states import keeping_python_random_states
from tutorial_lib.instruments.segments.sameness.batch import (
    SAMPLES,
    Forms,
    Loss,
    Make,
    Shared,
    find_batch,
    freeze_batch_norms,
)

_OTHERS = (5, 4, 6, 7)  # of eight samples, to replace the first four: odd for even
_ROUNDINGS = 32  # in a gradient, of the coarsest type in it
_TYPES = torch.float64, torch.float32
_HALVES = {torch.float16, torch.bfloat16}
_REPLACED = (False, False), (True, False), (False, True), (True, True)


@dataclass(frozen=True)
class Tried:
    """The results of a trial."""

    # whether loss or layers, BatchNorm left out, compare samples; `None` if unknown
    compares: bool | None = False
    counts: bool = False  # whether samples weigh by a count in them, such as their targets
    sums: bool = False  # whether the loss is a sum over samples, not a mean
    alone: bool = True  # whether a micro-batch of one sample has a gradient


class UntriedError(Exception):
    """A trial could not be made; its words say why."""


class _UnclearError(Exception):
    """What was seen may be rounding."""


def tried(make: Make, *, has_state: bool = False, is_large: bool = False) -> Tried:
    """Try a loss with a few samples, for real; a large one in float32 first, which is faster.

    Where forward changes what it keeps (`has_state`), all is made anew for each gradient.

    Raises:
        UntriedError: When the batch isn't found, or the step doesn't repeat itself.
    """
    said = ""
    for dtype in _TYPES[::-1] if is_large else _TYPES:
        try:
            with _undisturbed(dtype):
                return _tried(make, dtype, has_state)
        except UntriedError:
            raise
        except _UnclearError:
            said = said or "one sample's effect on another's gradient may be rounding"
        except Exception as error:  # whatever the user's code raises, such as when it names float32
            said = said or f"it raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    raise UntriedError(said)


def makes_pairs(make: Make) -> bool:
    """Tell, on tensors without memory, whether a loss makes a matrix of all pairs of its samples.

    Such a tensor grows with the samples in two of its dimensions.
    """
    few, more = Forms(), Forms()
    for forms, count in ((few, 2), (more, 3)):
        with memory.predicting():
            loss, _ = make(count)
            with forms:
                loss()
    if len(few.shapes) != len(more.shapes):
        return False
    pairs = zip(few.shapes, more.shapes, strict=True)
    return any(sum(a != b for a, b in zip(*both, strict=False)) > 1 for both in pairs)


def _tried(make: Make, dtype: torch.dtype, has_state: bool) -> Tried:
    some = Loss(make, SAMPLES, has_state)
    more = Loss(make, 2 * SAMPLES, has_state, like=some)
    batch = find_batch(more.outside, some.outside)
    if not batch:
        raise UntriedError("its batch isn't among the tensors that it closes over")
    corners = [_corner(some, more, batch, *which) for which in _REPLACED]
    size = max(float(corner.norm()) for corner in corners)
    if not size:
        raise UntriedError("its gradient is zero")
    effects = [float((corners[0] - corner).norm()) / size for corner in corners[1:3]]
    eps = max(torch.finfo(kind).eps for kind in {dtype, *some.dtypes} - _HALVES)
    allowed = max(_ROUNDINGS * eps, 1e-7 * min(effects))
    if min(effects) < 2 * allowed:
        raise UntriedError("another sample changes next to nothing in its gradient")
    mixed = float((corners[0] - corners[1] - corners[2] + corners[3]).norm()) / size
    if mixed <= allowed:
        return Tried(sums=_is_sum(some, more, batch))
    if _only_weigh(corners, max(allowed, 1e-2 * mixed) * size):
        return Tried(counts=True)
    clear = 0.1 if some.dtypes & _HALVES else 1e-2 if dtype == torch.float32 else 0.0
    if mixed < clear * min(effects):
        raise _UnclearError
    again = _corner(some, more, batch, *_REPLACED[0])
    if float((again - corners[0]).norm()) > allowed * size:
        raise UntriedError("it doesn't repeat itself with the same random numbers")
    return Tried(compares=True, alone=_has_gradient(make, size))


def _corner(some: Loss, more: Loss, batch: Sequence[Shared], first: bool, others: bool) -> Tensor:
    """Return the gradient with the first sample replaced, or the others."""
    for shared in batch:
        rows = more.rows(shared)
        each = len(rows) // (2 * SAMPLES)
        chosen = rows[: SAMPLES * each].clone()
        for row in range(len(chosen)):
            # The rows of a sample follow one another, or are as far apart as there are samples (two
            # views behind each other): what is replaced must be a sample's in both cases.
            sample, offset = divmod(row, each)
            is_first, is_other = not (sample or row % SAMPLES), sample and row % SAMPLES
            if (is_first and first) or (is_other and others):
                chosen[row] = rows[_OTHERS[sample] * each + offset]
        some.put(shared, chosen)
    return some.gradient()


def _is_sum(some: Loss, more: Loss, batch: Sequence[Shared]) -> bool:
    """Tell whether the loss grows with its samples, and one counts as much among twice as many."""
    if abs(more.value) < 2**0.5 * abs(some.value):
        return False
    effects = []
    for trial in (some, more):
        gradients = []
        for is_replaced in (False, True):
            for shared in batch:
                rows = more.rows(shared)
                alike = rows[:1].expand_as(trial.rows(shared)).clone()
                if is_replaced:
                    alike[0] = rows[len(rows) // (2 * SAMPLES)]
                trial.put(shared, alike)
            gradients.append(trial.gradient())
        effects.append(float((gradients[0] - gradients[1]).norm()))
    return effects[0] < 2**0.5 * effects[1]


def _only_weigh(corners: Sequence[Tensor], allowed: float) -> bool:
    """Tell whether four gradients differ from a sum over samples by a factor each.

    Then, with four positive weights, the counts, the gradients add up to zero, and so do the
    weights, with the signs above.
    """
    _, sizes, bases = torch.linalg.svd(torch.stack(list(corners), 1), full_matrices=False)
    weights = bases[-1] * torch.tensor([1.0, -1.0, -1.0, 1.0]).to(bases)
    weights = weights / weights.sum()
    is_sum = abs(float(weights[0] - weights[1] - weights[2] + weights[3])) < 1e-2
    return bool(sizes[-1] < allowed < sizes[-2] and weights.min() > 0 and is_sum)


def _has_gradient(make: Make, size: float) -> bool:
    """Tell whether one sample by itself gives a gradient."""
    loss, model = make(1)
    freeze_batch_norms(model)  # which refuse a single value
    loss().backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return any(float(gradient.abs().max()) > 1e-9 * size for gradient in gradients)


@contextlib.contextmanager
def _undisturbed(dtype: torch.dtype) -> Iterator[None]:
    """Compute in a type, and leave defaults, random states and what is printed as they were."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            keeping_python_random_states(),
            torch.enable_grad(),
            torch.compiler.set_stance("force_eager"),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(before)
