"""Cases E and F."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from solutions.answers import right, wrong
from solutions.answers.lab09 import LAB, but, plain

answer = partial(but, "untrained_parts")


def gpt_step(model, optimizer, tokens, use_reentrant=False, unfreeze=False, marks=False):
    if unfreeze:
        model.token_embedding.requires_grad_(True)
    x = model.token_embedding(tokens) + model.position_embedding.weight[: tokens.size(1)]
    if marks:
        x.requires_grad_()
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=use_reentrant)
    logits = model.head(model.norm(x))[:, :-1]
    return LAB.update(optimizer, LAB.next_token_loss(logits, tokens))


def vit_step(model, optimizer, images, labels, off=lambda module: None, mode=True):
    model.train(mode)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            off(module)
    return LAB.update(optimizer, model(pixel_values=images, labels=labels).loss)


def to_zero(module):
    module.p = 0.0


def for_one_step(model, *batch):
    """The probabilities are put back."""
    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    before = [module.p for module in layers]
    loss = vit_step(model, *batch, off=to_zero)
    for module, p in zip(layers, before, strict=True):
        module.p = p
    return loss


e_other_cause = wrong("case E: the cause is not 'late binding'")(answer("E", cause="late binding"))
e_other_reading = wrong("case E: the cause is right, but 4 is not")(answer("E", reading=4))
e_still_broken = wrong("Do the blocks get gradients?")(answer("E", mended=LAB.broken_e))
e_plain = wrong("case E: this trains like the plain model")(answer("E", mended=plain))
e_unfreezes = wrong("your call changed a parameter's requires_grad")(
    answer("E", mended=partial(gpt_step, use_reentrant=True, unfreeze=True))
)

f_other_cause = wrong("case F: the cause is not 'one segment'")(answer("F", cause="one segment"))
f_other_reading = wrong("case F: the cause is right, but 2 is not")(answer("F", reading=2))
f_still_broken = wrong("case F: this trains like the plain model")(answer("F", mended=LAB.broken_f))
f_with_dropout = wrong("Is any dropout at work?")(answer("F", mended=vit_step))
f_for_good = wrong("a changed momentum or dropout probability")(
    answer("F", mended=partial(vit_step, off=to_zero))
)


@wrong("case F: the loss is a tensor")
def returns_the_loss_itself():
    def mended(model, optimizer, images, labels):
        LAB.untrained_parts()["F"][2](model, optimizer, images, labels)
        return model(pixel_values=images, labels=labels).loss

    return answer("F", mended=mended)()


@right
def marks_the_input():
    mended = partial(gpt_step, use_reentrant=True, marks=True)
    return {"E": ("frozen input", 48, mended), "F": ("not checkpointed", 1, for_one_step)}


@right
def by_mode():
    mended_f = partial(vit_step, off=nn.Module.eval)
    return {"F": ("not checkpointed", 1, mended_f), "E": ("frozen input", 48, gpt_step)}
