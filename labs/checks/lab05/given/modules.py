"""Small models and one counted step of them, and the halves that run the answers to 5.1 and 5.3."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import memory
from tutorial_lib.checks.given import Answer, Case, CheckError, Result, exam, observe, run_half
from tutorial_lib.checks.given.forbid import Forbidden
from tutorial_lib.instruments.private_torch import policy_of
from tutorial_lib.models.gpt import GPT, GPTConfig

_SEGMENTS = "tutorial_lib.instruments.segments"
_NO_SEGMENTS = Forbidden(
    "the library's segments do this lab's work by themselves, so your answer may not call them: "
    "replace each module's forward, and put it back.",
    tuple(f"{_SEGMENTS}:{name}" for name in ("applied", "called_through", "replace_method")),
)
NUM_MATMULS = 6  # of a block with eager attention: qkv, scores, mix, out, up, down


class Step(NamedTuple):
    """The results and costs of one step of training, with saved bytes where they are counted."""

    loss: float
    flops: int
    gradients: list[Tensor | None]
    saved: int = 0


def make_gpt(case: Case) -> tuple[GPT, Tensor]:
    """Make a case's GPT of two blocks, all gradients there, and tokens `(batch, seq)`."""
    torch.manual_seed(case["seed"])
    config = {"vocab_size": 32, "num_layers": 2, "num_heads": 2, "attention": "eager"}
    gpt = GPT(GPTConfig(**{**config, "dropout": 0.2, **case["sizes"]}))
    observe.fill_gradients(gpt, 0)  # their arrival would hide what activations take
    return gpt, torch.randint(32, (case["batch"], gpt.config.seq_len))


def stepped(model: nn.Module, loss: Callable[[], Tensor], seed: int) -> Step:
    """Do one step of forward and backward, counted."""
    model.zero_grad()
    torch.manual_seed(seed)
    with FlopCounterMode(display=False) as counter:
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
    gradients = [None if g is None else g.clone() for g in observe.gradients_of(model)]
    return Step(value.item(), counter.get_total_flops(), gradients)


def context_of(returned: Any, name: str) -> AbstractContextManager[Any]:
    """Read a context manager that an answer returned: `with` would say less of anything else."""
    if hasattr(type(returned), "__enter__") and hasattr(type(returned), "__exit__"):
        return returned  # type: ignore[no-any-return]
    kind = type(returned).__name__
    raise CheckError(f"{name} should return a context manager, for `with`, but {kind} came.")


def make_model(case: Case) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Make a model with a way to its loss; the first MLP has a forward of its own, as LoRA has."""
    if case["part"] == "self_attn":
        torch.manual_seed(case["seed"])
        layers = [nn.TransformerEncoderLayer(16, 2, 32, 0.2, batch_first=True) for _ in range(2)]
        encoder, x = nn.Sequential(*layers), torch.randn(case["batch"], 8, 16)
        return encoder, lambda: encoder(x).square().mean()
    gpt, tokens = make_gpt(case)
    mlp = gpt.get_submodule("blocks.0.mlp")
    forward = mlp.forward
    mlp.forward = lambda x: 2 * forward(x)
    return gpt, lambda: gpt.loss(tokens)


def modules_of(model: nn.Module, part: str) -> list[nn.Module]:
    """List the modules whose names end so."""
    return [m for name, m in model.named_modules() if name.endswith(tuple(part.split()))]


def counted(model: nn.Module, loss: Callable[[], Tensor], case: Case) -> Step:
    """Do one step, and count its saved bytes as well."""
    saved = memory.saved(loss, params_of=model).num_bytes
    return stepped(model, loss, case["seed"])._replace(saved=saved)


@run_half("5.1", forbidden=[_NO_SEGMENTS], exam=exam.of_context())
def checkpoint_only(answer: Answer, case: Case) -> Result:
    model, loss = make_model(case)
    modules = modules_of(model, case["part"])
    context = context_of(answer(modules), "checkpoint_only")
    try:
        with context:
            step = counted(model, loss, case)
    except RecursionError as error:
        raise CheckError(
            "the calls never end. Calling the module runs its forward, which is now yours, and "
            "yours calls the module. Keep the forward that was there before, and call that."
        ) from error
    except TypeError as error:
        raise CheckError(
            f"a call in your block failed ({error}). Call checkpoint when the model calls the "
            "module, and pass on all arguments, *args and **kwargs: many models use keywords."
        ) from error
    except ValueError as error:
        if "keyword arguments" not in str(error):
            raise
        raise CheckError(
            "the reentrant checkpoint takes no keyword arguments, but models call their attention "
            "with some: pass use_reentrant=False."
        ) from error

    def fail() -> None:
        with answer(modules):
            raise KeyError("an error inside")

    after = counted(model, loss, case)
    return {
        **step._asdict(),
        "after": [after.loss, after.flops, after.saved],
        "said": observe.error_said(fail),
        "after_error": memory.saved(loss, params_of=model).num_bytes,
    }


def checkpoint_blocks(gpt: GPT, **options: Any) -> None:
    """Have each block checkpointed, by PyTorch, with these options."""
    for block in gpt.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def waiting_bytes(gpt: GPT, tokens: Tensor) -> int:
    """Count the bytes that wait for backward."""
    held: list[Tensor] = []
    _, stayed = observe.peak_above(lambda: held.append(gpt.loss(tokens)), gpt)
    return stayed


@run_half("5.3")
def keep_matmuls(answer: Answer, case: Case) -> Result:
    gpt, tokens = make_gpt(case)
    context_fn = answer(set(case["keep"]))
    if not callable(context_fn):
        raise CheckError(
            f"{type(context_fn).__name__} came, but a function is needed: checkpoint calls it "
            "before each segment, so that each segment has contexts of its own."
        )
    checkpoint_blocks(gpt, context_fn=context_fn)
    try:
        step = stepped(gpt, lambda: gpt.loss(tokens), case["seed"])
    except (RuntimeError, IndexError) as error:
        if "mutated" in str(error):
            raise CheckError(
                "a result was changed in place after it was kept, and PyTorch refuses to return "
                "it: keep only matmuls."
            ) from error
        raise CheckError(
            f"backward failed ({type(error).__name__}: {str(error)[:120]}). The recomputation "
            "asked for a result that forward did not keep: each segment counts for itself."
        ) from error
    asked = {"same_again": _same_again(answer(set(case["keep"])))}
    return {**step._asdict(), **asked, "waiting": waiting_bytes(gpt, tokens)}


def _same_again(context_fn: Callable[[], Any]) -> bool:
    """Ask the policy about both runs: not every release asks it about the recomputation."""
    operands = torch.empty(2, 2), torch.empty(2, 2)
    kept = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE
    policy = policy_of(context_fn()[0])
    if policy is None:  # contexts of the answer's own
        return True
    first, again = (
        [policy(context, torch.ops.aten.mm.default, *operands) in kept for _ in range(NUM_MATMULS)]
        for context in (SelectiveCheckpointContext(is_recompute=again) for again in (False, True))
    )
    return first == again
