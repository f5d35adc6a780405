"""Findings of lab 09 with one thing changed: the others are the solution's."""

from torch.optim import Optimizer

from solutions.answers import solved

LAB = solved("lab09")


def but(name, case, *, cause=None, reading=None, mended=None):
    """Make an answer that differs from the solution in one case."""

    def answer():
        found = getattr(LAB, name)()
        right = found[case]
        return {**found, case: (cause or right[0], reading or right[1], mended or right[2])}

    return answer


def plain(model, optimizer: Optimizer, *batch):
    """Stop checkpointing."""
    return LAB.plain_step(model, optimizer, *batch)
