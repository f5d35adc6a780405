"""The halves that run the answers to 6.2 to 6.6: an epoch, one update, one over several ranks."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from tutorial_lib import memory
from tutorial_lib.checks.given import Answer, Case, CheckError, Result, exam, observe, run_half
from tutorial_lib.checks.given.answered import several
from tutorial_lib.checks.given.surroundings import watched
from tutorial_lib.instruments import ranks

from . import models

GAMMA = 0.5  # of the learning rate, an update
SAID = "the model itself raised this"
LOST = 1  # the window whose second micro-batch overflows, where the case has an overflow
_LAST = 2  # the one that overflows where the scaler is off: what is nan then stays so
_EXAM_PARTS = 16  # micro-batches of its one window
_EXCHANGES = (
    " A window's last backward is such a call too: does every rank make it, even without targets?"
)


def images_of(case: Case) -> list[models.MicroBatch]:
    """Draw the micro-batches of an epoch."""
    return models.image_window(case["sizes"], torch.Generator().manual_seed(case["seed"]))


class _Reader:
    """Hands micro-batches out one by one, as a loader does, and notes how far it was read ahead."""

    def __init__(self, items: list[models.MicroBatch], rows: list[int]) -> None:
        self.items, self.rows, self.taken, self.ahead = items, rows, 0, 0

    def __iter__(self) -> Iterator[models.MicroBatch]:
        if self.taken:
            raise CheckError(
                "micro_batches was started a second time, and a list or a loader then starts from "
                "its first micro-batch again: call iter once, before the loop."
            )
        for item in self.items:
            self.taken += 1
            self.ahead = max(self.ahead, self.taken - len(self.rows))
            yield item


def _one_window(answer: Answer, chain: exam.Chain, optimizer: Optimizer, rows: Tensor) -> None:
    parts = rows.tensor_split(_EXAM_PARTS)
    answer(chain, optimizer, ((part, part) for part in parts), _EXAM_PARTS)


@run_half("6.2", exam=exam.of_update(_one_window))
def train_epoch(answer: Answer, case: Case) -> Result:
    model = models.tiny_vit(case["seed"])
    optimizer = SGD(model.parameters(), lr=models.RATE)
    observe.fill_gradients(model)  # what another loop has left
    with observe.rows_seen(model) as rows:
        reader = _Reader(images_of(case), rows)
        items = reader if case["again"] else iter(reader)
        call = partial(answer, model, optimizer, items, case["num"])
        seen = models.train(call, model, optimizer)
    return {**seen, "ahead": reader.ahead}


def tokens_of(case: Case) -> list[models.MicroBatch]:
    """Draw the micro-batches of a window."""
    generator = torch.Generator().manual_seed(case["seed"])
    return models.token_window(case["sizes"], generator, case["masked"])


def sit_on_tokens(
    answer: Answer, gpt: nn.Module, optimizer: Optimizer, batch: tuple[Tensor]
) -> None:
    """Have an answer train a GPT on a window, one label in five masked."""
    (tokens,) = batch
    labels = tokens.where(torch.arange(tokens.size(1)) % 5 > 0, -100)
    parts = (tensor.tensor_split(_EXAM_PARTS) for tensor in (tokens, labels))
    answer(gpt, optimizer, list(zip(*parts, strict=True)))


@run_half("6.3", exam=exam.of_update(sit_on_tokens, exam.make_gpt))
def token_step(answer: Answer, case: Case) -> Result:
    model = models.tiny_gpt(case["seed"])
    optimizer = SGD(model.parameters(), lr=models.RATE)
    observe.fill_gradients(model)
    return models.train(lambda: answer(model, optimizer, tokens_of(case)), model, optimizer)


class _Overflowing(torch.autograd.Function):
    """Nothing in forward; in backward infinite beyond a limit, as float16 is, and else exact."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.where(grad.abs() <= ctx.limit, math.inf), None


def image_windows_of(case: Case) -> list[list[models.MicroBatch]]:
    """Draw the micro-batches of several windows."""
    generator = torch.Generator().manual_seed(case["seed"])
    return [models.image_window(sizes, generator) for sizes in case["sizes"]]


def _scaled(answer: Answer, chain: exam.Chain, optimizer: Optimizer, rows: Tensor) -> None:
    parts = [(part, part) for part in rows.tensor_split(_EXAM_PARTS)]
    scaler, scheduler = torch.amp.GradScaler("cpu"), ExponentialLR(optimizer, gamma=GAMMA)
    answer(chain, optimizer, scheduler, scaler, parts, math.inf, exam.Chain.loss)


@run_half("6.4", exam=exam.of_update(_scaled))
def scaled_step(answer: Answer, case: Case) -> Result:
    windows, model = image_windows_of(case), models.tiny_vit(case["seed"])
    optimizer = SGD(model.parameters(), lr=models.RATE)
    scheduler = ExponentialLR(optimizer, gamma=GAMMA)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=case["scale"], growth_interval=case["grows"], enabled=case["enabled"]
    )
    lost = windows[LOST if case["enabled"] else _LAST][1][0]
    limit = 0.01 * (case["scale"] if case["enabled"] else 1)

    def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = model.loss(images, labels)  # type: ignore[operator]
        is_lost = case["overflow"] and images.data_ptr() == lost.data_ptr()
        if is_lost and case["overflow"] == "parameter":  # an infinite norm, and not one of nan
            weight: Tensor = _Overflowing.apply(next(model.parameters()).sum(), limit)  # type: ignore[no-untyped-call]
            return loss + (weight - weight.detach())
        passed: Tensor = _Overflowing.apply(loss, limit if is_lost else math.inf)  # type: ignore[no-untyped-call]
        return passed

    observe.fill_gradients(model)
    handed, turns = (model, optimizer, scheduler, scaler), list[dict[str, Any]]()

    def train() -> None:
        for window in windows:
            returned = answer(*handed, window, case["max_norm"], loss_of)
            pair = returned if isinstance(returned, tuple | list) else (returned, None)
            loss, norm = several(pair, 2, "the loss and the norm")
            turns.append({"loss": loss, "norm": norm, "schedule": scheduler.last_epoch})
            turns[-1]["scale"] = scaler.get_scale()
            turns[-1]["counted"] = scaler.state_dict().get("_growth_tracker", 0)
            turns[-1]["parameters"] = observe.parameter_vector(model)

    return {**models.train(train, model, optimizer), "turns": turns}


def _one_batch(answer: Answer, chain: exam.Chain, optimizer: Optimizer, rows: Tensor) -> None:
    answer(chain, optimizer, (rows,), 16, loss_sum=exam.Chain.loss_sum, count_terms=len)


@run_half("6.5", exam=exam.of_update(_one_batch))
def exact_step(answer: Answer, case: Case) -> Result:
    task = models.task_of(case)
    task.add_side_effects()
    optimizer = models.make_optimizer(case["optimizer"], task.model)
    observe.fill_gradients(task.model)
    if case["fails"]:
        return _failed(answer, case, task, optimizer)
    torch.manual_seed(case["seed"])
    call = partial(task.call, answer, optimizer, case)
    with memory.watch(model=task.model, optimizer=optimizer) as report:
        seen = models.train(call, task.model, optimizer)
    return {
        **seen,
        "activations": report.at_peak.get("activations", 0),
        "old_gradients": observe.is_filled(task.model),
        "moved": task.model.get_buffer("seen"),
        "next": torch.rand(3),
    }


class _FromTheModel(BaseException):
    """Stands for whatever stops a model in the middle of a step, and is no Exception: Ctrl-C."""


def _run_out(_: Tensor) -> None:
    raise torch.OutOfMemoryError(SAID)


def _failed(answer: Answer, case: Case, task: models.Task, optimizer: Optimizer) -> Result:
    """Have a step fail, and note its traces."""
    calls, loss_sum, how = itertools.count(1), task.loss_sum, case["fails"]

    def failing(model: nn.Module, *micro_batch: Tensor) -> Tensor:
        loss, is_third = loss_sum(model, *micro_batch), next(calls) == 3
        if is_third and how == "raises":
            raise _FromTheModel(SAID)
        if is_third and how == "backward":
            loss.register_hook(_run_out)  # type: ignore[no-untyped-call]
        return loss * {"nan": math.nan, "inf": math.inf}.get(how, 1.0) if is_third else loss

    task.loss_sum = failing
    optimizer.step()  # so that it has state to lose
    said, kind = "", "nothing"
    with watched(task.model, optimizer=optimizer) as changed:
        try:
            task.call(answer, optimizer, case)
        except NotImplementedError:
            raise
        except (Exception, _FromTheModel) as error:
            said, kind = str(error), type(error).__name__
    return {"said": said, "raised": kind, "changed": changed}


def rank_windows_of(case: Case) -> list[list[models.MicroBatch]]:
    """Draw the micro-batches of each rank."""
    generator = torch.Generator().manual_seed(case["seed"])
    return [
        models.token_window(sizes, generator, range(9) if rank == case["masked"] else [])
        for rank, sizes in enumerate(case["sizes"])
    ]


def _one_rank(answer: Answer, chain: exam.Chain, optimizer: Optimizer, rows: Tensor) -> None:
    def work(_: int) -> None:
        window = [(part,) for part in rows.double().tensor_split(_EXAM_PARTS)]
        sums = {"loss_sum": _half_squares, "count_terms": len}
        model = DistributedDataParallel(chain.double())  # float64, as in all of 6.6
        answer(model, optimizer, window, **sums)

    ranks.in_threads(work, 1)


def _half_squares(model: nn.Module, rows: Tensor) -> Tensor:
    loss: Tensor = exam.half_squares(model(rows))
    return loss


@run_half("6.6", exam=exam.of_update(_one_rank), threads=True)
def rank_step(answer: Answer, case: Case) -> Result:
    windows = rank_windows_of(case)
    replicas = [models.tiny_gpt(case["seed"]) for _ in windows]
    entries: list[mock.Mock] = []  # into no_sync

    def work(rank: int) -> dict[str, Any]:
        model = DistributedDataParallel(replicas[rank])
        optimizer = SGD(model.parameters(), lr=models.RATE)
        observe.fill_gradients(model)
        entries.append(mock.Mock(wraps=model.no_sync))
        model.no_sync = entries[-1]  # type: ignore[method-assign]
        syncs: list[bool] = []  # of each forward through DDP, whether its backward will reduce
        model.register_forward_pre_hook(lambda *_: syncs.append(model.require_backward_grad_sync))
        options = {"loss_sum": models.token_loss_sum, "count_terms": models.num_targets}
        seen = models.train(
            lambda: answer(model, optimizer, windows[rank], **options), replicas[rank], optimizer
        )
        return {**seen, "syncs": syncs}

    try:
        seen, traffic = ranks.in_threads(work, len(windows))
    except Exception as error:
        if "rank" in str(error) and "LeftAlone" in f"{type(error).__name__} {error}":
            size = sum(parameter.numel() for parameter in replicas[0].parameters())
            advice = _EXCHANGES if f"({size},)" in str(error) else ""
            raise CheckError(f"{error}{advice}") from error
        raise
    calls = [[list(call) for call in of_rank.calls] for of_rank in traffic]
    return {"ranks": seen, "calls": calls, "used_no_sync": any(entry.called for entry in entries)}
