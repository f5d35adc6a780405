"""The check of 5.1: a context that checkpoints chosen modules."""

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given
from .given.modules import Step, counted, make_model, modules_of
from .gpts import draw_sizes, expect_gradients

_PASSED = (
    "four choices of modules: gradients to the bit, bytes and FLOPs as they should be, all undone"
)
# Which modules, by the end of their names. "self_attn" is torch's own encoder, which calls its
# attention with keywords and takes a tuple from it.
_PARTS = ("attention", "mlp", "self_attn", "blocks.0 blocks.1")


def _cases(draw: Draw) -> Cases:
    yield from ({**draw_sizes(draw), "part": part} for part in _PARTS)


class _Remade(nn.Module):
    """Stands in the place of a module, and checkpoints it."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.inside, *args, use_reentrant=False, **kwargs)


def _plain_and_exchanged(case: Case) -> tuple[Step, Step]:
    """Count the plain step, and that of a model whose chosen modules are exchanged."""
    plain = counted(*make_model(case), case)
    model, loss = make_model(case)
    chosen = set(modules_of(model, case["part"]))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in chosen:
                setattr(parent, name, _Remade(child))
    return plain, counted(model, loss, case)


def _where(case: Case) -> str:
    return f"modules named {case['part']!r}: "


@check(given.checkpoint_only, _PASSED, _cases, oracle=_plain_and_exchanged, where=_where)
def checkpoint_only(case: Case, result: Result, right: tuple[Step, Step]) -> None:
    plain, wanted = right
    expect.fact(
        read.number(result["loss"], "the loss") == wanted.loss,
        "the model computes something else inside your block: does each module run its own "
        "forward? A lambda in a loop looks up the loop's variable when it is called.",
    )
    flops = read.integer(result["flops"], "FLOPs of the step")
    again = (flops - plain.flops) / (wanted.flops - plain.flops)
    faults = {
        "no matmul ran again: nothing is checkpointed inside your block.": flops == plain.flops,
        f"{again:.2f} times the FLOPs that should run again do so: each module is one segment, and "
        "no other part is.": flops != wanted.flops,
    }
    expect.no_fault(faults)
    expect_gradients(
        result,
        plain.gradients,
        "FLOPs are right, and gradients differ from those of the plain model. There is dropout "
        "inside: does a module draw the same random numbers again?",
    )
    saved = read.integer(result["saved"], "saved bytes")
    advice = (
        "a function without arguments holds them in its closure, where autograd does not see them "
        "(lab 03). Hand the arguments to `checkpoint`."
    )
    advice = "only the arguments of each module should wait." if saved > wanted.saved else advice
    after = read.items(result["after"], "what the model does after the block")
    faults = {
        f"gradients are right, and {saved:,} bytes are saved, where {wanted.saved:,} are wanted: "
        f"{advice}": saved != wanted.saved,
        "after your block the modules are still checkpointed, or no longer what they were: put "
        "back what you changed.": after[1:] != [plain.flops, plain.saved],
        "after your block the model gives another loss. One module came with a forward of its own, "
        "as LoRA sets one: put back that one, not the class's.": after[:1] != [plain.loss],
        "an error inside your block was swallowed: let it through.": (
            not str(result["said"]).startswith("KeyError")
        ),
        "after an error inside your block the modules are still checkpointed: undo in "
        "`finally`.": result["after_error"] != plain.saved,
    }
    expect.no_fault(faults)
