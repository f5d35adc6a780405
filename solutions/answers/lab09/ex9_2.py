"""Cases C and D."""

from functools import partial

from torch import nn

from solutions.answers import right, wrong
from solutions.answers.lab09 import LAB, but, plain

answer = partial(but, "repeated_work")


def checkpointed_step(model, optimizer, *batch, parts=lambda model: model.blocks):
    for part in parts(model):
        LAB.checkpointed(part)
    return LAB.update(optimizer, model.loss(*batch))


def blocks_and_their_parts(model):
    """Each block, and its first part within it once more."""
    return [part for block in model.blocks for part in (block, block.res)]


def in_evaluation(model, optimizer, *batch):
    for block in model.blocks:
        block.eval()
    return checkpointed_step(model, optimizer, *batch)


def without_dropout(model, optimizer, *batch):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return checkpointed_step(model, optimizer, *batch)


def with_less_momentum(model, optimizer, *batch, back=True):
    """Two moves make one: (1 - s)^2 = 1 - m."""
    inside = [m for block in model.blocks for m in block.modules()]
    norms = [m for m in inside if isinstance(m, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = 1 - (1 - momentum) ** 0.5
    loss = checkpointed_step(model, optimizer, *batch)
    for norm, momentum in zip(norms, momenta if back else [], strict=back):
        norm.momentum = momentum
    return loss


def put_back_afterwards(model, optimizer, *batch):
    """What forward left is there again after backward."""
    for block in model.blocks:
        LAB.checkpointed(block)
    loss = model.loss(*batch)
    after_forward = [buffer.clone() for buffer in model.buffers()]
    logged = LAB.update(optimizer, loss)
    for buffer, value in zip(model.buffers(), after_forward, strict=True):
        buffer.copy_(value)
    return logged


c_other_cause = wrong("case C: the cause is not 'counted twice'")(
    answer("C", cause="counted twice")
)
c_reads_the_blocks_own_hooks = wrong("own hooks don't see its recomputation")(
    answer("C", cause="not checkpointed")
)
c_other_reading = wrong("case C: the cause is right, but 5 is not")(answer("C", reading=5))
c_still_broken = wrong("case C: gradients are off by")(answer("C", mended=LAB.broken_c))
c_plain = wrong("case C: this trains like the plain model")(answer("C", mended=plain))
c_nested = wrong("case C: the training is right. The peak")(
    answer("C", mended=partial(checkpointed_step, parts=blocks_and_their_parts))
)
c_without_dropout = wrong("Was dropout switched off, or a seed set?")(
    answer("C", mended=without_dropout)
)

d_other_cause = wrong("case D: the cause is not 'random state'")(answer("D", cause="random state"))
d_other_reading = wrong("case D: the cause is right, but 1 is not")(answer("D", reading=1))
d_still_broken = wrong("case D: gradients are right, and buffers are not")(
    answer("D", mended=LAB.broken_d)
)
d_plain = wrong("case D: this trains like the plain model")(answer("D", mended=plain))
d_in_evaluation = wrong("your call left a module in a different mode")(
    answer("D", mended=in_evaluation)
)

d_momentum_stays = wrong("a layer is left with a changed momentum")(
    answer("D", mended=partial(with_less_momentum, back=False))
)


@wrong("case D: the third value should be your function")
def calls_it():
    return {**LAB.repeated_work(), "D": ("counted twice", 2, 0.5)}


@right
def with_momentum():
    found = {"C": ("random state", 10, checkpointed_step)}
    return {**found, "D": ("counted twice", 2, with_less_momentum)}


@right
def afterwards():
    found = {"D": ("counted twice", 2, put_back_afterwards)}
    return {**found, "C": ("random state", 10, checkpointed_step)}
