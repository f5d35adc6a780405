"""The memory exam: a training step that must fit where plain backpropagation does not.

A meter inside the answer's process can be changed by the answer. The limit of an exam is set by the
operating system before any line of the answer runs, and the gradients are compared with those of
fresh data. So only a step that needs little memory passes. A grader on Linux holds the exam; a
notebook does not, since it would limit the learner's own process.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from tutorial_lib.checks.given.half import Run
from tutorial_lib.checks.given.values import Answer, Case, CheckError, Result
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.units import MIB, human_bytes

ROWS, NUM_BLOCKS, WIDTH, DEPTH = 1024, 16, 512, 4
_SEQ = 16  # tokens in a row of a GPT's
# A checkpointed step of this chain takes 66 MiB; the rest is for what an answer imports.
ALLOWED_BYTES = 150 * MIB
# Each round of a block saves three storages of the size of its input.
_PLAIN_BYTES = NUM_BLOCKS * DEPTH * 3 * ROWS * WIDTH * 4
_SAVED = (
    f"Plain backpropagation saves {human_bytes(_PLAIN_BYTES)} here. What does your step keep until "
    "backward?"
)


class Block(nn.Module):
    """Adds to each entry what depends on that entry alone: little work for many saved bytes.

    Args:
        weights: `(depth, columns)`.
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, h: Tensor, *_: Any) -> Tensor:
        """Map `(rows, columns)` to the same shape."""
        for weight in self.weights.unbind():
            h = h + weight * (h / (1 + h.square()))
        return h


class HalfSquares(nn.Module):
    """The loss of one or more outputs: half the sum of all squares."""

    def forward(self, *outputs: Tensor) -> Tensor:
        """Return half the sum of the outputs' squares."""
        return torch.stack([out.square().sum() for out in outputs]).sum() / 2


half_squares = HalfSquares()


class Chain(nn.Sequential):
    """Blocks in a row, with a loss."""

    def loss_sum(self, rows: Tensor) -> Tensor:
        """Add up the losses of all rows."""
        loss: Tensor = half_squares(self(rows))
        return loss

    def loss(self, rows: Tensor, *_: Tensor) -> Tensor:
        """Return the mean loss over the rows."""
        return self.loss_sum(rows) / len(rows)


def make(case: Case) -> tuple[Chain, Tensor]:
    """Build the blocks and the rows of an exam."""
    generator = torch.Generator().manual_seed(case["seed"])
    weights = (torch.randn(DEPTH, WIDTH, generator=generator) / 2 for _ in range(NUM_BLOCKS))
    chain = Chain(*map(Block, weights))
    return chain, torch.randn(ROWS, WIDTH, generator=generator)


def make_gpt(case: Case) -> tuple[GPT, tuple[Tensor]]:
    """Build a GPT with the blocks of an exam, and its batch, tokens `(rows, seq)`."""
    chain, _ = make(case)
    torch.manual_seed(case["seed"])
    sizes: Any = {"vocab_size": 32, "seq_len": _SEQ, "num_heads": 2, "d_model": WIDTH}
    gpt = GPT(GPTConfig(num_layers=1, tie_weights=False, **sizes))
    gpt.blocks = nn.ModuleList(chain)
    return gpt, (torch.randint(32, (ROWS // _SEQ, _SEQ)),)


def gradients(chain: nn.Module) -> dict[str, Any]:
    """Return the result of an exam: the gradients of all blocks."""
    return {"gradients": [parameter.grad for parameter in chain.parameters()]}


def of(step: Run, words: str = _SAVED) -> Run:
    """Make the exam of a check: where a step has no room, `words` say what takes the memory.

    The step has the answer train on `make(case)`, and returns `gradients(chain)`.
    """

    @functools.wraps(step)
    def run(answer: Answer, case: Case) -> Result:
        try:
            return step(answer, case)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate" not in str(error):
                raise
            raise CheckError(
                f"memory exam: with {human_bytes(ALLOWED_BYTES)} beyond what the program itself "
                f"needs, the training step ran out of memory. {words}"
            ) from error

    return run


def of_checkpoint(call_of: Callable[[Any], Callable[..., Any]] = lambda answer: answer) -> Run:
    """Make the exam of a checkpoint: `call_of` the answer is called with a block and its inputs."""

    def step(answer: Answer, case: Case) -> Result:
        call, (chain, h) = call_of(answer), make(case)
        h.requires_grad_()
        unused = torch.zeros(())
        for block in chain:
            h = call(block, h, unused)
        half_squares(h).backward()
        return gradients(chain)

    return of(step)


def of_context() -> Run:
    """Make the exam of a context manager that is given modules, and checkpoints each of them."""

    def step(answer: Answer, case: Case) -> Result:
        chain, h = make(case)
        with answer(list(chain)):
            half_squares(chain(h.requires_grad_())).backward()
        return gradients(chain)

    return of(step)


def of_update(
    train: Callable[[Any, Any, Optimizer, Any], Any],
    make_model: Callable[[Case], tuple[nn.Module, Any]] = make,
    words: str = _SAVED,
) -> Run:
    """Make the exam of an answer that trains: of one update, by the mean over all rows.

    Args:
        train: Has the answer train a model with an optimizer on a batch.
        make_model: Makes model and batch, if not a chain and rows. The check then needs an answer
            that passes, to compare with.
        words: End the message to a step that ran out of memory.
    """

    def step(answer: Answer, case: Case) -> Result:
        model, batch = make_model(case)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer, found = SGD(trained, lr=0.1), list[Tensor]()
        optimizer.register_step_post_hook(  # a closure of the step has run by then
            lambda *_: found.extend(ROWS * p.grad for p in trained if p.grad is not None)
        )
        train(answer, model, optimizer, batch)
        return {"gradients": found}

    return of(step, words)
