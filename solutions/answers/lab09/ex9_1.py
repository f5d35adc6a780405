"""Cases A and B."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from solutions.answers import right, wrong
from solutions.answers.lab09 import LAB, but, plain

answer = partial(but, "changed_in_between")


def gpt_step(model, optimizer, tokens, run):
    x = model.token_embedding(tokens) + model.position_embedding.weight[: tokens.size(1)]
    x = run(model.blocks, x)
    logits = model.head(model.norm(x))[:, :-1]
    return LAB.update(optimizer, LAB.next_token_loss(logits, tokens))


def in_one_segment(blocks, x):
    def all_blocks(x):
        for block in blocks:
            x = block(x)
        return x

    return checkpoint(all_blocks, x, use_reentrant=False)


def bound_by_default(blocks, x):
    for block in blocks:
        x = checkpoint(lambda t, block=block: block(t), x, use_reentrant=False)
    return x


def reentrant(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return x


def lstm_step(model, optimizer, tokens, settings, *, passes=True, moves="before", keeps=True):
    """Pass the scale as an argument, or move the schedule after backward."""

    def run(part, hidden, cell, scale=None):
        return model.chunk(part * (settings["scale"] if scale is None else scale), hidden, cell)

    x = model.embedding(tokens[:, :-1])
    hidden = cell = x.new_zeros(2, len(tokens), x.size(-1))
    outputs = []
    for part in x.split(model.config.chunk_len, dim=1):
        scale = [settings["scale"]] if passes else []
        call = partial(checkpoint, run, use_reentrant=False) if keeps else run
        output, hidden, cell = call(part, hidden, cell, *scale)
        outputs.append(output)
    loss = LAB.next_token_loss(model.head(torch.cat(outputs, dim=1)), tokens)
    if moves == "before":
        settings["scale"] /= 2
    logged = LAB.update(optimizer, loss)
    if moves == "after":
        settings["scale"] /= 2
    return logged


a_other_cause = wrong("case A: the cause is not 'random state'")(answer("A", cause="random state"))
a_other_reading = wrong("case A: the cause is right, but 4 is not")(answer("A", reading=4))
a_still_broken = wrong("Which block does a recomputation run?")(answer("A", mended=LAB.broken_a))
a_plain = wrong("case A: this trains like the plain model")(answer("A", mended=plain))
a_one_segment = wrong("case A: the training is right. The peak")(
    answer("A", mended=partial(gpt_step, run=in_one_segment))
)
a_no_cause = wrong("case A: the cause must be one of")(answer("A", cause="a lambda"))

b_other_cause = wrong("case B: the cause is not 'precision'")(answer("B", cause="precision"))
b_other_reading = wrong("case B: the cause is right, but 2 is not")(answer("B", reading=2))
b_still_broken = wrong("case B: gradients are off by")(answer("B", mended=LAB.broken_b))
b_plain = wrong("case B: this trains like the plain model")(
    answer("B", mended=partial(lstm_step, keeps=False))
)
b_no_schedule = wrong("case B: the schedule must advance")(
    answer("B", mended=partial(lstm_step, moves="never"))
)


def with_a_fixed_scale(model, optimizer, tokens, settings):
    logged = lstm_step(model, optimizer, tokens, {"scale": 1.0})
    settings["scale"] /= 2
    return logged


b_fixed_scale = wrong("so forward differs already")(answer("B", mended=with_a_fixed_scale))


@wrong("a dict with the keys A, B is needed")
def names_one_case():
    return {"A": LAB.changed_in_between()["A"]}


@wrong("3 values are wanted, cause, reading, mended function")
def leaves_the_reading_out():
    return {case: found[::2] for case, found in LAB.changed_in_between().items()}


@right
def with_defaults_and_arguments():
    mended_a = partial(gpt_step, run=bound_by_default)
    return {"A": ("late binding", 5.0, mended_a), "B": ("changed state", 0.5, lstm_step)}


@right
def reentrant_and_afterwards():
    mended_b = partial(lstm_step, passes=False, moves="after")
    mended_a = partial(gpt_step, run=reentrant)
    return {"A": ["late binding", 5, mended_a], "B": ["changed state", 0.5, mended_b]}
