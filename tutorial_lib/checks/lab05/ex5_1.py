"""The check of 5.1: a context that checkpoints chosen modules."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib import memory
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import exam, observe
from tutorial_lib.checks.lab05 import models
from tutorial_lib.checks.vocabulary import expect, read

# Which modules, by the end of their names. "self_attn" is torch's own encoder, which calls its
# attention with keywords and takes a tuple from it.
_PARTS = ("attention", "mlp", "self_attn", "blocks.0 blocks.1")


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    return [{**models.draw_sizes(draw), "part": part} for part in _PARTS]


def _make(case: Case) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Make a model with a way to its loss; the first MLP has a forward of its own, as LoRA has."""
    if case["part"] == "self_attn":
        torch.manual_seed(case["seed"])
        layers = [nn.TransformerEncoderLayer(16, 2, 32, 0.2, batch_first=True) for _ in range(2)]
        encoder, x = nn.Sequential(*layers), torch.randn(case["batch"], 8, 16)
        return encoder, lambda: encoder(x).square().mean()
    gpt, tokens = models.make_gpt(case)
    mlp = gpt.get_submodule("blocks.0.mlp")
    mlp.forward = partial(_twice, mlp.forward)
    return gpt, lambda: gpt.loss(tokens)


def _twice(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return 2 * forward(x)


def _chosen(model: nn.Module, part: str) -> list[nn.Module]:
    return [m for name, m in model.named_modules() if name.endswith(tuple(part.split()))]


class _Remade(nn.Module):
    """Stands in the place of a module, and checkpoints it."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.inside, *args, use_reentrant=False, **kwargs)


def _right(case: Case) -> tuple[models.Step, models.Step]:
    """Give the plain step, and that of a model whose chosen modules are exchanged."""
    plain = _counted(*_make(case), case)
    model, loss = _make(case)
    chosen = _chosen(model, case["part"])
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if any(child is module for module in chosen):
                setattr(parent, name, _Remade(child))
    return plain, _counted(model, loss, case)


def _counted(model: nn.Module, loss: Callable[[], Tensor], case: Case) -> models.Step:
    saved = memory.saved(loss, params_of=model).num_bytes
    return models.stepped(model, loss, case["seed"])._replace(saved=saved)


def _run(answer: Callable[..., Any], case: Case) -> Result:
    model, loss = _make(case)
    modules = _chosen(model, case["part"])
    context = models.context_of(answer(modules), "checkpoint_only")
    try:
        with context:
            step = _counted(model, loss, case)
    except RecursionError as error:
        raise CheckError(
            "the calls never end. To call the module runs its forward, and that is yours now, "
            "which calls the module. Keep the forward that was there before, and call that."
        ) from error
    except TypeError as error:
        raise CheckError(
            f"a module was called with arguments that your wrapper does not pass on ({error}). "
            "Many models call their parts with keywords: take *args and **kwargs."
        ) from error
    except ValueError as error:
        if "keyword arguments" not in str(error):
            raise
        raise CheckError(
            "the reentrant checkpoint takes no keyword arguments, and models call their attention "
            "with such: use_reentrant=False."
        ) from error

    def fail() -> None:
        with answer(modules):
            raise KeyError("an error inside")

    after = _counted(model, loss, case)
    return {
        **step._asdict(),
        "after": [after.loss, after.flops, after.saved],
        "said": observe.error_said(fail),
        "after_error": memory.saved(loss, params_of=model).num_bytes,
    }


def _judge(case: Case, result: Result, right: tuple[models.Step, models.Step]) -> None:
    where = f"modules named {case['part']!r}: "
    plain, wanted = right
    expect.close(
        read.number(result.get("loss"), f"{where}the loss"),
        wanted.loss,
        otherwise="the model computes something else inside your block: does each module run its "
        "own forward? A lambda in a loop looks up the loop's variable when it is called.",
        tolerance=0,
        where=where,
    )
    seen_flops = read.integer(result.get("flops"), f"{where}FLOPs of the step")
    expect.close(
        seen_flops,
        wanted.flops,
        [("no product ran again: nothing is checkpointed inside your block.", plain.flops)],
        otherwise=f"{(seen_flops - plain.flops) / (wanted.flops - plain.flops):.2f} times the "
        "FLOPs that should run again do so: each module is one segment, and no other part is.",
        tolerance=0,
        where=where,
    )
    models.expect_gradients(
        result,
        plain.gradients,
        f"{where}FLOPs are right, and gradients differ from those of the plain model. There is "
        "dropout inside: does a module draw the same random numbers again?",
    )
    seen_saved = read.integer(result.get("saved"), f"{where}saved bytes")
    advice = "only the arguments of each module should wait."
    if seen_saved < wanted.saved:
        advice = (
            "a function without arguments holds them in its closure, where autograd does not see "
            "them (lab 03). Hand the arguments to `checkpoint`."
        )
    expect.close(
        seen_saved,
        wanted.saved,
        otherwise=f"gradients are right, and {seen_saved:,} bytes are saved, where "
        f"{wanted.saved:,} are wanted: {advice}",
        tolerance=0,
        where=where,
    )
    after = read.items(result.get("after"), "what the model does after the block")
    swallowed = not str(result.get("said")).startswith("KeyError")
    expect.no_fault(
        {
            f"{where}after your block the modules are still checkpointed, or no longer what they "
            "were: put back what you changed.": after[1:] != [plain.flops, plain.saved],
            f"{where}after your block the model gives another loss. One module came with a forward "
            "of its own, as LoRA sets one: put back that one, not the class's.": (
                after[:1] != [plain.loss]
            ),
            f"{where}an error inside your block was swallowed: let it through.": swallowed,
            f"{where}after an error inside your block the modules are still checkpointed: undo in "
            "`finally`.": result.get("after_error") != plain.saved,
        }
    )


checkpoint_only = Check(
    "lab05.checkpoint_only",
    "5.1",
    "four choices of modules: gradients to the bit, bytes and FLOPs as they should be, all undone",
    _cases,
    _run,
    _judge,
    oracle=_right,
    exam=exam.of_context(),
)
