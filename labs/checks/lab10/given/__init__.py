"""The halves that run the answers of lab 10, and the tensors that they are run on."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib import memory
from tutorial_lib.checks.given import answered, exam, forbid, observe, outside, run_half
from tutorial_lib.checks.given.surroundings import watched
from tutorial_lib.checks.given.values import Answer, Case, CheckError, Result

from .tools import Matmuls, squares_of_chunk

IGNORED = -100  # the target of a token that does not count, as F.cross_entropy has it
_EXAM: Case = {"tokens": 1280, "vocab": 32_768, "width": 8, "chunk": 64}
_BATCH_OF_EXAM = (4, _EXAM["tokens"] // 4)  # (batch, seq)
_EXAM_BYTES = _EXAM["tokens"] * _EXAM["vocab"] * 4
_WHOLE = f"The logits of all tokens take {_EXAM_BYTES >> 20} MiB here. Which of them live at once?"
_FUSED_EXAM: Case = {"tokens": 1280, "vocab": 4096, "width": 128, "chunk": 8}
_ALL_PIECES = "The gradients of all 256 chunks take 516 MiB here. Which of them live at once?"
_MAY_CHANGE = ("gradients", "random state")


class Scene(nn.Module):
    """Rows `(tokens, width)` and the matrix `(vocab, width)` of a head, all of them to be learned.

    A case may have a `dtype`, else float32, and the `scale` of the rows.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(case["seed"])
        dtype = getattr(torch, case.get("dtype", "float32"))
        rows = torch.randn(case["tokens"], case["width"], dtype=dtype) * case.get("scale", 1)
        self.hidden = nn.Parameter(rows)
        self.weight = nn.Parameter(torch.randn(case["vocab"], case["width"], dtype=dtype) / 2)
        self.bias = nn.Parameter(torch.randn(case["vocab"], dtype=dtype))
        self.targets = torch.randint(case["vocab"], (case["tokens"],))


def _graph_of(loss: Any, where: str = "") -> Tensor:
    if isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad:
        return loss
    shape = f" {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
    graph = ", without a graph" if isinstance(loss, Tensor) and not loss.requires_grad else ""
    raise CheckError(
        f"{where}a scalar tensor to go backward from is needed, but {type(loss).__name__}{shape} "
        f"came{graph}: what does your function return?"
    )


@contextlib.contextmanager
def _noted(scene: nn.Module, result: dict[str, Any]) -> Iterator[None]:
    """Fill in peak, the largest tensor, gradients and what was changed of a block."""
    observe.fill_gradients(scene)  # steady state, and gradients of an earlier micro-batch
    with watched(scene, but=_MAY_CHANGE) as changed, memory.watch(model=scene) as seen:
        yield
    result["peak"] = seen.peak_bytes - seen.baseline_bytes
    result["left"] = seen.leaked_bytes
    result["largest"] = max((life.num_bytes for life in seen.timeline), default=0)
    result |= {"gradients": observe.gradients_of(scene), "changed": changed}


_BY_HAND = forbid.Forbidden(
    "by hand is the exercise: your gradients are compared with autograd's, so your function may "
    "not have autograd compute them. The text above has the gradient with respect to logits.",
    ("torch.autograd:grad", "torch.autograd:backward", "torch.autograd.forward_ad:make_dual"),
)


@run_half("10.1", forbidden=[_BY_HAND])
def chunk_gradients(answer: Answer, case: Case) -> Result:
    scene = Scene(case)
    with (
        torch.no_grad(),  # as 10.3 calls it
        watched(scene, [scene.targets]) as changed,
    ):
        returned = answer(scene.hidden, scene.targets, scene.weight)
        names = "the loss, the gradient of hidden, and that of weight"
        loss, *gradients = answered.several(returned, 3, names)
    return {"loss": loss, "gradients": gradients, "changed": changed}


_NO_GRAPH = (
    "if hidden needs no gradient, as after a frozen body, the loss came without a graph, and "
    "the matrix would learn nothing, without an error. A reentrant checkpoint makes a graph only "
    "if a tensor among its own arguments needs a gradient."
)


def _by_chunks(answer: Answer, case: Case) -> Result:
    scene, result = Scene(case), dict[str, Any]()
    scene.bias.requires_grad_(False)
    scene.hidden.requires_grad_(not case.get("frozen"))
    with _noted(scene, result):
        loss = answer(scene.hidden, scene.targets, scene.weight, case["chunk"])
        if case.get("frozen") and isinstance(loss, Tensor) and not loss.requires_grad:
            raise CheckError(_NO_GRAPH)
        loss = _graph_of(loss)
        result["early"] = not observe.is_filled(scene)
        result["loss"] = loss.item()
        (loss * case["factor"]).backward()
        del loss
    return {**result, "gradients": result["gradients"][:2]}


def _step_of_exam(answer: Answer, case: Case) -> Result:
    scene = Scene({**_EXAM, **case})
    loss = answer(scene.hidden, scene.targets, scene.weight, _EXAM["chunk"])
    loss.backward()
    return {"gradients": [scene.hidden.grad, scene.weight.grad]}


def _step_of_head_exam(answer: Answer, case: Case) -> Result:
    torch.manual_seed(case["seed"])
    head = nn.Linear(_EXAM["width"], _EXAM["vocab"], bias=False)
    hidden = nn.Parameter(torch.randn(*_BATCH_OF_EXAM, _EXAM["width"]))
    targets = torch.randint(_EXAM["vocab"], _BATCH_OF_EXAM)
    answer(head, hidden, targets, _EXAM["chunk"], targets.numel()).backward()
    return {"gradients": [hidden.grad, head.weight.grad]}


@run_half("10.2", exam=exam.of(_step_of_exam, _WHOLE))
def checkpointed_loss(answer: Answer, case: Case) -> Result:
    return _by_chunks(answer, case)


def _step_of_fused_exam(answer: Answer, case: Case) -> Result:
    scene = Scene({**_FUSED_EXAM, **case})
    hidden, *weights = leaves = scene.hidden, scene.weight, scene.bias
    answer(squares_of_chunk, _FUSED_EXAM["chunk"], hidden, scene.targets, *weights).backward()
    return {"gradients": [leaf.grad for leaf in leaves]}


@run_half("10.3", exam=exam.of(_step_of_fused_exam, _ALL_PIECES))
def fused_loss(answer: Answer, case: Case) -> Result:
    scene, result, sizes = Scene(case), dict[str, Any](), list[int]()
    scene.bias.requires_grad_(not case.get("frozen"))
    made, kept = [0, 0], list[Tensor]()

    def chunk_of(hidden: Tensor, targets: Tensor, *weights: Tensor) -> Any:
        in_backward = int("loss" in result)
        outside.report(f"made {in_backward}")
        made[in_backward] += 1
        sizes.append(len(hidden))
        return squares_of_chunk(hidden, targets, *weights)

    def run() -> Tensor:
        weights = scene.weight, scene.bias
        loss = _graph_of(answer(chunk_of, case["chunk"], scene.hidden, scene.targets, *weights))
        result.update(loss=loss.item(), early=not observe.is_filled(scene))
        kept.append(loss)  # as in a list of losses: what does it hold after backward?
        scaled: Tensor = loss * case["factor"]
        return scaled

    with _noted(scene, result):
        result["said"] = observe.error_said(
            lambda: BACKWARDS[case["kind"]](run(), scene), "RuntimeError"
        )
    return {**result, "made": made, "sizes": sizes}


def _once(loss: Tensor, _: Scene) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _twice(loss: Tensor, scene: Scene) -> None:
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]


def _penalised(loss: Tensor, scene: Scene) -> None:
    """Add the square of a gradient to the loss, which then takes a second gradient."""
    (slope,) = torch.autograd.grad(loss, scene.hidden, create_graph=True)
    (loss + slope.square().sum()).backward()  # type: ignore[no-untyped-call]


BACKWARDS: dict[str, Callable[[Tensor, Scene], None]] = {
    "once": _once,
    "twice": _twice,
    "penalised": _penalised,
}


@run_half("10.4")
def mean_over_counted(answer: Answer, case: Case) -> Result:
    torch.manual_seed(case["seed"])
    weight = nn.Parameter(torch.randn(case["vocab"], case["width"], dtype=torch.float64))
    hidden, targets = window_of(case)
    total, said, rows = 0.0, "", list[int]()

    def loss_sum(hidden: Tensor, targets: Tensor) -> Tensor:
        rows.extend(targets.tolist())
        return F.cross_entropy(hidden @ weight.T, targets, reduction="sum", ignore_index=-1)

    leaves = [nn.Parameter(part) for part in hidden]
    joined = nn.ParameterList([weight, *leaves])
    with watched(joined, targets, but=_MAY_CHANGE) as changed:
        for part, theirs in zip(leaves, targets, strict=True):
            counted = (case.get("num_counted"),) if "num_counted" in case else ()

            def run(part: Tensor = part, theirs: Tensor = theirs, counted: Any = counted) -> None:
                nonlocal total
                loss = _graph_of(answer(loss_sum, part, theirs, *counted))
                total += loss.item()
                loss.backward()  # type: ignore[no-untyped-call]

            said = said or observe.error_said(run, "ValueError")
    gradients = [weight.grad, *(leaf.grad for leaf in leaves)]
    return {"loss": total, "gradients": gradients, "said": said, "rows": rows, "changed": changed}


def window_of(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    """Draw the micro-batches of a window, `(rows, seq, width)`, and their targets `(rows, seq)`.

    `counted` has for each micro-batch how many tokens of each of its rows count: the first ones.
    """
    generator = torch.Generator().manual_seed(case["seed"])
    hidden, targets = [], []
    for lengths in case["counted"]:
        shape = (len(lengths), case["seq"])
        hidden.append(torch.randn(*shape, case["width"], generator=generator, dtype=torch.float64))
        drawn = torch.randint(case["vocab"], shape, generator=generator)
        past = torch.arange(case["seq"]) >= torch.tensor(lengths)[:, None]
        targets.append(drawn.masked_fill(past, IGNORED))
    return hidden, targets


class Tied(nn.Module):
    """Embeddings, one layer and a head, which has the embeddings' matrix where it is tied."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(case["seed"])
        vocab, width = case["vocab"], case["width"]
        self.embedding, self.layer = nn.Embedding(vocab, width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocab, bias=case["bias"])
        if case["tied"]:
            self.head.weight = self.embedding.weight
        if case.get("frozen"):
            self.head.requires_grad_(False)
        self.to(getattr(torch, case["dtype"]))
        self.tokens = torch.randint(vocab, (case["rows"], case["seq"]))
        self.targets = torch.randint(vocab, (case["rows"], case["seq"]))
        self.targets[:, -case["ignored"] :] = IGNORED

    def forward(self) -> Tensor:
        """Return the head's input, `(rows, seq, width)`."""
        hidden: Tensor = self.layer(self.embedding(self.tokens)).tanh()
        return hidden


@run_half("10.5", exam=exam.of(_step_of_head_exam, _WHOLE))
def head_loss(answer: Answer, case: Case) -> Result:
    model, result = Tied(case), dict[str, Any]()
    counted = (case["num_counted"],) if "num_counted" in case else ()
    with _noted(model, result), Matmuls(case) as matmuls:
        with torch.autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
            hidden = model()
            loss = _graph_of(
                answer(model.head, hidden, model.targets, case["chunk"], *counted),
                "for targets of which none counts, " if case["ignored"] == case["seq"] else "",
            )
        result |= {"loss": loss.item(), "type": str(loss.dtype)}
        (loss * case["factor"]).backward()
        del loss, hidden
    return {**result, "matmuls": sorted(matmuls.types)}


def head_of(case: Case) -> tuple[nn.Linear, Tensor]:
    """Build a head and what it is given, without memory."""
    there: Any = {"device": "meta", "dtype": getattr(torch, case["dtype"])}
    head = nn.Linear(case["width"], case["vocab"], case["bias"], **there)
    head.weight.requires_grad_(case["learns"])
    return head, torch.empty(*case["shape"], case["width"], **there)


@run_half("10.6")
def choose_chunk(answer: Answer, case: Case) -> Result:
    result: dict[str, Any] = {"chunk": None}

    def run() -> None:
        result["chunk"] = answer(*head_of(case), case["budget"])

    return {"said": observe.error_said(run, "ValueError"), **result}
