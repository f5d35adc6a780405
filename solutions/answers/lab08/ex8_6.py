"""An update that survives running out of memory."""

import gc

import torch

from solutions.answers import right, solved, wrong

keeps_half_a_gradient = wrong(
    "clear the gradients that a failed attempt",
    "        optimizer.zero_grad()\n        with",
    "        with",
    "    while",
    "    optimizer.zero_grad()\n    while",
)
says_nothing = wrong(
    "say that a micro-batch of 1 does not fit",
    "micro-batches of 1 do not fit: free memory.",
    "sorry",
)
gives_up_early = wrong("the last size to try is 1", "micro_batch == 1", "micro_batch == 2")
draws_on = wrong(
    "so the update drew other numbers", "        torch.set_rng_state(random_state)\n", ""
)
catches_all = wrong(
    "but you tried again: catch only torch.OutOfMemoryError",
    "suppress(torch.OutOfMemoryError)",
    "suppress(RuntimeError)",
)
begins_with_one = wrong(
    "is the first of", "    random_state =", "    micro_batch = 1\n    random_state ="
)
never_steps = wrong("no update was made", "    optimizer.step()\n", "")
leaves_gradients = wrong(
    "gradients are still there",
    "    optimizer.step()\n    optimizer.zero_grad()",
    "    optimizer.step()",
)
gives_the_loss_alone = wrong(
    "2 values are wanted, the loss and the micro-batch", "return loss, micro_batch", "return loss"
)
leaves_gradients_when_it_gives_up = wrong(
    "gradients of half a batch stay", "            optimizer.zero_grad()\n", ""
)
clears_after_failures_alone = wrong(
    "clear the gradients that somebody before you",
    "        optimizer.zero_grad()\n        with",
    "        with",
    "        torch.set_rng",
    "        optimizer.zero_grad()\n        torch.set_rng",
)
keeps_the_error = wrong(
    "keeps the graph of its attempt",
    "        with contextlib.suppress(torch.OutOfMemoryError):\n"
    "            loss = backward_in_pieces(unet, drawn, micro_batch)\n"
    "            break\n",
    "        try:\n"
    "            loss = backward_in_pieces(unet, drawn, micro_batch)\n"
    "            break\n"
    "        except torch.OutOfMemoryError as error:\n"
    "            last = error\n",
)
takes_half_a_step_for_an_update = wrong(
    "you returned as after a full update",
    "        optimizer.zero_grad()\n        with",
    "        optimizer.zero_grad()\n        loss = None\n        with",
    "            break",
    "            optimizer.step()\n        if loss is not None:\n            break",
    "    optimizer.step()\n    optimizer.zero",
    "    optimizer.zero",
)
tries_again_after_half_a_step = wrong(
    "a retry changes them twice",
    "            break",
    "            optimizer.step()\n            break",
    "    optimizer.step()\n    optimizer.zero",
    "    optimizer.zero",
)
with_an_error_of_its_own = right(
    'torch.OutOfMemoryError("', "type('NothingFitsError', (torch.OutOfMemoryError,), {})(\""
)
right_with_all_precautions = right("micro_batch //= 2", "micro_batch = max(1, micro_batch // 2)")


LAB = solved("lab08")
WORDS = "a micro-batch of 1 does not fit: free some memory."
again_inside_except = wrong(
    "which the error itself holds inside",
    "with contextlib.suppress(torch.OutOfMemoryError):",
    "try:",
    "            break\n",
    "            break\n"
    "        except torch.OutOfMemoryError:\n"
    "            torch.set_rng_state(random_state)\n"
    "            if micro_batch > 1:\n"
    "                return update_that_fits(unet, optimizer, drawn, micro_batch // 2)\n",
)


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
