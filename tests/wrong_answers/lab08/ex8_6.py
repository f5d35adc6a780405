"""An update that survives running out of memory."""

import gc

import torch

from wrong_answers import right, solved, wrong

LAB = solved("lab08")
WORDS = "a micro-batch of 1 does not fit: free some memory."


def shrinking(
    *, clear=True, put_back=True, caught=torch.OutOfMemoryError, words=WORDS, least=1, tidy=True
):
    """The solution with some of its precautions."""

    def update_that_fits(unet, optimizer, drawn, micro_batch):
        state = torch.get_rng_state()
        optimizer.zero_grad()
        while True:
            failed = False
            try:
                loss = LAB.backward_in_pieces(unet, drawn, micro_batch)
            except caught:
                failed = True
            if not failed:
                optimizer.step()
                optimizer.zero_grad()
                return loss, micro_batch
            if put_back:
                torch.set_rng_state(state)
            if clear:
                optimizer.zero_grad()
            if micro_batch == least:
                if tidy:
                    optimizer.zero_grad()
                raise torch.OutOfMemoryError(words)
            micro_batch = max(1, micro_batch // 2)

    return update_that_fits


keeps_half_a_gradient = wrong("clear the gradients that a failed attempt")(shrinking(clear=False))
says_nothing = wrong("say that a micro-batch of 1 does not fit")(shrinking(words="sorry"))
gives_up_early = wrong("the last to try is 1")(shrinking(least=2))


@wrong("and so the update drew other numbers")
def draws_on(unet, optimizer, drawn, micro_batch):
    return shrinking(put_back=False)(unet, optimizer, drawn, micro_batch)


@wrong("it was tried again: catch torch.OutOfMemoryError alone")
def catches_all(unet, optimizer, drawn, micro_batch):
    return shrinking(caught=RuntimeError)(unet, optimizer, drawn, micro_batch)


@wrong("which the error itself holds as long as it is handled")
def again_inside_except(unet, optimizer, drawn, micro_batch):
    state = torch.get_rng_state()
    optimizer.zero_grad()
    try:
        loss = LAB.backward_in_pieces(unet, drawn, micro_batch)
    except torch.OutOfMemoryError:
        optimizer.zero_grad()
        torch.set_rng_state(state)
        if micro_batch == 1:
            raise torch.OutOfMemoryError(WORDS) from None
        return again_inside_except(unet, optimizer, drawn, micro_batch // 2)
    optimizer.step()
    optimizer.zero_grad()
    return loss, micro_batch


@wrong("is the first of")
def begins_with_one(unet, optimizer, drawn, micro_batch):
    return shrinking()(unet, optimizer, drawn, 1)


@wrong("no update was made")
def never_steps(unet, optimizer, drawn, micro_batch):
    loss = LAB.backward_in_pieces(unet, drawn, micro_batch)
    optimizer.zero_grad()
    return loss, micro_batch


@wrong("gradients are still there")
def leaves_gradients(unet, optimizer, drawn, micro_batch):
    optimizer.zero_grad()
    loss = LAB.backward_in_pieces(unet, drawn, micro_batch)
    optimizer.step()
    return loss, micro_batch


@wrong("2 values are wanted, the loss and the micro-batch")
def gives_the_loss_alone(unet, optimizer, drawn, micro_batch):
    return shrinking()(unet, optimizer, drawn, micro_batch)[0]


@wrong("gradients of half a batch stay")
def leaves_gradients_when_it_gives_up(unet, optimizer, drawn, micro_batch):
    try:
        return shrinking()(unet, optimizer, drawn, micro_batch)
    except torch.OutOfMemoryError:
        for p in unet.parameters():
            p.grad = torch.zeros(p.shape)
            break
        raise


@wrong("clear the gradients that somebody before you")
def clears_after_failures_alone(unet, optimizer, drawn, micro_batch):
    state = torch.get_rng_state()
    while micro_batch:
        loss = None
        try:
            loss = LAB.backward_in_pieces(unet, drawn, micro_batch)
        except torch.OutOfMemoryError:
            torch.set_rng_state(state)
        if loss is not None:
            optimizer.step()
            optimizer.zero_grad()
            return loss, micro_batch
        optimizer.zero_grad()
        micro_batch //= 2
    raise torch.OutOfMemoryError(WORDS)


@wrong("keeps the graph of its attempt")
def keeps_the_error(unet, optimizer, drawn, micro_batch):
    state, last = torch.get_rng_state(), None
    while micro_batch:
        optimizer.zero_grad()
        loss = None
        try:
            loss = LAB.backward_in_pieces(unet, drawn, micro_batch)
        except torch.OutOfMemoryError as error:
            last = error
        if loss is not None:
            optimizer.step()
            optimizer.zero_grad()
            return loss, micro_batch
        torch.set_rng_state(state)
        micro_batch //= 2
    optimizer.zero_grad()
    raise torch.OutOfMemoryError(WORDS) from last


@wrong("you returned as after a whole update")
def takes_half_a_step_for_an_update(unet, optimizer, drawn, micro_batch):
    state = torch.get_rng_state()
    while micro_batch:
        optimizer.zero_grad()
        loss = None
        try:
            loss = LAB.backward_in_pieces(unet, drawn, micro_batch)
            optimizer.step()
        except torch.OutOfMemoryError:
            pass
        if loss is not None:
            optimizer.zero_grad()
            return loss, micro_batch
        torch.set_rng_state(state)
        micro_batch //= 2
    optimizer.zero_grad()
    raise torch.OutOfMemoryError(WORDS)


@wrong("another attempt moves them twice")
def tries_again_after_half_a_step(unet, optimizer, drawn, micro_batch):
    state = torch.get_rng_state()
    while micro_batch:
        optimizer.zero_grad()
        done = False
        try:
            loss = LAB.backward_in_pieces(unet, drawn, micro_batch)
            optimizer.step()
            done = True
        except torch.OutOfMemoryError:
            pass
        if done:
            optimizer.zero_grad()
            return loss, micro_batch
        torch.set_rng_state(state)
        micro_batch //= 2
    optimizer.zero_grad()
    raise torch.OutOfMemoryError(WORDS)


class NothingFitsError(torch.OutOfMemoryError):
    pass


@right
def with_an_error_of_its_own(unet, optimizer, drawn, micro_batch):
    said = ""
    try:
        return shrinking()(unet, optimizer, drawn, micro_batch)
    except torch.OutOfMemoryError as error:
        said = str(error)
    raise NothingFitsError(said)


right_with_all_precautions = right(shrinking())


@right
def with_a_helper_and_a_collection(unet, optimizer, drawn, micro_batch):
    state = torch.get_rng_state()

    def attempt(size):
        optimizer.zero_grad(set_to_none=True)
        torch.set_rng_state(state)
        try:
            return LAB.backward_in_pieces(unet, drawn, size)
        except torch.OutOfMemoryError:
            return None

    while (loss := attempt(micro_batch)) is None:
        gc.collect()
        micro_batch //= 2
        if not micro_batch:
            optimizer.zero_grad()
            torch.set_rng_state(state)
            raise torch.OutOfMemoryError("even micro_batch 1 is too much: choose more segments.")
    optimizer.step()
    optimizer.zero_grad()
    return loss, micro_batch
