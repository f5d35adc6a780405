"""Chapter 07d: the two hooks that move a tensor to the host and back."""

from solutions.answers import right, wrong

FILLINGS = {
    "offloading": {
        "keeps_a_copy_on_the_device": wrong(
            "pack returns a Tensor, but must return an array", ".numpy().copy()", ".clone()"
        ),
        "shares_the_tensors_memory": wrong(
            "The array shares the tensor's memory", ".numpy().copy()", ".numpy()"
        ),
        "shares_the_arrays_memory": wrong("The tensor shares the array's memory", ".clone()", ""),
        "forgets_to_count": wrong(
            "are [16] in `copied`, not []", "copied.append(tensor.nbytes)", "pass"
        ),
        "counts_numbers": wrong("are [16] in `copied`, not [4]", "tensor.nbytes", "tensor.numel()"),
        "does_not_detach": wrong("on Tensor that requires grad", ".detach()", ""),
        "goes_by_torch_tensor": right("torch.from_numpy(array).clone()", "torch.tensor(array)"),
    },
    "prefetching": {
        "fetches_nothing_early": wrong(
            "in backward: in 2 wait [2] in 1 wait [1]",
            "            if number and self.on_host[number - 1]:\n"
            "                self.fetch(number - 1)  # during this block's backward\n",
            "",
        ),
        "waits_for_the_next_one_too": wrong(
            "in 2 in 1 wait [2]",
            "            self.streams.current_stream().wait_stream(self.side)\n"
            "            if number and self.on_host[number - 1]:\n"
            "                self.fetch(number - 1)  # during this block's backward\n",
            "            if number and self.on_host[number - 1]:\n"
            "                self.fetch(number - 1)\n"
            "            self.streams.current_stream().wait_stream(self.side)\n",
        ),
        "waits_for_each_tensor": wrong(
            "3 blocks of 2 tensors",
            "        if number - 1 not in self.back:  # else it was done for an earlier tensor\n"
            "            self.streams.current_stream().wait_stream(self.side)\n"
            "            if number and self.on_host[number - 1]:\n",
            "        self.streams.current_stream().wait_stream(self.side)\n"
            "        if number - 1 not in self.back:\n"
            "            if number and self.on_host[number - 1]:\n",
        ),
        "does_not_wait": wrong(
            "in 2 in 1 [2]", "self.streams.current_stream().wait_stream(self.side)", "pass"
        ),
        "says_no_use": wrong(
            "once for each tensor, not 0 times",
            "self.used_by(self.streams.current_stream(), tensor)",
            "pass",
        ),
        "fetches_before_the_first": wrong(
            "wait in -1", "if number and self.on_host[number - 1]:", "if self.on_host[number - 1]:"
        ),
        "leaves_the_copies": wrong(
            "still hold tensors", ", self.on_host[number].pop(place)", ", None"
        ),
        "asks_whether_it_is_the_last": right(
            "if number not in self.back:  # the last block's",
            "if number == len(self.on_host) - 1 and number not in self.back:",
        ),
    },
    "earliest-first": {
        "moves_one_too_many": wrong(
            "Blocks [0] move, but []",
            "replace(plan, moves=tuple(moves))",
            "replace(plan, moves=tuple(plan.slots.schedule(range(count + 1), budget)))",
        ),
        "moves_the_latest_first": wrong(
            "but [0] is enough", "range(count), budget)", "range(6 - count, 6), budget)"
        ),
        "moves_all": wrong(
            "Blocks [0, 1, 2, 3, 4, 5] move",
            "range(count), budget)",
            "range(len(plan.tree) - 2), budget)",
        ),
        "gives_up_one_move_early": wrong(
            "are too few, whatever moves", "range(len(plan.tree) - 1)", "range(len(plan.tree) - 2)"
        ),
        "returns_what_does_not_fit": wrong(
            "must raise a ValueError",
            'raise ValueError(f"{budget} bytes are too few, whatever moves")',
            "return plan",
        ),
        "makes_a_plan_without_a_link": wrong(
            "link changed",
            "replace(plan, moves=tuple(moves))",
            "planning.Plan(plan.stages, plan.tree, moves=tuple(moves))",
        ),
        "tries_from_the_other_end": right(
            "    for count in range(len(plan.tree) - 1):\n"
            "        moves = plan.slots.schedule(range(count), budget)\n"
            "        if moves is not None:\n"
            "            return replace(plan, moves=tuple(moves))\n",
            "    found = [plan.slots.schedule([*range(n)], budget) for n in range(7)]\n"
            "    if any(moves is not None for moves in found):\n"
            "        fits = next(moves for moves in found if moves is not None)\n"
            "        return replace(plan, moves=tuple(fits))\n",
        ),
    },
}
