"""The meter of a training step's memory: exact on a CPU, on a GPU with the allocator's peak too."""

import contextlib
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tutorial_lib import device as devices
from tutorial_lib.memory.cautions import StepsSeen, warnings_after, warnings_before
from tutorial_lib.memory.private_torch import FakeTensorMode, active_modes, run_uncompiled
from tutorial_lib.memory.report import MemoryReport
from tutorial_lib.memory.storages import StorageLog
from tutorial_lib.memory.timeline import summarise

_ELSEWHERE = "the step took GPU memory, but a CPU's was measured: pass model= or warmup=1."


class MeterWarning(UserWarning):
    """A reading may not mean what it seems to."""


def measure(
    step: Callable[[], Any],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    label: str = "",
    warmup: int = 1,
    steps: int = 1,
    repeats: int = 0,
    flops: bool = False,
    lines: bool = False,
) -> MemoryReport:
    """Measure steady training steps, after a warm-up that brings the optimizer's state.

    Args:
        step: Forward, backward, update, zero: run `warmup` + `steps` + `repeats` + `flops` times.
        model: Whose parameters and buffers to name; without it, only those that the step touches.
        optimizer: Whose state to name; without it, the one that the step calls.
        label: Words for the report.
        warmup: Steps before the measured one. With 0 it is the first step that is measured.
        steps: Steps in the measurement, one after the other, as one timeline.
        repeats: Further steps that are timed, without the meter. An emulated card has no times.
        flops: Whether to count FLOPs, in a step of its own: a FLOP counter keeps tensors alive.
        lines: Whether to note which line of code made each tensor, for `report.by("line")`.

    Raises:
        RuntimeError: When another measurement is running.
        Exception: What `step` raises. Hooks and modes are gone by then, the random state and
            the gradients that were None are as before the step.

    Warns:
        MeterWarning: Where a reading misleads: no backward, eval(), compiled code, another meter.

    Example:
        >>> layer, x = torch.nn.Linear(1024, 1024), torch.zeros(256, 1024)
        >>> measure(lambda: (layer(x).sum().backward(), layer.zero_grad()), model=layer).peak_bytes
        9.01 MiB
    """
    _check_counts(warmup, steps, repeats)
    with _undone_on_error(model, optimizer):
        seen = StepsSeen(step, model)
        device = _warm_up(seen, warmup, model, optimizer)
        before = list(warnings_before(model))
        allocated = devices.allocations()
        with _watched(label, model, optimizer, lines, device) as report:
            for _ in range(steps):
                seen.run(_Watching.clock)
        if device.type == "cpu" and not warmup and devices.allocations() != allocated:
            before = [_ELSEWHERE]
        report.step_peaks = seen.peaks(report) if steps > 1 else []
        after = warnings_after(report, _Watching.compiled, is_steady=warmup > 0 and steps == 1)
        for text in after or before or seen.warnings():
            warnings.warn(text, MeterWarning, stacklevel=2)
        times = 0 if devices.is_emulated(device) else repeats
        report.step_seconds = [timed(step, device) for _ in range(times)]
        if flops:
            report.flops = _flops_of(step)
    return report


def _flops_of(step: Callable[[], Any]) -> int:
    from tutorial_lib.memory.private_torch_unseen import flop_counter

    with flop_counter() as counter:
        step()
    return int(counter.get_total_flops())


def _warm_up(
    seen: StepsSeen, warmup: int, model: nn.Module | None, optimizer: Optimizer | None
) -> torch.device:
    """Run the first steps, and say where they ran: a step may ask no GPU, though one is here."""
    before = devices.allocations() if warmup else 0
    for _ in range(warmup):
        seen.run()
    asks_none = not _parameters(model, optimizer) and devices.allocations() == before
    return torch.device("cpu") if asks_none else _device_of(model, optimizer)


def _check_counts(warmup: int, steps: int, repeats: int) -> None:
    if warmup < 0 or repeats < 0 or steps < 1:
        raise ValueError(
            f"warmup (={warmup}) and repeats (={repeats}) must not be negative, and steps "
            f"(={steps}) must be at least 1."
        )


def watch(
    label: str = "",
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    lines: bool = False,
) -> contextlib.AbstractContextManager[MemoryReport]:
    """Measure what happens inside the `with` block; the report is filled in at its end.

    Args:
        label, model, optimizer, lines: As in `measure`.

    Yields:
        The report, empty until the block ends. It stays empty when the block raises.

    Raises:
        RuntimeError: When another measurement is running.

    Example:
        >>> with watch() as report: x = torch.zeros(256, 1024)
        >>> report.peak_bytes
        1.00 MiB
    """
    return _watched(label, model, optimizer, lines, _device_of(model, optimizer))


@contextlib.contextmanager
def _watched(
    label: str,
    model: nn.Module | None,
    optimizer: Optimizer | None,
    lines: bool,
    device: torch.device,
) -> Iterator[MemoryReport]:
    if _Watching.now is not None:
        raise RuntimeError(
            f"a measurement ({_Watching.now!r}) is running: end it before you begin {label!r}."
        )
    report = MemoryReport(label=label, device=devices.describe(device), versions=devices.versions())
    log = StorageLog(device.type)
    if lines:
        from tutorial_lib.memory.lines import calling_line

        log.line_of = calling_line
    before = None
    if device.type != "cpu":
        from tutorial_lib.memory.allocator import AllocatorReading

        gc.collect()  # An allocator counts garbage; a step on the CPU cannot touch it.
        before = AllocatorReading.take(device)
    from tutorial_lib.memory.release import naming_what_is_gone  # may warn, once

    with naming_what_is_gone(), contextlib.ExitStack() as stack:
        _Watching.now = label or "measure"
        stack.callback(setattr, _Watching, "now", None)
        _Watching.clock = lambda: log.clock
        # A collection in the middle would move the peak from run to run.
        stack.enter_context(devices.without_garbage_collection())
        # Under a dispatch mode Dynamo would give compiled code up for good. This imports Dynamo:
        # else PyTorch would in the first backward, and that moment's tensors would outlive it.
        _Watching.compiled = set()
        stack.enter_context(run_uncompiled(_note_compiled))
        _install(log, model, optimizer, stack)
        with log:
            yield report
        log.finish()
        gc.collect(0)  # What was made meanwhile is all in the youngest generation.
    if model is not None:
        log.label_module(model)
    report.timeline, report.phase_starts = log.lives(), log.phase_starts
    summarise(report)
    if before is not None:
        before.add_to(report, device)


def _note_compiled() -> None:
    from tutorial_lib.memory.lines import line_at_work

    _Watching.compiled.add(line_at_work())


class _Watching:
    now: str | None = None
    compiled: set[str]  # lines that called compiled code
    clock: Callable[[], int]


def _install(
    log: StorageLog,
    model: nn.Module | None,
    optimizer: Optimizer | None,
    stack: contextlib.ExitStack,
) -> None:
    """Tell the log what is there, and of modules and updates as they happen."""
    names: dict[int, str] = {}
    for name, module in model.named_modules() if model is not None else ():
        names[id(module)] = name
        log.owners |= {id(parameter): name for parameter in module.parameters(recurse=False)}
        log.module_stack.append(name)
        log.label_module(module, recurse=False)
        log.module_stack.pop()
    if optimizer is not None:
        log.label_optimizer(optimizer)

    def enter(module: nn.Module, args: Any) -> None:
        log.module_stack.append(names.get(id(module), type(module).__name__))
        if id(module) not in names:
            log.label_module(module, recurse=False)

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        log.module_stack.pop()

    def before_update(updating: Optimizer, args: Any, kwargs: Any) -> None:
        log.label_optimizer(updating)
        log.in_optimizer = True
        log.set_phase("optimizer")

    def after_update(updating: Optimizer, args: Any, kwargs: Any) -> None:
        log.label_optimizer(updating)
        log.in_optimizer = False
        log.set_phase("zero")

    def accumulated(parameter: Tensor) -> None:
        log.label_storages([parameter.grad], "gradients", of=parameter)

    handles = [
        module_hooks.register_module_forward_pre_hook(enter),
        # Recomputation may stop a module early by raising: leave() must be called all the same.
        module_hooks.register_module_forward_hook(leave, always_call=True),
        register_optimizer_step_pre_hook(before_update),
        register_optimizer_step_post_hook(after_update),
    ]
    for parameter in _parameters(model, optimizer):
        if parameter.requires_grad:
            handle = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
            handles.append(handle)
    for handle in handles:
        stack.callback(handle.remove)


def _parameters(model: nn.Module | None, optimizer: Optimizer | None) -> list[Tensor]:
    found = list(model.parameters()) if model is not None else []
    for group in optimizer.param_groups if optimizer is not None else []:
        found += group["params"]
    return list({id(parameter): parameter for parameter in found}.values())


def _device_of(model: nn.Module | None, optimizer: Optimizer | None) -> torch.device:
    for parameter in _parameters(model, optimizer):
        return parameter.device
    if any(isinstance(mode, FakeTensorMode) for mode in active_modes()):
        return torch.device("cpu")  # a prediction's tensors, on a machine with a GPU too
    return devices.pick()


@contextlib.contextmanager
def _undone_on_error(model: nn.Module | None, optimizer: Optimizer | None) -> Iterator[None]:
    """Put back the random state, and gradients that were None, when the step raises."""
    state = torch.random.get_rng_state()
    without_grad = [p for p in _parameters(model, optimizer) if p.grad is None]
    try:
        yield
    except BaseException:
        torch.random.set_rng_state(state)
        for parameter in without_grad:
            parameter.grad = None
        raise


def timed(step: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a step, all that its device has to do included."""
    devices.synchronize(device)
    start = time.perf_counter()
    step()
    devices.synchronize(device)
    return time.perf_counter() - start
