"""A training step's memory as data: the life of every storage, the peak, the phases.

Figures draw it; `memory.MemoryReport` is this, printed, drawn and saved.
"""

import itertools
import statistics
from dataclasses import dataclass, field
from typing import Any

from tutorial_lib.units import Bytes

CATEGORIES = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer_state",
    "activations",
    "recomputed",
    "temporary",
    "inputs",
    "other",
)
PHASES = ("forward", "backward", "optimizer", "zero")


@dataclass(frozen=True, slots=True)
class Life:
    """One storage's life; times are ticks, one for each operation that made a storage."""

    num_bytes: int  # size of the storage
    born: int  # tick at which it was made; 0 for what was there before
    died: int | None  # last tick at which it was there; None when it outlived the step
    category: str  # one of `CATEGORIES`
    phase: str  # phase of the step in which it was born
    op: str  # name of the operation that made it; empty for what was there before
    # path of the module that was running; of a gradient or a state, that of the parameter's
    # module
    module: str
    line: str = ""  # file and line that made it, where that was asked for


@dataclass
class StepMemory:
    """Memory of one training step: its peak, by category and by phase, and how it came about.

    All numbers of bytes are `units.Bytes`, which print themselves as text, as in ``1.50 GiB``.
    """

    label: str = ""  # what was measured, in the caller's words
    peak_bytes: int = 0  # most bytes held at once, whatever was there before included
    peak_phase: str = ""  # phase in which that was
    # bytes by category at that moment; they sum to `peak_bytes`
    at_peak: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0))
    # most bytes held at once in each phase that occurred
    phases: dict[str, int] = field(default_factory=dict)
    # most bytes of activations, recomputed ones included, held at once: what checkpointing
    # is to lower
    activation_bytes: int = 0
    baseline_bytes: int = 0  # bytes there before the step: parameters, optimizer state and the like
    leaked_bytes: int = 0  # bytes of the step that outlived it and are neither gradient nor state
    timeline: list[Life] = field(default_factory=list)  # every storage's life
    # tick and name of each phase, in order
    phase_starts: list[tuple[int, str]] = field(default_factory=list)
    # time of each timed run; none where none was asked for
    step_seconds: list[float] = field(default_factory=list)
    # most bytes held in each step, where several were measured
    step_peaks: list[int] = field(default_factory=list)
    flops: int | None = None  # floating-point operations of one step, counted in a run of their own
    # `counted` (exact, from tensors), `allocator` (CUDA's own peak), `emulated` (the same
    # allocator on a card that is not there) or `predicted`
    method: str = "counted"
    device: str = "CPU"  # words for the device
    versions: dict[str, str] = field(default_factory=dict)  # Python, torch and the like
    counted_bytes: int | None = None  # on CUDA, the peak that the tensors alone account for
    # on CUDA, the peak of what was asked of the allocator, before rounding
    requested_bytes: int | None = None
    reserved_bytes: int | None = None  # on CUDA, the most that the allocator held of the driver
    # on CUDA, what the driver said was in use after the step, by every process and with
    # CUDA's own context: the figure of nvidia-smi
    driver_bytes: int | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep numbers of bytes as `Bytes`, whoever fills them in."""
        if name in ("at_peak", "phases"):
            value = {key: Bytes(size) for key, size in value.items()}
        elif name.endswith("_bytes") and value is not None:
            value = Bytes(value)
        object.__setattr__(self, name, value)

    @property
    def seconds(self) -> float | None:
        """Median time of one step, or None where none was timed."""
        return statistics.median(self.step_seconds) if self.step_seconds else None

    @property
    def forward_backward_bytes(self) -> int:
        """Most bytes held in forward and backward: what checkpointing can lower."""
        return max(self.phases.get("forward", 0), self.phases.get("backward", 0))

    def curve(self) -> list[dict[str, int]]:
        """Bytes held at each tick, by category.

        Returns:
            One dict a tick, from 0 on.
        """
        clocks = [begin for begin, _ in self.phase_starts]
        for life in self.timeline:
            clocks += [life.born] if life.died is None else [life.born, life.died]
        last = max(clocks, default=0)
        changes = [dict.fromkeys(CATEGORIES, 0) for _ in range(last + 2)]
        for life in self.timeline:
            changes[life.born][life.category] += life.num_bytes
            if life.died is not None:
                changes[life.died + 1][life.category] -= life.num_bytes
        for before, now in itertools.pairwise(changes):
            for category in CATEGORIES:
                now[category] += before[category]
        return changes[:-1]

    def by(self, key: str, *, depth: int | None = None) -> dict[str, Bytes]:
        """Add up what is held at the peak by `module`, `line`, `op`, `category` or `phase`.

        Args:
            key: Which of them. Lines are known where the step was measured with `lines=True`.
            depth: Of a module's path, so many names are kept: 2 of `blocks.0.mlp` are `blocks.0`.

        Returns:
            From each name to its bytes, the largest first. What no module or line made is named
            after its phase, as in `(backward)`, or `(before the step)`.

        Raises:
            ValueError: When lines are asked for and were not noted.
        """
        if key == "line" and self.timeline and not any(life.line for life in self.timeline):
            raise ValueError("No lines were noted: measure with lines=True.")
        totals = [sum(point.values()) for point in self.curve()]
        moment = totals.index(max(totals))
        sums: dict[str, Bytes] = {}
        for life in self.timeline:
            if life.born <= moment and (life.died is None or moment <= life.died):
                name = str(getattr(life, key))
                name = ".".join(name.split(".")[:depth]) if key == "module" else name
                name = name or (f"({life.phase})" if life.born else "(before the step)")
                sums[name] = sums.get(name, Bytes(0)) + life.num_bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def leaks(self) -> list[Life]:
        """List what the step made, that lives on, and that is neither gradient nor state."""
        made = ("activations", "recomputed", "temporary")
        return [life for life in self.timeline if life.died is None and life.category in made]


def summarise(report: StepMemory) -> None:
    """Fill in peak, categories and phases from the report's own timeline."""
    curve = report.curve()
    totals = [sum(point.values()) for point in curve]
    ends = [begin for begin, _ in report.phase_starts[1:]] + [len(totals)]
    spans = [
        (phase, totals[begin:end])
        for (begin, phase), end in zip(report.phase_starts, ends, strict=True)
        # The log opens in "zero": when the step begins at once, that is no phase of it.
        if (begin, end) != (0, 1)
    ]
    report.phases = {
        phase: max(max(span) for name, span in spans if name == phase and span)
        for phase in PHASES
        if any(name == phase and span for name, span in spans)
    }
    moment = totals.index(max(totals))
    report.peak_bytes, report.at_peak = totals[moment], curve[moment]
    report.peak_phase = next(p for begin, p in reversed(report.phase_starts) if begin <= moment)
    report.activation_bytes = max(point["activations"] + point["recomputed"] for point in curve)
    report.baseline_bytes = totals[0]
    report.leaked_bytes = sum(life.num_bytes for life in report.leaks())
