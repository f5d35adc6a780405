"""The check of 5.1: a context that checkpoints chosen modules."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib import memory
from tutorial_lib.checks import expect, observe, read
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab05 import models

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


class Right:
    """A case's model as it is, and with its chosen modules exchanged for checkpointed ones."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def plain(self) -> tuple[float, int, int, list[Tensor | None]]:
        """Loss, FLOPs, saved bytes and gradients without any checkpoint."""
        return _counted(*_make(self.case), self.case)

    @cached_property
    def remade(self) -> tuple[float, int, int, list[Tensor | None]]:
        """The same with the chosen modules checkpointed."""
        model, loss = _make(self.case)
        chosen = _chosen(model, self.case["part"])
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if any(child is module for module in chosen):
                    setattr(parent, name, _Remade(child))
        return _counted(model, loss, self.case)


def _counted(
    model: nn.Module, loss: Callable[[], Tensor], case: Case
) -> tuple[float, int, int, list[Tensor | None]]:
    saved = memory.saved(loss, params_of=model).num_bytes
    value, flops, gradients = models.stepped(model, loss, case["seed"])
    return value, flops, saved, gradients


def _run(answer: Callable[..., Any], case: Case) -> Result:
    model, loss = _make(case)
    modules: Sequence[nn.Module] = _chosen(model, case["part"])

    try:
        with answer(modules):
            value, flops, saved, gradients = _counted(model, loss, case)
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
    said = observe.error_said(fail)
    after_error = memory.saved(loss, params_of=model).num_bytes
    seen = {"loss": value, "flops": flops, "saved": saved, "gradients": gradients}
    return {**seen, "after": list(after[:3]), "said": said, "after_error": after_error}


def _judge(case: Case, result: Result, right: Right) -> None:
    where = f"modules named {case['part']!r}: "
    (loss, flops, saved, gradients), plain = right.remade, right.plain
    expect.close(
        read.number(result.get("loss"), f"{where}the loss"),
        loss,
        otherwise="the model computes something else inside your block: does each module run its "
        "own forward? A lambda in a loop looks up the loop's variable when it is called.",
        tolerance=0,
        where=where,
    )
    seen_flops = read.integer(result.get("flops"), f"{where}FLOPs of the step")
    expect.close(
        seen_flops,
        flops,
        [("no product ran again: nothing is checkpointed inside your block.", plain[1])],
        otherwise=f"{(seen_flops - plain[1]) / (flops - plain[1]):.2f} times the FLOPs that "
        "should run again do so: each module is one segment, and no other part is.",
        tolerance=0,
        where=where,
    )
    seen = read.tensors(result.get("gradients"), len(gradients), "gradients")
    if not all(expect.same_bits(one, other) for one, other in zip(seen, plain[3], strict=True)):
        raise CheckError(
            f"{where}FLOPs are right, and gradients differ from those of the plain model. There is "
            "dropout inside: does a module draw the same random numbers again?"
        )
    seen_saved = read.integer(result.get("saved"), f"{where}saved bytes")
    expect.close(
        seen_saved,
        saved,
        otherwise=f"gradients are right, and {seen_saved:,} bytes are saved, where {saved:,} are "
        "wanted: only the arguments of each module should wait.",
        tolerance=0,
        where=where,
    )
    _judge_after(result, plain, where)


def _judge_after(
    result: Result, plain: tuple[float, int, int, list[Tensor | None]], where: str
) -> None:
    after = read.items(result.get("after"), "what the model does after the block")
    same = len(after) == 3 and after[1:] == list(plain[1:3])
    if not same:
        raise CheckError(
            f"{where}after your block the modules are still checkpointed, or no longer what they "
            "were: put back what you changed."
        )
    if after[0] != plain[0]:
        raise CheckError(
            f"{where}after your block the model gives another loss. One module came with a forward "
            "of its own, as LoRA sets one: put back that one, not the class's."
        )
    if not str(result.get("said")).startswith("KeyError"):
        raise CheckError(f"{where}an error inside your block was swallowed: let it through.")
    if result.get("after_error") != plain[2]:
        raise CheckError(
            f"{where}after an error inside your block the modules are still checkpointed: undo in "
            "`finally`."
        )


checkpoint_only = Check(
    "lab05.checkpoint_only",
    "5.1",
    "four choices of modules: gradients to the bit, bytes and FLOPs as they should be, all undone",
    _cases,
    _run,
    _judge,
    oracle=Right,
)
