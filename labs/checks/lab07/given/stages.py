"""The halves that run the answers to 7.1 to 7.5: a loss, the three stages, and moments."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks.given import answered, exam, observe, run_half
from tutorial_lib.checks.given.surroundings import watched
from tutorial_lib.checks.given.values import Answer, Case, CheckError, Result
from tutorial_lib.memory.private_torch import FakeTensorMode

from . import towers

RANDOM = "random state"
_PARTS = 16  # micro-batches of a memory exam


def pairs_of(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Make embeddings of different lengths, and the scale's logarithm."""
    generator = torch.Generator().manual_seed(case["seed"])
    dtype, features = getattr(torch, case["dtype"]), case["features"]
    images, texts = (
        torch.randn(rows, features, generator=generator, dtype=dtype)
        * torch.linspace(0.5, 3, rows, dtype=dtype)[:, None]
        for rows in case["rows"]
    )
    if case["has_twins"]:  # a similarity of 1, whose exponential is no float32
        texts[0] = images[0]
    log_scale = torch.tensor(math.log(case["scale"]), dtype=dtype)
    return images.requires_grad_(), texts.requires_grad_(), log_scale.requires_grad_()


@run_half("7.1", forbidden=[towers.NO_IN_BATCH_LOSS])
def contrastive_loss(answer: Answer, case: Case) -> Result:
    inputs = pairs_of(case)
    if "refused" in case:
        return {"said": observe.error_said(lambda: answer(*inputs), "ValueError")}
    if case.get("elsewhere"):
        return {"mixed": _devices_mixed(answer, inputs)}
    loss = answer(*inputs)
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        raise CheckError(
            "the loss should be a tensor without dimensions, with its graph: backward starts there."
        )
    loss.backward()  # type: ignore[no-untyped-call]
    return {"loss": loss.item(), "gradients": [leaf.grad for leaf in inputs]}


def _devices_mixed(answer: Answer, inputs: Sequence[Tensor]) -> str:
    """Return the error of tensors on two devices, from inputs on one that only knows shapes."""
    try:
        answer(*(x.detach().to("meta").requires_grad_() for x in inputs))
    except NotImplementedError:  # of an operation that this device lacks
        pass
    except RuntimeError as error:  # one that needs a number fails as well, and names no CPU
        said = str(error).lower()
        return str(error) if "device" in said and "cpu" in said else ""
    return ""


def _first_pass(answer: Answer, case: Case) -> Result:
    chain, rows = exam.make(case)
    parts = list(rows.tensor_split(_PARTS))
    embeddings, _ = answer(chain, parts, id)
    for part, gradient in zip(parts, embeddings.tensor_split(_PARTS), strict=True):
        chain(part).backward(gradient)  # of half the squares: the embeddings themselves
    return exam.gradients(chain)


@run_half("7.2", forbidden=[towers.NO_CHECKPOINT], exam=exam.of(_first_pass))
def embed(answer: Answer, case: Case) -> Result:
    tower, parts = towers.seeded_tower(case), towers.parts_of(case)
    asked_after: list[int] = []

    def note_moment(asked: nn.Module) -> int:
        """Return moments that are numbers, and write down how many runs came before each."""
        if asked is not tower:
            raise CheckError("remember must be called with the tower, but something else came.")
        asked_after.append(len(tower.rows_seen))
        return len(asked_after) - 1

    with watched(tower, parts, but=["random state"]) as changed:
        returned = answer(tower, parts, note_moment)
    embeddings, moments = answered.several(returned, 2, "embeddings and moments")
    if not isinstance(embeddings, Tensor):
        raise CheckError(
            f"the embeddings come as {type(embeddings).__name__}, but one tensor of all rows is "
            "needed: use torch.cat."
        )
    if not isinstance(moments, list | tuple):
        raise CheckError(
            "the second value should be a list, with what remember returned before each run, and "
            f"{type(moments).__name__} came."
        )
    seen: dict[str, Any] = {
        "embeddings": embeddings,
        "needs_grad": embeddings.requires_grad,
        "inference": embeddings.is_inference(),
        "moments": list(moments),
        "asked_after": list(asked_after),
        "rows": list(tower.rows_seen),
        "was_evaluated": tower.was_evaluated,
        "had_graph": tower.had_graph,
        "changed": changed,
        "random_state": torch.get_rng_state(),
    }
    for name, times in towers.TIMES.items():
        call = partial(answer, tower, towers.parts_of(case, times), note_moment)
        seen[name] = observe.peak_above(call, tower)[0]
    return seen


def embedded(case: Case) -> tuple[towers.InBatch, list[Tensor]]:
    """Make the loss and the embeddings of a case, perhaps spoiled."""
    torch.manual_seed(case["seed"])
    shape = (case["towers"], case["rows"], case["features"])
    loss_of, embeddings = towers.InBatch(case), list(torch.randn(shape, dtype=torch.float64))
    if case["spoiled"] == "nan":
        embeddings[-1][0, 0] = float("nan")
    return loss_of, embeddings


@run_half("7.3", forbidden=[towers.NO_CHECKPOINT])
def cache_gradients(answer: Answer, case: Case) -> Result:
    loss_of, embeddings = embedded(case)
    if case["spoiled"]:
        said = observe.error_said(lambda: answer(loss_of, embeddings), "FloatingPointError")
        other = embedded({**case, "spoiled": towers.NOT_FINITE[case["spoiled"]]})
        of_the_other = observe.error_said(lambda: answer(*other), "FloatingPointError")
        gradients = observe.gradients_of(loss_of)
        return {"said": said, "of_the_other": of_the_other, "gradients": gradients}
    with (
        watched(loss_of, embeddings, but=["gradients"]) as changed,
        memory.watch(model=loss_of) as report,
    ):
        loss, gradients = answered.several(
            answer(loss_of, embeddings), 2, "the loss and a list of gradients"
        )
    return {
        "loss": loss,
        "gradients": [*observe.gradients_of(loss_of), *gradients],
        "have_graph": any(getattr(g, "requires_grad", False) for g in gradients),
        "changed": changed,
        "left": report.leaked_bytes,
    }


def gradients_to_push(case: Case, times: int = 1) -> Tensor:
    """Draw the cached gradients of all embeddings."""
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    shape = (times * sum(case["sizes"]), case["features"])
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@contextlib.contextmanager
def _moment(case: Case, number: int, tower: towers.CountingTower) -> Iterator[None]:
    """Seed by number; autograd's copies of `drift` are of no use once this is left."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case["seed"] + number)
        tower.drift.fill_(1)
        yield
    tower.drift.fill_(1)


def _handed(case: Case, times: int = 1) -> tuple[Any, ...]:
    """Make an answer's arguments: tower, micro-batches, gradients and moments."""
    tower, parts = towers.seeded_tower(case), towers.parts_of(case, times)
    moments = [partial(_moment, case, number, tower) for number in range(len(parts))]
    return tower, parts, gradients_to_push(case, times), moments


def _push(answer: Answer, handed: tuple[Any, ...]) -> None:
    try:
        answer(*handed)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise CheckError(
            "backward ran after its moment was left, and found a buffer that had been put back in "
            "between: run a micro-batch's forward and backward inside the moment."
        ) from error


def _second_pass(answer: Answer, case: Case) -> Result:
    chain, rows = exam.make(case)
    parts = list(rows.tensor_split(_PARTS))
    with torch.no_grad():
        gradients = torch.cat([chain(part) for part in parts])  # of half the squares
    answer(chain, parts, gradients, [contextlib.nullcontext] * len(parts))
    return exam.gradients(chain)


@run_half("7.4", forbidden=[towers.NO_CHECKPOINT], exam=exam.of(_second_pass))
def push(answer: Answer, case: Case) -> Result:
    tower, parts, cached, _ = handed = _handed(case)
    but = ["gradients", "random state"]
    with watched(tower, [*parts, cached], but=but) as changed:
        _push(answer, handed)
    seen: dict[str, Any] = {
        "gradients": observe.gradients_of(tower),
        "changed": changed,
        "rows": tower.rows_seen,
        "was_evaluated": tower.was_evaluated,
    }
    for name, times in towers.TIMES.items():
        more = _handed(case, times)
        seen[name] = observe.peak_above(partial(_push, answer, more), more[0])[0]
    return seen


@run_half("7.5", forbidden=[towers.NO_CHECKPOINT])
def remember(answer: Answer, case: Case) -> Result:
    used, kept, on_a_gpu = (towers.seeded_tower(case) for _ in range(3))
    seen = _used(answer, used, towers.parts_of(case))
    return {**seen, **_bytes_kept(answer, kept), **_on_a_gpu(answer, on_a_gpu, case["seed"] % 100)}


def _used(answer: Answer, tower: towers.CountingTower, parts: list[Tensor]) -> dict[str, Any]:
    """Enter a moment twice, and twice more with an error inside; name the differences then."""
    before = _now(tower)
    moment = answered.function(answer(tower), "remember")
    seen: dict[str, Any] = {"moved_by_call": _moved(tower, before)}
    with torch.no_grad():
        first = tower(parts[0])
        for part in parts[1:]:  # other micro-batches come in between
            tower(part)
    between = _now(tower)
    with moment():
        seen["read_at_entry"] = RANDOM not in _moved(tower, between)
        seen["not_restored"] = _moved(tower, before)
        again = tower(parts[0])
        again.sum().backward()
    seen["same"] = torch.equal(first, again)
    seen["not_put_back"] = _moved(tower, between)
    with moment():
        seen["same_again"] = torch.equal(first, tower(parts[0]))
    between, came_out = _now(tower), 0
    for error in (KeyError, KeyboardInterrupt):
        try:
            with moment():
                tower(parts[0])
                raise error
        except error:
            came_out += 1
    return {**seen, "left_by_error": _moved(tower, between), "errors_come_out": came_out == 2}


def _now(tower: nn.Module) -> dict[str, Tensor]:
    buffers = {name: buffer.clone() for name, buffer in tower.named_buffers()}
    return {RANDOM: torch.get_rng_state(), **buffers}


def _moved(tower: nn.Module, before: dict[str, Tensor]) -> list[str]:
    return [name for name, now in _now(tower).items() if not torch.equal(now, before[name])]


def _bytes_kept(answer: Answer, tower: nn.Module) -> Result:
    tower.register_buffer("table", torch.zeros(100, dtype=torch.float64))
    with memory.watch(model=tower) as report:
        moments = [answer(tower) for _ in range(3)]
    del moments
    needed = torch.get_rng_state().nbytes + sum(buffer.nbytes for buffer in tower.buffers())
    return {"kept": report.leaked_bytes, "needed": 3 * needed}


def _on_a_gpu(answer: Answer, tower: nn.Module, first: int) -> Result:
    """Follow the random state of a GPU that is not there, where one parameter seems to live."""
    with FakeTensorMode():
        tower.register_parameter("elsewhere", nn.Parameter(torch.empty(1, device="cuda")))
    seen: dict[str, Any] = {"inside": first, "put_back": True}
    with observe.pretended_gpu_states(first) as states:

        def follow() -> None:
            moment = answer(tower)
            states.append(first + 2)  # the first pass draws, for this micro-batch and for others
            with moment():
                seen["inside"] = states[-1]
                states.append(states[-1] + 1)
            seen["put_back"] = states[-1] == first + 2

        said = observe.error_said(follow)
    return {**seen, "error_on_gpu": said}
