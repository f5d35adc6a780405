"""Profile a model: its stages, what each costs, and the skips between them."""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tutorial_lib import device as devices
from tutorial_lib.instruments.planning.chain.profiled import Call, Method, Profile
from tutorial_lib.instruments.planning.chain.stages import Skip, Stage
from tutorial_lib.instruments.planning.run.apply import OtherStagesError
from tutorial_lib.instruments.planning.run.clocked_step import (
    ClockedStep,
    measure_times,
    model_untouched,
    run_clocked,
)
from tutorial_lib.instruments.planning.run.find_stages import (
    CannotPlanError,
    find_stages,
    first_alike,
    left_out,
)
from tutorial_lib.instruments.planning.run.recording import Loss, Recorder, run_from
from tutorial_lib.instruments.planning.run.roofline import Roofline, Speed
from tutorial_lib.instruments.planning.run.stages_from_storages import LABEL, Flow, measure_stages
from tutorial_lib.instruments.random_states import python_random_states
from tutorial_lib.instruments.segments.placeholder import NeedsValueError
from tutorial_lib.instruments.segments.sameness import look
from tutorial_lib.instruments.segments.tree import Selective
from tutorial_lib.memory.private_torch import is_fake as is_fake_tensor
from tutorial_lib.memory.private_torch import is_wrapper
from tutorial_lib.memory.storages import StorageLog, list_tensors
from tutorial_lib.memory.timeline import Life

_TICKS, _SECONDS, _MATMULS = range(3)


def profile(
    model: nn.Module,
    loss: Loss,
    *,
    stages: Sequence[str | nn.Module] | None = None,
    keep: Sequence[str] = (),
    gradients: Literal["there", "made"] = "there",
    repeats: int = 3,
    speed: Speed | None = None,
    selective: bool = False,
    like: Profile | None = None,
    is_judged: bool = False,
) -> Profile:
    """Find a model's stages, count what each holds, and time it.

    Inside `memory.predicting()`, with a model that was built there, bytes are those of a GPU's
    kernels and times are predicted from FLOPs and bytes; else both are those of this device.

    Args:
        model: Any module: ours, from a library, an `nn.Sequential`, or your own.
        loss: Runs the model on a batch and returns a scalar, as in `lambda: model.loss(batch)`.
        stages: Paths of modules in a row; `None` looks for blocks, `()` recomputes nothing at all.
        keep: Names of stages that no plan may run twice.
        gradients: `there`, as in every micro-batch but the first, or `made` by each backward.
        repeats: Timed runs; the median counts.
        speed: What to predict times with; `None` measures them, or takes an A100's where it cannot.
        selective: Whether a plan may also keep a stage's matmuls only, where PyTorch is able to.
        like: A profile with another micro-batch: without memory, stages alike there are run once.
        is_judged: Whether it is known already that all stages but those in `keep` repeat.

    Raises:
        ValueError: When no stage is found or one does not repeat, or no chain describes the loss.
    """
    found = find_stages(model, stages)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    is_fake = any(map(is_fake_tensor, list_tensors(model.parameters())))  # FSDP's parts too
    method: Method = "predicted" if speed or is_fake else "measured"
    with model_untouched(model, device):
        seen, again = _forward_alone(model, found, loss, device)
        if found and not (is_fake and (is_judged or like)):
            _check_repeatable(model, loss, found, keep)
        forms, skips = list[tuple[Stage, ...]](), tuple[Skip, ...]()
        for kept, barred in ((int, keep), (Selective, [*keep, *_cells(found)]))[: 1 + selective]:
            _set_gradients(model, gradients)
            known = (forms[0] if forms else like.stages if like else None) if is_fake else None
            if not (run := _run_if_able(seen, again, device, speed or Speed(), kept, known)):
                break
            timed = (clocked := run.clocked.take(_SECONDS)).durations(0.0)
            if method == "measured":
                timed = measure_times(model, seen.calls, again, device, repeats, kept)
            ticks = run.clocked.take(_TICKS)
            counted, more = measure_stages(ticks, run.flow, run.lives, seen.lives, seen.ends)
            form = _with_times(counted, seen.names, (*timed, clocked.early_stops()), barred)
            forms.append(tuple(form[index] for index in run.first))
            skips = _dearest(skips, more)
            if kept is int:
                seen.calls, launches = _with_matmuls(seen.calls, run), (like or run).launches
    where = "CUDA kernels" if is_fake else devices.describe(device)
    given = (seen.names, tuple(seen.calls), method, where, launches)
    return Profile(_either(*forms), skips, *given, replaced=seen.own)


def _check_repeatable(
    model: nn.Module, loss: Loss, stages: dict[str, nn.Module], keep: Sequence[str]
) -> None:
    """Refuse a stage that computes something else when it runs again."""
    unlike = look(model, loss, stages).unlike
    for name in [name for name in unlike if name not in keep]:
        raise ValueError(
            f"The stage {name} ({type(stages[name]).__name__}) computes something else when it "
            f"runs again: its forward reads what it changes ({', '.join(unlike[name])}). So it "
            f"cannot be recomputed: pass keep={list(unlike)} to keep it."
        )


def _cells(stages: dict[str, nn.Module]) -> list[str]:
    """Name the stages with recurrent layers, whose matmuls no plan may keep by themselves.

    A CPU's kernels write into their results, and of a GRU's PyTorch's checkpoint sees nothing: its
    gradients would be wrong.
    """
    cells = (nn.RNNBase, nn.RNNCellBase)
    return [n for n, m in stages.items() if any(isinstance(part, cells) for part in m.modules())]


def _set_gradients(model: nn.Module, gradients: str) -> None:
    for parameter in model.parameters():
        there = gradients == "there" and parameter.requires_grad
        parameter.grad = torch.zeros_like(parameter) if there else None


def _with_times(
    stages: Sequence[Stage],
    names: Sequence[str],
    timed: tuple[list[float], list[float], list[float]],
    keep: Sequence[str],
) -> tuple[Stage, ...]:
    return tuple(
        replace(
            stage,
            forward_seconds=forward,
            backward_seconds=backward,
            early_stop_seconds=forward * early,
            recomputable=stage.recomputable and name not in keep,
        )
        for stage, name, forward, backward, early in zip(stages, names, *timed, strict=True)
    )


def _either(
    whole: tuple[Stage, ...], selective: tuple[Stage, ...] | None = None
) -> tuple[Stage, ...]:
    """Return each stage, kept selectively if it may run twice and then keeps less."""
    if selective is None:
        return whole
    return tuple(
        replace(one, selective=other)
        if other.recomputable and other.saved_bytes < one.saved_bytes
        else one
        for one, other in zip(whole, selective, strict=True)
    )


def _dearest(skips: Sequence[Skip], others: Sequence[Skip]) -> tuple[Skip, ...]:
    """Price each skip's gradient as in that one of two runs in which it holds more.

    The second has none of those whose value nobody takes: no segment gives it.
    """
    if not skips:
        return tuple(others)
    more = {(other.source, other.target, other.num_bytes): other.waiting_bytes for other in others}
    found = []
    for one in skips:
        waiting = more.get((one.source, one.target, one.num_bytes), 0)
        found.append(replace(one, gradient_bytes=max(one.waiting_bytes, waiting)))
    return tuple(found)


@dataclass(frozen=True)
class _Watched:
    """A step that was watched: a clock of ticks, seconds and matmuls, and what was held."""

    clocked: ClockedStep
    flow: Flow
    lives: Sequence[Life]
    launches: int
    first: Sequence[int]  # for each stage, the one that was run in its place


def _run_if_able(
    seen: Recorder,
    loss: Loss,
    device: torch.device,
    speed: Speed,
    kept: type[int],
    known: Sequence[Stage] | None,
) -> _Watched | None:
    """Watch a step; of one that PyTorch's selective checkpoint refuses, return None.

    It refuses a result that it keeps and a later operation changes in place, and under autocast a
    cast in the second run that the first had in its cache. Of stages that are alike in `known`, one
    is run. Where the model needs a value while its stages are recorded, the run is divided there.
    """
    while True:
        count = len(seen.names)
        is_known = known is not None and len(known) == count and not seen.draws
        first = first_alike(seen.calls, known) if known and is_known else list(range(count))
        alike = [
            (call, not known[first[index]].released_bytes)
            for index, call in enumerate(seen.calls, 1)
            if known and first[index] < index
        ]
        try:
            with left_out(seen.stages, alike):
                return _watched(seen, loss, device, speed, kept, first)
        except NeedsValueError as error:
            seen.divide(error.place)
        except OtherStagesError as error:
            raise CannotPlanError(
                "The loss runs other stages when it runs again, as when the values of a tensor "
                "decide whether a layer runs, but a plan needs the same ones each time."
            ) from error
        except RuntimeError as error:
            if kept is int or isinstance(error, torch.OutOfMemoryError):
                raise
            return None


def _watched(
    seen: Recorder,
    loss: Loss,
    device: torch.device,
    speed: Speed,
    kept: type[int],
    first: Sequence[int],
) -> _Watched:
    """Run a step that recomputes no stage as a whole, count its bytes and predict its time."""
    log, num_bytes = _log(seen.model, device), dict[int, int]()

    def look(number: int, tensor: Tensor, is_given: bool) -> None:
        if is_given and not (tensor.requires_grad or log.was_made(tensor)):
            return  # the batch is there anyway
        # of a large tensor from before the stages, several may get a part each
        whole, part = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
        num_bytes[number] = part if is_given else whole
        log.label_storages([tensor], f"{LABEL}{number}")

    mode, tensors = Roofline(speed), itertools.chain(seen.model.parameters(), seen.model.buffers())
    is_sharded = any(is_wrapper(type(tensor)) for tensor in tensors)  # the log sees the parts then
    log.then = None if is_sharded else mode.add
    with log, mode if is_sharded else contextlib.nullcontext():

        def read() -> tuple[int, float, int]:
            return log.clock, mode.seconds, mode.matmuls

        clocked = run_clocked(seen.model, seen.calls, loss, read, look, kept)
    if seen.has_hooks and kept is int and clocked.saved[-2] <= clocked.forward[0]:
        seen.own = ""  # hooks around the model's call got all that stages saved
    log.finish()
    for parameter in seen.model.parameters():
        log.label_storages([parameter.grad], "gradients")
    return _Watched(clocked, Flow.of(clocked, num_bytes), log.lives(), mode.launches, first)


def _with_matmuls(calls: Sequence[Call], run: _Watched) -> list[Call]:
    """Note each stage's matmuls before the last tensor that its backward needs."""
    counts = run.clocked.take(_MATMULS)
    pairs = zip(counts.saved, [0, *counts.forward], strict=False)
    matmuls = [max(0, saved - before) for saved, before in pairs]
    return [replace(call, matmuls=matmuls[run.first[i]]) for i, call in enumerate(calls, 1)]


def _log(model: nn.Module, device: torch.device) -> StorageLog:
    log = StorageLog(device.type)
    log.label_module(model)
    return log


def _forward_alone(
    model: nn.Module, stages: dict[str, nn.Module], loss: Loss, device: torch.device
) -> tuple[Recorder, Loss]:
    """Return what a forward did, and the loss, which draws the same numbers of Python each time."""
    log, before = _log(model, device), python_random_states()
    recorder = Recorder(model, stages, lambda: log.clock)
    with log:
        recorder.run(loss)
    if before != python_random_states():
        recorder.draws = True
        recorder.check_order(loss)
        loss = partial(run_from, before, loss)
    for module in model.modules():
        reshard: Any = getattr(module, "reshard", None)
        if reshard is not None:  # FSDP keeps some of what it gathered until a backward
            reshard()
    log.finish()
    recorder.lives = log.lives()
    return recorder, loss
