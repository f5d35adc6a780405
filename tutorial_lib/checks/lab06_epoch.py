"""The check of lab 06's epoch (6.2): equal and ragged micro-batches, and the last window."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import SGD

from tutorial_lib import memory
from tutorial_lib.checks import lab06_demands as demands
from tutorial_lib.checks import lab06_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.models.vit import ViT

_RATE = 0.1


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    size, num = draw.randint(3, 5), draw.randint(3, 4)
    equal = [size] * (2 * num + 1) + [draw.randint(1, size - 1)]  # two short of a window
    ragged = [draw.randint(1, 7) for _ in range(5)] + [9, 2]
    drawn = {"seed": draw.randrange(10**6), "kind": "gradients", "again": False}
    return [
        {**drawn, "sizes": equal, "num": num},
        {**drawn, "sizes": ragged, "num": 3},
        {**drawn, "sizes": [6] * 6, "num": 6, "kind": "peak"},
        {**drawn, "sizes": [4, 2], "num": 5, "again": True},  # less than one window
    ]


class _Reader:
    """Hands micro-batches out one by one, as a loader does, and notes how far it was read ahead."""

    def __init__(self, items: list[oracles.MicroBatch]) -> None:
        self.items, self.taken, self.used, self.ahead = items, 0, 0, 0

    def __iter__(self) -> Iterator[oracles.MicroBatch]:
        if self.taken:
            raise CheckError(
                "micro_batches was begun a second time, and a list or a loader then begins with "
                "its first micro-batch again: call iter once, before the loop."
            )
        for item in self.items:
            self.taken += 1
            self.ahead = max(self.ahead, self.taken - self.used)
            yield item


def _run(answer: Callable[..., Any], case: Case) -> Result:
    model = oracles.tiny_vit(case["seed"])
    optimizer = SGD(model.parameters(), lr=_RATE)
    generator = torch.Generator().manual_seed(case["seed"])
    reader = _Reader(oracles.image_window(case["sizes"], generator))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # what another loop has left

    def used(*_: Any) -> None:
        reader.used += 1

    handle = model.register_forward_hook(used)
    given = reader if case["again"] else iter(reader)
    with memory.watch(model=model) as report:
        seen = oracles.observe(
            lambda: answer(model, optimizer, given, case["num"]), model, optimizer
        )
    handle.remove()
    return {**seen, "ahead": reader.ahead, "peak": report.peak_bytes - report.baseline_bytes}


def _windows(case: Case) -> list[list[oracles.MicroBatch]]:
    generator = torch.Generator().manual_seed(case["seed"])
    items = oracles.image_window(case["sizes"], generator)
    return [items[at : at + case["num"]] for at in range(0, len(items), case["num"])]


def _judge(case: Case, result: Result) -> None:
    demands.few_rows(result, case["sizes"])
    _judge_updates(case, result)
    demands.same_rows(result, case["sizes"])
    _judge_losses(case, result)
    demands.same_switches(result)
    ahead = result.get("ahead")
    if type(ahead) is not int or ahead > case["num"]:
        raise CheckError(
            f"{ahead} micro-batches were read before the model had seen the first of them, and a "
            f"window has {case['num']}: an epoch does not fit into memory, read a window at a time."
        )
    if case["kind"] == "peak":
        _judge_peak(case, result)


def _judge_updates(case: Case, result: Result) -> None:
    model = oracles.tiny_vit(case["seed"])
    start = oracles.vector(list(model.parameters()))
    seen = demands.vectors(result.get("gradients"), len(start), "the gradients")
    windows = _windows(case)
    if seen:
        _judge_length(case, model, seen[0])
    _judge_count(case, len(windows), len(seen))
    before = torch.ones_like(start)
    for turn, (window, update) in enumerate(zip(windows, seen, strict=True), start=1):
        wanted = oracles.gradient(model.loss(*oracles.whole(window)), model)
        of_each = [oracles.gradient(model.loss(*item), model) for item in window]
        slips = _slips(case, window, of_each, wanted, before, is_first=turn == 1)
        demands.demand_gradient(update, wanted, slips, f"window {turn} of {len(windows)}: ")
        _move(model, wanted)
        before = wanted
    after = demands.one_vector(result.get("parameters"), len(start), "the parameters")
    if not oracles.is_close(after, oracles.vector(list(model.parameters()))):
        raise CheckError("the gradients are right, and something else changed the parameters.")


def _judge_length(case: Case, model: ViT, seen: torch.Tensor) -> None:
    """Tell from the first update how many micro-batches were taken for a window."""
    items = [item for window in _windows(case) for item in window]
    length = min(case["num"], len(items))
    for num in [length, *range(1, len(items) + 1)]:
        wanted = oracles.gradient(model.loss(*oracles.whole(items[:num])), model)
        if oracles.is_close(seen, wanted):
            break
    else:
        return
    if num != length:
        raise CheckError(
            f"the first update has {num} of the micro-batches in it, and a window has "
            f"{case['num']}: update once a window, after its last micro-batch."
        )


def _move(model: torch.nn.Module, gradient: torch.Tensor) -> None:
    parameters = list(model.parameters())
    moved = oracles.vector(parameters) - _RATE * gradient
    torch.nn.utils.vector_to_parameters(moved, parameters)


def _slips(
    case: Case,
    window: list[oracles.MicroBatch],
    of_each: list[torch.Tensor],
    wanted: torch.Tensor,
    before: torch.Tensor,
    *,
    is_first: bool,
) -> dict[str, torch.Tensor]:
    added = sum(of_each, torch.zeros_like(wanted))
    sizes = [len(labels) for _, labels in window]
    left = "what was handed over" if is_first else "what the window before left"
    return {
        "nothing is divided: the gradients of the micro-batches were added up, each a mean of its "
        "own.": added,
        f"the sum was divided by the {case['num']} micro-batches that were asked for, and this "
        f"window has {len(window)} of {sizes} images.": added / case["num"],
        "each micro-batch counts the same, whether it is large or small: that is a mean of means. "
        f"Here they have {sizes} images.": added / len(window),
        "only the last micro-batch is in the gradient: what was added up before was zeroed.": (
            of_each[-1] * sizes[-1] / sum(sizes)
        ),
        f"{left} in .grad was added to the window: zero the gradients before its first "
        "backward.": wanted + before,
    }


def _judge_count(case: Case, wanted: int, seen: int) -> None:
    if seen > wanted:
        raise CheckError(
            f"the optimizer made {seen} updates, and there are {wanted} windows: update once a "
            "window, after its last micro-batch."
        )
    if seen < wanted:
        short = len(case["sizes"]) % case["num"] or case["num"]
        raise CheckError(
            f"the optimizer made {seen} updates, and there are {wanted} windows: the last one has "
            f"{short} of {case['num']} micro-batches, and counts."
        )


def _judge_losses(case: Case, result: Result) -> None:
    windows, losses = _windows(case), result.get("returned")
    if not isinstance(losses, list) or len(losses) != len(windows):
        raise CheckError(f"a list of {len(windows)} losses is wanted, one for each update.")
    model = oracles.tiny_vit(case["seed"])
    for turn, (window, seen) in enumerate(zip(windows, losses, strict=True), start=1):
        loss = model.loss(*oracles.whole(window))
        means = [model.loss(*item).item() for item in window]
        slips = {
            "it is the mean of the micro-batches' means.": sum(means) / len(means),
            "it is the sum of the micro-batches' means.": sum(means),
            "it is that of the last micro-batch.": means[-1],
        }
        demands.demand_loss(seen, loss.item(), f"update {turn}: ", slips)
        _move(model, oracles.gradient(loss, model))


def _judge_peak(case: Case, result: Result) -> None:
    """Two micro-batches' worth is granted above a plain loop; all graphs at once are more."""
    one = oracles.tiny_vit(case["seed"])
    window = _windows(case)[0]

    def loop() -> None:
        for item in itertools.islice(window, 2):
            one.loss(*item).backward()  # type: ignore[no-untyped-call]

    loop()  # gradients are there
    with memory.watch(model=one) as report:
        loop()
    allowed = 2 * (report.peak_bytes - report.baseline_bytes) + 2 * _bytes(one)
    peak = result.get("peak")
    if type(peak) is not int or peak > allowed:
        raise CheckError(
            f"the peak is {peak} bytes, and {allowed} are plenty for one micro-batch at a time: "
            "call backward in the loop, it frees the graph. Added losses keep all their graphs."
        )


def _bytes(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


train_epoch = Check(
    name="lab06.train_epoch",
    exercise="6.2",
    passed="every window is one batch, ragged or short, and no more than a micro-batch in memory",
    cases=_cases,
    run=_run,
    judge=_judge,
)
