"""Peaks of PyTorch's allocator, noted inside a program on an emulated card.

Standard library only: it runs inside a program that knows nothing of this course. What to do
stands in variables that `tutorial_lib.instruments.emulated.run` sets.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import json
import linecache
import os
import site
import sys
import sysconfig
import time
import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_FOLDER = str(Path(__file__).resolve().parent)
MAX_EVENTS = 100_000
KINDS = ("requested", "allocated", "reserved")
# What ends a program whatever the card's values are.
NOT_OF_VALUES = (OSError, ImportError, NameError, AttributeError, TypeError, KeyboardInterrupt)
OF_PLACES_OR_TYPES = ("same device", "expected device", "Input type (", "same dtype")


def install() -> None:
    """Wait for the program to import PyTorch."""
    if os.environ.get("TUTORIAL_EMULATED_OUT"):
        sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds `torch`, and starts the watcher as soon as it is imported, not only looked for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            run = loader.exec_module

            def run_and_watch(module: Any) -> None:
                sys.meta_path.remove(self)
                run(module)
                Watcher(module).start()

            loader.exec_module = run_and_watch  # type: ignore[method-assign]
        return spec


def _load(path: Path) -> Any:
    """Load a module by its path: the program may have no course to import it from."""
    spec = importlib.util.spec_from_file_location(f"tutorial_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Watcher:
    """Counts optimizer steps, keeps the highest peaks, and reports when the program ends."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        library = Path(_FOLDER).parents[2]
        self.allocator = _load(library / "memory" / "private_torch.py")
        self.private = _load(library / "instruments" / "private_torch" / "emulated_card.py")
        self.out = Path(os.environ["TUTORIAL_EMULATED_OUT"])
        self.last_step = int(os.environ.get("TUTORIAL_EMULATED_STEPS") or 0)
        self.wants_snapshot = bool(os.environ.get("TUTORIAL_EMULATED_SNAPSHOT"))
        self.process = os.getpid()
        self.step_times: list[float] = []
        self.peaks = dict.fromkeys(KINDS, 0)
        self.values: Any = None
        self.unknown_reads: dict[str, int] = {}  # how often each line read one

    def start(self) -> None:
        """Begin to watch; the allocator's own record starts together with the card."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if not self.private.built_for_cuda():
            return
        self.private.once_cuda_starts(self._know_values)
        if not os.environ.get("TUTORIAL_EMULATED_WATCH"):
            return
        self.private.once_cuda_starts(self._record)
        register_optimizer_step_post_hook(self._count_step)
        self.private.before_each_peak_reset(self._read_peaks)
        atexit.register(self._report)

    def _know_values(self) -> None:
        if not hasattr(self.torch.library, "get_kernel"):  # before 2.9: all that is read is zeros
            return
        following = _load(Path(_FOLDER) / "known_values.py")
        kernels = self.private.kernels_of_cuda()
        self.values = following.KnownValues(self.torch, kernels, self._note_read)
        atexit.register(self.values.stop)

    def _note_read(self, is_number: bool) -> None:
        """Note the line that reads a value; of a number only where the line asks about it."""
        stack = [(frame.f_code, line) for frame, line in traceback.walk_stack(None)]
        frames: list[dict[str, Any]] = [
            {"filename": code.co_filename, "name": code.co_name, "line": line}
            for code, line in stack
        ]
        seen = _frames({"frames": frames})
        if is_number and not _asks(next(filter(_is_outside, seen), None)):
            return
        if any(frame["filename"].endswith("/torch/_tensor_str.py") for frame in frames):
            return  # a tensor is printed
        line = ", called from ".join(filter(None, _lines(seen)))
        self.unknown_reads[line] = self.unknown_reads.get(line, 0) + 1

    def _record(self) -> None:
        (self.out / f"{self.process}.used").touch()  # in case that no report follows
        self.allocator.record_allocations(
            enabled="all", context="alloc", stacks="python", max_entries=MAX_EVENTS
        )

    def _count_step(self, *unused: Any) -> None:
        self.step_times.append(time.time())
        if len(self.step_times) == self.last_step:
            raise SystemExit(0)

    def _read_peaks(self) -> dict[str, int]:
        stats: dict[str, int] = self.torch.cuda.memory_stats()
        for kind in KINDS:
            self.peaks[kind] = max(self.peaks[kind], stats.get(f"{kind}_bytes.all.peak", 0))
        return stats

    def _report(self) -> None:
        if not self.torch.cuda.is_initialized() or os.getpid() != self.process:
            return  # never used, or a forked child of the program
        stats = self._read_peaks()
        events = self.private.recorded_allocations()
        moment = describe_peak(events, stats["requested_bytes.all.current"], self.step_times)
        if moment is not None and moment["bytes"] != self.peaks["requested"]:
            moment = None  # before the events that are kept
        data = {
            "program": " ".join(sys.orig_argv[1:]),
            "torch": self.torch.__version__,
            "peaks": self.peaks,
            "updates": len(self.step_times),
            "out_of_memory": stats.get("num_ooms", 0),
            "moment": moment,
            "error_after_reading": self._error_after_reading(),
            "unknown_reads": self.unknown_reads,
        }
        path = self.out / f"{self.process}.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        if self.wants_snapshot:
            self.allocator.write_snapshot(str(path.with_suffix(".pickle")))

    def _error_after_reading(self) -> str:
        """Name the error that ended the program, where zeros that it read may be the cause."""
        error = getattr(sys, "last_type", None)
        said = str(getattr(sys, "last_value", ""))
        of_places = any(words in said for words in OF_PLACES_OR_TYPES)
        if error is None or issubclass(error, NOT_OF_VALUES) or of_places:
            return ""
        return error.__name__ if self.values is None or self.values.zeros_read else ""


def describe_peak(
    events: list[dict[str, Any]], bytes_at_end: int, step_times: list[float]
) -> dict[str, Any] | None:
    """Find when and where the requested bytes were highest; None without any allocation.

    The beginning of PyTorch's record may be lost, so it is read from what is held at the end.
    `step_times` are the ends of optimizer steps, in seconds since the epoch.
    """
    sign = {"alloc": 1, "free_completed": -1}
    held, peak, at = bytes_at_end, -1, None
    for number in range(len(events) - 1, -1, -1):  # backwards: only the end is known
        event = events[number]
        if event["action"] == "alloc" and held >= peak:
            peak, at = held, number
        held -= sign.get(event["action"], 0) * event["size"]
    if at is None:
        return None
    line, caller = _lines(_frames_near(events, at))
    done = sum(when * 1e6 <= events[at]["time_us"] for when in step_times)
    phase = _phase(_frames(events[at]))
    return {"bytes": peak, "update": done + 1, "phase": phase, "line": line, "caller": caller}


def _phase(frames: list[dict[str, Any]]) -> str:
    """Name the phase by the files that Python was in; autograd's own thread has no frames."""
    files = [frame["filename"].replace("\\", "/") for frame in frames]
    if any("/torch/optim/" in file for file in files):
        return "optimizer step"
    if any("/torch/autograd/" in file for file in files) or not files:
        return "backward"
    in_checkpoint = any(file.endswith("/torch/utils/checkpoint.py") for file in files)
    names = {frame["name"] for frame in frames}
    if in_checkpoint and names & {"unpack_hook", "backward"}:
        return "backward, recomputing"
    return "forward"


def _frames_near(events: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    """Return an allocation's frames; in autograd's own thread, which has none, a guess.

    The next tensor that is freed there was saved by the operation that goes backward, so the
    frames that made it show the line of that operation.
    """
    frames = _frames(events[at])
    if frames:
        return frames
    freed = [event for event in events[at:] if event["action"] == "free_requested"]
    made_by = list(filter(None, map(_frames, freed)))
    outside = [frames for frames in made_by if any(map(_is_outside, frames))]
    return next(iter(outside or made_by), [])


def _frames(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the frames of an event, but for those of this folder."""
    frames = event.get("frames") or []
    return [frame for frame in frames if not frame["filename"].startswith(_FOLDER)]


def _is_outside(frame: dict[str, Any]) -> bool:
    name = frame["filename"]  # a meter that runs in the program allocates nothing
    inside = "-packages/torch/" in name or "/tutorial_lib/memory/" in name
    return not (name.startswith("<") or inside)


def _asks(frame: dict[str, Any] | None) -> bool:
    """Tell whether a line is a condition, as in `if float(loss) > 10:`."""
    line = linecache.getline(frame["filename"], frame["line"]) if frame else ""
    return line.split()[:1] in (["if"], ["elif"], ["while"], ["assert"])


def _lines(frames: list[dict[str, Any]]) -> tuple[str, str]:
    """Name the innermost line outside PyTorch, and the innermost one of the user's own files."""
    outside = [frame for frame in frames if _is_outside(frame)]
    own = [frame for frame in outside if not frame["filename"].startswith(_installed())]
    line = next(iter(outside or frames), None)
    caller = own[0] if own and own[0] is not line else None
    return _text(line), _text(caller)


def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return (*site.getsitepackages(), paths["stdlib"], paths["purelib"])


def _text(frame: dict[str, Any] | None) -> str:
    if frame is None:
        return ""
    name = frame["filename"]
    for folder in (*_installed(), str(Path.cwd())):
        name = name.removeprefix(folder + os.sep)
    return f"{name}:{frame['line']} in {frame['name']}"
