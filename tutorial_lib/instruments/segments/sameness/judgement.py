"""The judgement of how recomputing and accumulating change a training, in sentences."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from tutorial_lib import memory
from tutorial_lib.instruments.segments.sameness.batch import Make
from tutorial_lib.instruments.segments.sameness.look import Seen, look
from tutorial_lib.instruments.segments.sameness.trial import Tried, UntriedError, makes_pairs, tried

# A model is tried for real where a forward of two samples takes no more than this. A trial takes as
# long as thirty of them: seconds on a CPU, and below 2 GiB.
MOST_FLOPS, MOST_BYTES = 10**10, 2**28
_LARGE_FLOPS = 3 * 10**8  # in float64 it would take several seconds
_NAMED = 3
_OF_BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")
_AVERAGES = "running averages"
_DROPOUT = ("dropout", "bernoulli", "attention", "rnn", "lstm", "gru")

Training = Literal["exact", "rounding", "redrawn", "untried", "another", "impossible"]
FindStages = Callable[[nn.Module], Mapping[str, nn.Module]]


@dataclass(frozen=True)
class Sameness(Tried):
    """How recomputing and accumulating change a training; prints as one sentence for each."""

    # stages that compute something else when they run again, each with the state that its forward
    # reads and changes
    unlike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # stages that run under `torch.func`, where no checkpoint can run them again
    transformed: tuple[str, ...] = ()
    # state that recomputation changes a second time, but that no gradient depends on
    moved: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()  # state that one micro-batch changes and the next one reads
    draws: tuple[str, ...] = ()  # what draws random numbers: `dropout`, `noise`
    has_batch_norm: bool = False  # whether a layer normalises by statistics of the micro-batch
    # whether something makes a matrix of all pairs of samples; only looked for where samples were
    # not tried
    pairs: bool = False
    untried: str = ""  # why samples were not tried

    @classmethod
    def of(cls, seen: Seen, tried: Tried | None, untried: str = "") -> "Sameness":
        """Combine what was seen and what was tried, or why nothing was tried."""
        return cls(
            **vars(tried or Tried(compares=None)),
            unlike=seen.unlike,
            transformed=seen.transformed,
            moved=seen.moved,
            moves=seen.moves,
            draws=tuple(sorted({*map(_kind, seen.draws)})),
            has_batch_norm=seen.batch_norms > 0,
            untried="" if tried is not None else untried,
        )

    @property
    def recomputed(self) -> Training:
        """How recomputing all stages changes gradients.

        `exact` (not at all), `another`, or `impossible`, where a checkpoint raises.
        """
        if self.transformed:
            return "impossible"
        return "another" if self.unlike else "exact"

    @property
    def accumulated(self) -> Training:
        """How smaller micro-batches change gradients.

        `rounding`, `redrawn` (the same with other random numbers), `another`; or `untried`, where
        samples were not tried and nothing else makes it `another`.
        """
        if any(self._reasons()):
            return "another"
        if self.compares is None:
            return "untried"
        return "redrawn" if self.draws else "rounding"

    @property
    def recomputing(self) -> str:
        """A sentence on recomputing."""
        if self.transformed:
            return (
                f"{_listed(self.transformed)} can't be recomputed: under torch.func and in "
                "forward mode PyTorch's checkpoint raises an error."
            )
        if self.unlike:
            causes = _state(cause for causes in self.unlike.values() for cause in causes)
            return (
                f"Recomputing {_listed(self.unlike)} would change gradients: forward reads what "
                f"it changes ({causes}). A plan keeps them."
            )
        more = f", but moves {_state(self.moved)} a second time" if self.moved else ""
        return f"Recomputing changes no bit of a gradient{more}."

    @property
    def accumulating(self) -> str:
        """A sentence on smaller micro-batches."""
        digits = "Accumulating changes last digits of a gradient"
        if self.draws:
            digits += f", and draws other random numbers ({' and '.join(self.draws)})"
        if self.accumulated == "another":
            return f"A smaller micro-batch changes the training: {'; '.join(self._reasons())}."
        if self.counts:
            return f"{digits}, as long as each micro-batch has as many targets (08b)."
        if self.accumulated == "untried":
            return (
                f"{digits}. Whether samples are compared was not tried, because {self.untried}: "
                "try checks.assert_same_training."
            )
        return f"{digits}."

    def _reasons(self) -> Iterable[str]:
        if self.has_batch_norm:
            yield "BatchNorm takes its statistics from it"
        if self.compares:
            alone = "" if self.alone else ", and one alone has no gradient"
            yield f"the loss or a layer compares its samples{alone}"
        if self.pairs:
            yield "something makes a matrix of all pairs of its samples"
        if self.moves:
            yield f"forward reads what the previous one changed ({_state(self.moves)})"
        if self.sums:
            yield "the loss is a sum over samples, and accumulating takes a mean"

    def __str__(self) -> str:
        return f"{self.recomputing}\n{self.accumulating}"

    def as_data(self) -> dict[str, Any]:
        """Return the fields, both judgements and both sentences as plain data, for JSON."""
        names = ("recomputed", "accumulated", "recomputing", "accumulating")
        return dataclasses.asdict(self) | {name: getattr(self, name) for name in names}


def judge(make: Make, find_stages: FindStages, *, known: Tried | None = None) -> Sameness:
    """Look at a model and its loss: first on tensors without memory, then for real where small.

    `make` returns both for a number of samples, anew at each call; `find_stages` names the modules
    that may be recomputed; `known` is a trial's result where it is known, as of published models.
    """
    untried = ""
    with memory.predicting():
        try:
            loss, model = make(2)
        except ValueError:
            loss, model = make(1)
            untried = "it is made for one micro-batch only"
        held = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
        seen = look(model, loss, find_stages(model), beside_model=known is None)
    too_large = seen.flops > MOST_FLOPS or max(held, seen.made_bytes) > MOST_BYTES
    pairs = False
    if known is None and too_large and not untried:
        untried, pairs = "the model is too large", makes_pairs(make)
    if known is None and not untried:
        is_large = seen.flops > _LARGE_FLOPS
        try:
            known = tried(make, has_state=seen.writes, is_large=is_large)
        except UntriedError as error:
            untried = str(error)
    return dataclasses.replace(Sameness.of(seen, known, untried), pairs=pairs)


def _kind(name: str) -> str:
    return "dropout" if any(word in name for word in _DROPOUT) else "noise"


def _listed(names: Iterable[str]) -> str:
    found = [*dict.fromkeys(names)]
    rest = len(found) - _NAMED
    return ", ".join(found[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _state(names: Iterable[str]) -> str:
    """Name state by its last name; running averages of BatchNorm get one name together."""
    last = [re.split(r"[\[.]", re.sub(r"(\.length|\[.*)$", "", name))[-1] for name in names]
    return _listed(_AVERAGES if name in _OF_BATCH_NORM else name for name in last)
