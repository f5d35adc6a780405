"""The one report of a training step's memory, whoever measured or predicted it."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutorial_lib.memory.timeline import Life, StepMemory
from tutorial_lib.units import Bytes, human_flops, human_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOW = {
    "counted": "counted",
    "predicted": "predicted",
    "emulated": "given by PyTorch's own allocator",
    "allocator": "measured by the allocator",
}
NOT_EMULATED = "not emulated:   values, times, NCCL, cuDNN's workspaces (emulate --cudnn has them)"


class MemoryReport(StepMemory):
    """Memory of one training step: prints as a table, shows as a figure, saves as JSON."""

    def figure(self, *, beside: StepMemory | None = None) -> Figure:
        """Draw the step, bytes by category, on a scale that also fits the step `beside`."""
        from tutorial_lib.plots.memory import step_timeline

        return step_timeline(self, beside=beside)

    def to_json(self, *, timeline: bool = True) -> str:
        """Write the report as JSON; without the timeline it is short."""
        data = asdict(self) | {"seconds": self.seconds}
        if not timeline:
            del data["timeline"]
        return json.dumps(data, indent=1)

    def save(self, path: Path) -> None:
        """Save the report as a JSON file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, text: str) -> MemoryReport:
        """Read a report back from `to_json`'s text."""
        data = json.loads(text)
        data.pop("seconds", None)
        data["timeline"] = [Life(**life) for life in data.get("timeline", [])]
        data["phase_starts"] = [(clock, phase) for clock, phase in data.get("phase_starts", [])]
        return cls(**data)

    def __str__(self) -> str:
        rows = [self._headline()]
        rows += [f"  {name:<16}{size:>10}{share:>7}" for name, size, share in self.rows()]
        by_phase = [f"{phase} {size}" for phase, size in self.phases.items()]
        rows.append(f"  peak by phase:  {', '.join(by_phase)}")
        return "\n".join(rows + self._extras())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td style='text-align:left'>{escape(name)}</td><td>{size}</td><td>{share}</td>"
            "</tr>"
            for name, size, share in self.rows()
        )
        phases = ", ".join(f"{phase} {size}" for phase, size in self.phases.items())
        extras = "".join(f"<br>{escape(line.strip())}" for line in self._extras())
        return (
            f"<b>{escape(self._headline())}</b><table><thead><tr><th style='text-align:left'>"
            f"category</th><th>at the peak</th><th>share</th></tr></thead><tbody>{cells}</tbody>"
            f"</table>peak by phase: {phases}{extras}"
        )

    def _headline(self) -> str:
        what = f"{self.label}: peak" if self.label else "peak"
        during = f" during {self.peak_phase}" if self.peak_phase else ""
        where = f"{HOW.get(self.method, self.method)}, {self.device}"
        return f"{what} {self.peak_bytes}{during} ({where})"

    def rows(self) -> list[tuple[str, str, str]]:
        """Return what is held at the peak: of each category its name, its bytes and its share."""
        return [
            (name.replace("_", " "), str(size), f"{size / self.peak_bytes:.0%}")
            for name, size in self.at_peak.items()
            if size
        ]

    def _extras(self) -> list[str]:
        lines = []
        for name in ("counted", "requested", "reserved", "driver"):
            if (size := getattr(self, f"{name}_bytes")) is not None:
                lines.append(f"  {name + ':':<15} {size}")
        if self.method == "emulated":
            lines.append(f"  {NOT_EMULATED}")
        if self.leaked_bytes:
            largest = max(self.leaks(), key=lambda life: life.num_bytes, default=None)
            made_by = f", the largest made by {largest.op}" if largest else ""
            lines.append(f"  left behind:    {self.leaked_bytes}{made_by}")
        if self.step_peaks:
            least, most = Bytes(min(self.step_peaks)), Bytes(max(self.step_peaks))
            lines.append(f"  peak by step:   {least} to {most}, of {len(self.step_peaks)} steps")
        if self.step_seconds:
            fastest, slowest = min(self.step_seconds), max(self.step_seconds)
            spread = f"{human_seconds(fastest)} to {human_seconds(slowest)}"
            lines.append(f"  seconds a step: {human_seconds(self.seconds or 0)} ({spread})")
        if self.flops is not None:
            lines.append(f"  FLOPs a step:   {human_flops(self.flops)}")
        return lines


def as_data(report: MemoryReport) -> dict[str, Any]:
    """Report as plain data, without its timeline."""
    data: dict[str, Any] = json.loads(report.to_json(timeline=False))
    return data
