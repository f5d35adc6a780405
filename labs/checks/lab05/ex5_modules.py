"""The checks of 5.1 and 5.3: chosen modules checkpointed, and chosen matmuls kept."""

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .given import modules
from .given.modules import Step, counted, make_model, modules_of

_PASSED_5_1 = (
    "four choices of modules: exact gradients, right bytes and FLOPs, all undone afterwards"
)
# Which modules, by the end of their names. "self_attn" is torch's own encoder, which calls its
# attention with keywords and takes a tuple from it.
_PARTS = ("attention", "mlp", "self_attn", "blocks.0 blocks.1")
_PASSED_5_3 = "four choices of matmuls: right FLOPs, bytes and gradients, in a GPT with dropout"
_MATMULS, _LINEAR = range(modules.NUM_MATMULS), (0, 3, 4, 5)


def draw_sizes(draw: Draw) -> dict[str, Any]:
    """Draw the sizes of a GPT with dropout and written-out attention, and of its batch."""
    sizes = {"seq_len": draw.choice([12, 16, 20]), "d_model": draw.choice([16, 24])}
    return {"seed": draw.randrange(10**6), "sizes": sizes, "batch": draw.choice([2, 3])}


def expect_gradients(result: Result, wanted: list[Tensor | None], otherwise: str) -> None:
    """Expect the gradients of a result to the bit."""
    seen = read.tensors(result["gradients"], len(wanted), "gradients")
    expect.fact(all(map(expect.same_bits, seen, wanted)), otherwise)


def _cases_5_1(draw: Draw) -> Cases:
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


_where = "modules named {part!r}: ".format_map


@check(given.checkpoint_only, _PASSED_5_1, _cases_5_1, oracle=_plain_and_exchanged, where=_where)
def checkpoint_only(case: Case, result: Result, right: tuple[Step, Step]) -> None:
    plain, wanted = right
    expect.fact(
        read.number(result["loss"], "the loss") == wanted.loss,
        "the model computes something else inside your block: does each module run its own "
        "forward, not its class's? A lambda in a loop looks up the loop's variable too late.",
    )
    flops = read.integer(result["flops"], "FLOPs of the step")
    again = (flops - plain.flops) / (wanted.flops - plain.flops)
    faults = {
        "no matmul ran again: nothing is checkpointed inside your block.": flops == plain.flops,
        f"{again:.2f} times as many FLOPs ran again as should: each module is one segment, and no "
        "other part is.": flops != wanted.flops,
    }
    expect.no_fault(faults)
    expect_gradients(
        result,
        plain.gradients,
        "FLOPs are right, but gradients differ from those of the plain model. There is dropout "
        "inside: does a module draw the same random numbers again?",
    )
    saved = read.integer(result["saved"], "saved bytes")
    advice = (
        "a function without arguments holds them in its closure, where autograd does not see them "
        "(lab 03). Pass the arguments to `checkpoint`."
    )
    advice = "save only the arguments of each module." if saved > wanted.saved else advice
    after = read.items(result["after"], "what the model does after the block")
    faults = {
        f"gradients are right, but {saved:,} bytes are saved instead of {wanted.saved:,}: "
        f"{advice}": saved != wanted.saved,
        "after your block the modules are still checkpointed, or otherwise changed: put back what "
        "you changed.": after[1:] != [plain.flops, plain.saved],
        "after your block the model gives another loss. One module has its own forward, as LoRA "
        "sets it: put back that one, not the class's.": after[:1] != [plain.loss],
        "an error inside your block was swallowed: let it through.": (
            not str(result["said"]).startswith("KeyError")
        ),
        "after an error inside your block the modules are still checkpointed: undo in "
        "`finally`.": result["after_error"] != plain.saved,
    }
    expect.no_fault(faults)


def _cases_5_3(draw: Draw) -> Cases:
    sizes, drawn = draw_sizes(draw), sorted(draw.sample(_MATMULS, 3))
    yield from ({**sizes, "keep": keep} for keep in ([0, 4], [1, 2, 3], drawn, list[int]()))


class _Right:
    """The bytes of a case's step: plain, checkpointed, and with some matmuls kept."""

    def __init__(self, case: Case) -> None:
        gpt, tokens = modules.make_gpt(case)
        self.plain = modules.stepped(gpt, lambda: gpt.loss(tokens), case["seed"])
        width, seq = gpt.config.d_model, gpt.config.seq_len
        per_row = [  # multiplications, and numbers of the result
            (3 * width**2, 3 * width),
            (seq * width, seq * gpt.config.num_heads),
            (seq * width, width),
            (width**2, width),
            (4 * width**2, 4 * width),
            (4 * width**2, width),
        ]
        rows = case["batch"] * seq
        # FLOPs of each matmul of a block, and bytes of its result
        self.matmuls = [(2 * rows * flops, 4 * rows * numbers) for flops, numbers in per_row]
        checkpointed, tokens = modules.make_gpt(case)
        modules.checkpoint_blocks(checkpointed)
        self.waiting = modules.waiting_bytes(checkpointed, tokens)

    def flops(self, *kept: Collection[int]) -> int:
        """FLOPs of a step whose blocks keep these matmuls."""
        again = [self.matmuls[i][0] for keep in kept for i in _MATMULS if i not in set(keep)]
        return self.plain.flops + int(sum(again))

    def bytes_with(self, keep: Collection[int]) -> int:
        """Bytes that wait where both blocks keep these matmuls."""
        return self.waiting + 2 * int(sum(self.matmuls[i][1] for i in keep))


@check(given.keep_matmuls, _PASSED_5_3, _cases_5_3, oracle=_Right, where="keep {keep}: ".format_map)
def keep_matmuls(case: Case, result: Result, right: _Right) -> None:
    keep, plain = case["keep"], right.plain
    expect.fact(
        read.flag(result, "same_again"),
        "asked in the recomputation too, as some PyTorch releases do, your policy keeps other "
        "matmuls than in forward: each run counts from 0, and context.is_recompute tells which.",
    )
    flops, wanted = read.integer(result["flops"], "FLOPs"), right.flops(keep, keep)
    again = (flops - plain.flops) / max(wanted - plain.flops, 1)
    expect.close(
        flops,
        wanted,
        _flops_faults(right, keep),
        otherwise=f"{again:.2f} times as many FLOPs ran again as should: print in the policy which "
        "operations get a number, and which of them are kept.",
    )
    waiting, should_wait = read.integer(result["waiting"], "waiting bytes"), right.bytes_with(keep)
    other = (
        "bytes and FLOPs are right, but loss or gradients are not those of the plain model: does "
        "each matmul get its own result back?"
    )
    faults = {
        f"the right matmuls run again, but {waiting:,} bytes wait for backward instead of "
        f"{should_wait:,}: recompute the results of other operations.": waiting != should_wait,
        other: read.number(result["loss"], "the loss") != plain.loss,
    }
    expect.no_fault(faults)
    expect_gradients(result, plain.gradients, other)


def _flops_faults(right: _Right, keep: Collection[int]) -> Faults:
    others, fewer = [i for i in _MATMULS if i not in keep], [i - 1 for i in keep]
    kept = {
        "no matmul ran again: your policy keeps them all, whatever was asked for.": _MATMULS,
        "every matmul ran again: nothing was kept, or the recomputation did not use it.": (),
        "those that should be kept ran again, but the others did not.": others,
        "your policy keeps all linear layers: an operation's name can't tell them apart, so "
        "count.": _LINEAR,
        "your policy counts from 1, but matmuls are numbered from 0.": fewer,
    }
    yield from ((words, right.flops(one, one)) for words, one in kept.items())
    one_block = "one of the two blocks kept its matmuls, and the other one did not: each segment "
    yield f"{one_block}counts for itself.", right.flops(keep, ())
