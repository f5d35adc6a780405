"""Programs on an emulated card: run one, and collect what PyTorch's allocator says of it."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.instruments.emulated import build
from tutorial_lib.instruments.emulated.cards import Card
from tutorial_lib.instruments.emulated.verdict import Room, Verdict
from tutorial_lib.units import human_bytes

INSIDE = Path(__file__).parent / "inside"
OUT_OF_MEMORY = 3
OLDEST_CAPABILITY = {"12": 7.0, "13": 7.5}
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
MAX_LINES = 5  # that read values which are not known


@dataclass(frozen=True)
class Emulated:
    """What a program did on an emulated card."""

    card: Card
    status: int  # the program's exit status; negative for the signal that ended it
    # what each process that used the card wrote down, the largest first
    processes: list[dict[str, Any]] = field(default_factory=list)
    refused: str = ""  # what the program asked for that cannot be emulated, or nothing
    silent: int = 0  # processes that used the card and ended without writing anything down

    @property
    def ran_out(self) -> bool:
        """Tell whether the program ended because the card's memory was too small."""
        return self.status != 0 and any(process["out_of_memory"] for process in self.processes)

    @property
    def exit_status(self) -> int:
        """Return the command's exit status: 0, `OUT_OF_MEMORY`, the program's own status, or 2."""
        return self._end()[0]

    @property
    def reason(self) -> str:
        """Say in a sentence why the program ended as it did; nothing when all went well."""
        return self._end()[1]

    def _end(self) -> tuple[int, str]:
        if self.refused:
            return (
                2,
                f"The program asked for {self.refused}, which cannot be emulated: run it without.",
            )
        if self.status < 0:
            sent = signal.Signals(-self.status)
            crash = "a crash means that it uses something that is not emulated, such as CUDA code"
            means = f"{crash} of its own." if sent in CRASHES else "something else stopped it."
            return 2, f"The program was ended by {sent.name}: {means}"
        if self.ran_out:
            return OUT_OF_MEMORY, (
                "The card's memory ran out, by PyTorch's own allocator: see the error above."
            )
        errors = {process["error_after_reading"] for process in self.processes} - {""}
        if self.status and errors:
            return 2, (
                "The program read values that no kernel has made, got zeros, and ended with "
                f"{errors.pop()}: leave out code that uses them, or stop earlier with --steps."
            )
        if self.status:
            return self.status, (
                f"The program ended with status {self.status}: its own error is above. On an "
                "emulated card kernels compute zeros, so leave out code that checks values."
            )
        if self.silent:
            return 0, (
                f"{self.silent} of the processes that used the card were killed before they could "
                "report, so their peaks are not known: run the script without what kills them."
            )
        if not self.processes:
            return 2, (
                "The program never used the card: it must put a tensor on `cuda`, and run in an "
                "environment whose PyTorch was built for CUDA."
            )
        return 0, ""

    def as_data(self) -> dict[str, Any]:
        """Return the result as plain data, for JSON."""
        words: dict[str, Any] = {"card": self.card.name, "memory": self.card.memory}
        words["method"] = "emulated"
        words |= {"context": self.card.context, "exit_status": self.exit_status}
        return {**words, "processes": self.processes}


def emulate(
    command: Sequence[str],
    card: Card,
    torch: build.CudaTorch,
    *,
    steps: int | None = None,
    snapshot: Path | None = None,
    watch: bool = True,
    cudnn: bool = False,
) -> Emulated:
    """Run a program with the card preloaded; its output goes where ours goes.

    Args:
        command: The program and its arguments. `python` is that of the environment of `torch`.
        card: Which card.
        torch: The PyTorch that the program will import.
        steps: Stop the program after so many optimizer steps.
        snapshot: Where to keep the allocator's snapshot, for PyTorch's memory viewer.
        watch: Whether to write down peaks and their moment; a program that reads its own peaks
            is faster without.
        cudnn: Whether to ask cuDNN which engines it would choose for convolutions, and which
            workspaces they need; else these are 0, as in a prediction.

    Raises:
        ValueError: When the card cannot be built, or there is no such program.
    """
    if float(card.capability) < OLDEST_CAPABILITY[torch.cuda]:
        raise ValueError(
            f"PyTorch for CUDA {torch.cuda} has no kernels for a {card.name} (capability "
            f"{card.capability}): it cannot be emulated. `predict --fits` and `plan --budget` know "
            "its memory."
        )
    library = build.make_library(torch)
    with tempfile.TemporaryDirectory(prefix="emulated-") as out:
        environment = _environment(card, torch, library, Path(out))
        environment["TUTORIAL_EMULATED_STEPS"] = str(steps or "")
        environment["TUTORIAL_EMULATED_SNAPSHOT"] = "1" if snapshot else ""
        environment["TUTORIAL_EMULATED_WATCH"] = "1" if watch else ""
        environment["TUTORIAL_EMULATED_CUDNN"] = "1" if cudnn else ""
        others = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(INSIDE), others]))
        program = shutil.which(command[0], path=environment["PATH"])
        if program is None:
            raise ValueError(f"There is no program {command[0]!r}: check what follows the `--`.")
        status = _wait([program, *command[1:]], environment)
        return _collect(card, status, Path(out), snapshot)


def _environment(card: Card, torch: build.CudaTorch, library: Path, out: Path) -> dict[str, str]:
    programs = torch.packages.parents[2] / "bin"
    preloaded = [str(library / name) for name in (build.LIBRARY, build.NVML)]
    paths = {
        "PATH": [str(programs), os.environ.get("PATH", os.defpath)],
        "LD_PRELOAD": [*preloaded, os.environ.get("LD_PRELOAD", "")],
    }
    joined = {name: os.pathsep.join(filter(None, parts)) for name, parts in paths.items()}
    variables = {
        "CUDA_VISIBLE_DEVICES": "0",  # even if real GPUs are hidden
        "TUTORIAL_EMULATED_CARD": card.as_text(),
        "TUTORIAL_EMULATED_OUT": str(out),
        "TRITON_LIBCUDA_PATH": str(library),
    }
    return {**os.environ, **joined, **variables}


def _wait(command: list[str], environment: dict[str, str]) -> int:
    with subprocess.Popen(command, env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # Ctrl-C reached the program too: wait for its report
                continue


def _collect(card: Card, status: int, out: Path, snapshot: Path | None) -> Emulated:
    paths = sorted(out.glob("*.json"))
    found = [(json.loads(path.read_text(encoding="utf-8")), path) for path in paths]
    found.sort(key=lambda pair: pair[0]["peaks"]["reserved"], reverse=True)
    if snapshot and found:
        shutil.copyfile(found[0][1].with_suffix(".pickle"), snapshot)
    refused = out / "refused"
    word = refused.read_text(encoding="utf-8") if status and refused.exists() else ""
    silent = len([*out.glob("*.used")]) - len(found)
    return Emulated(card, status, [process for process, _ in found], word, silent)


def as_text(result: Emulated) -> str:
    """Write what was found of the largest process, one fact a line, or why nothing was."""
    if not result.processes:
        return result.reason
    process = result.processes[0]
    size = human_bytes(result.card.memory)
    lines = [f"emulated {result.card.name} ({size}), torch {process['torch']}: no kernel ran"]
    lines += [f"  {kind} peak  {human_bytes(size)}" for kind, size in process["peaks"].items()]
    lines += [*_moment(process), f"  optimizer steps  {process['updates']}"]
    if not result.status:
        peaks, room = process["peaks"], Room(result.card.free, result.card)
        lines.append(str(Verdict(peaks["allocated"], room, peaks["reserved"])))
    elif result.ran_out:
        lines.append("fits: no")
    if (count := len(result.processes)) > 1:
        lines.append(f"  processes on a card of their own  {count}, the largest shown")
    return "\n".join(filter(None, [*lines, *_unknown_reads(process), result.reason]))


def _unknown_reads(process: dict[str, Any]) -> list[str]:
    """Name the lines that may have decided by a value that is not known on an emulated card."""
    lines = process["unknown_reads"]
    if not lines:
        return []
    first = ["  read by these lines, but unknown here, and given as 0 or False:"]
    shown = [f"    {line or 'a kernel, in backward'} ({n} times)" for line, n in lines.items()]
    more = [f"    and {len(shown) - MAX_LINES} more lines"] if len(shown) > MAX_LINES else []
    return [*first, *shown[:MAX_LINES], *more, "  On a real card they may decide otherwise."]


def _moment(process: dict[str, Any]) -> list[str]:
    moment = process["moment"]
    if moment is None:
        return ["  moment of the peak  unknown: too many allocations came after it"]
    lines = [f"  moment of the peak  update {moment['update']}, {moment['phase']}"]
    words = [text for text in (moment["line"], moment["caller"]) if text]
    return lines + ([f"  line  {', called from '.join(words)}"] if words else [])
