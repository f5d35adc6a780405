"""Case I."""

from functools import partial

from torch.utils.checkpoint import checkpoint

from solutions.answers import right, wrong
from solutions.answers.lab09 import LAB, but, plain

answer = partial(but, "died_in_backward", "I")


def step(model, optimizer, images, labels, *, parts=1):
    """Checkpoint each so many blocks."""
    blocks = list(model.blocks)
    for block in blocks if parts == 1 else ():
        LAB.checkpointed(block)
    if parts > 1:
        for place in range(0, len(blocks), parts):
            group = blocks[place : place + parts]
            group[0].forward = partial(checkpoint, partial(through, group), use_reentrant=False)
            for block in group[1:]:
                block.forward = lambda x: x
    return LAB.update(optimizer, model.loss(images, labels))


def through(blocks, x):
    for block in blocks:
        x = type(block).forward(block, x)
    return x


def in_evaluation(model, *batch):
    model.eval()
    return step(model, *batch)


other_cause = wrong("case I: the cause is not 'optimizer states'")(answer(cause="optimizer states"))
other_reading = wrong("case I: the cause is right, but 8 is not")(answer(reading=8))
still_broken = wrong("case I: the training is right. The peak")(answer(mended=LAB.broken_i))
no_checkpoint = wrong("case I: this trains like the plain model")(answer(mended=plain))
evaluates = wrong("your call left a module in a different mode")(answer(mended=in_evaluation))


@right
def by_forward():
    def mended(model, optimizer, *batch):
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return LAB.update(optimizer, model.loss(*batch))

    return {"I": ("one segment", 4.0, mended)}


@right
def in_pairs():
    return {"I": ["one segment", 4, partial(step, parts=2)]}
