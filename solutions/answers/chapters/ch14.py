"""Chapter 14: six levers on one model, a slow link, and the plan that is fastest."""

from solutions.answers import right, wrong

FILLINGS = {
    "dies-at": {
        "finds_a_full_card": wrong(
            "on a card of 11: 4, and not 2.", "> card_bytes", ">= card_bytes"
        ),
        "finds_the_last": wrong(
            "on a card of 10: 2, and not 4.",
            *(
                "    for moment, held in enumerate(curve):",
                "    last = None\n    for moment, held in enumerate(curve):",
            ),
            *(
                "            return moment\n    return None",
                "            last = moment\n    return last",
            ),
        ),
        "looks_at_activations_alone": wrong(
            "on a card of 10: 2, and not None.", "sum(held.values())", 'held["activations"]'
        ),
        "looks_at_the_largest_category": wrong(
            "on a card of 10: 2, and not None.", "sum(held.values())", "max(held.values())"
        ),
        "gives_the_bytes": wrong(
            "on a card of 10: 2, and not 11.", "return moment", "return sum(held.values())"
        ),
        "searches_with_next": right(
            "    for moment, held in enumerate(curve):\n"
            "        if sum(held.values()) > card_bytes:\n"
            "            return moment\n"
            "    return None",
            "    sums = (sum(held.values()) for held in curve)\n"
            "    return next((n for n, size in enumerate(sums) if size > card_bytes), None)",
        ),
    },
    "packed": {
        "shifts_the_whole_row": wrong(
            "the targets are [6, 7, -100, 9, -100, -100], and not [6, 7, 8, 9, 4, -100]",
            "torch.cat([next_tokens(row) for row in rows])",
            "next_tokens(ids)",
        ),
        "counts_positions_through": wrong(
            "the positions are [0, 1, 2, 0, 1, 0], and not [0, 1, 2, 3, 4, 5]",
            "torch.cat([torch.arange(len(row)) for row in rows])",
            "torch.arange(len(ids))",
        ),
        "forgets_the_batch": wrong(
            "The tokens have the shape [6], not [1, 6]",
            "ids[None], targets[None], positions[None]",
            "ids, targets, positions",
        ),
        "does_not_shift": wrong(
            "and not [5, 6, 7, 8, 9, 4]", "next_tokens(row) for row", "row for row"
        ),
        "forgets_the_positions": wrong(
            "There are tokens, targets and positions, not 2", ", positions[None]", ""
        ),
        "joins_each": right(
            "return ids[None], targets[None], positions[None]",
            "return tuple(part.unsqueeze(0) for part in (ids, targets, positions))",
        ),
    },
    "checkpointed": {
        "keeps_all": wrong(
            "bytes wait for backward",
            "checkpoint(call, *args, use_reentrant=False)",
            "call(*args)",
        ),
        "forgets_the_keywords": wrong(
            "missing 1 required keyword-only argument", "partial(block, **kwargs)", "block"
        ),
        "runs_without_a_graph": wrong(
            "Backward runs the block 0 times",
            *("checkpoint(call, *args, use_reentrant=False)", "Unkept.apply(call, *args)"),
            *(
                "    call =",
                "    class Unkept(torch.autograd.Function):\n"
                "        @staticmethod\n"
                "        def forward(ctx, call, x):\n"
                "            return call(x)\n\n"
                "        @staticmethod\n"
                "        def backward(ctx, gradient):\n"
                "            return None, gradient\n\n"
                "    call =",
            ),
        ),
        "passes_keywords_on": right(
            "checkpoint(call, *args, use_reentrant=False)",
            "checkpoint(block, *args, use_reentrant=False, **kwargs)",
        ),
    },
    "lora-layer": {
        "swaps_the_matrices": wrong(
            "down and up have the shapes [[4, 6]",
            *("nn.Linear(columns, rank", "nn.Linear(columns, rows"),
            *("nn.Linear(rank, rows", "nn.Linear(rows, rank"),
        ),
        "has_a_bias": wrong("LoRA's matrices have no bias", "rank, bias=False", "rank"),
        "forgets_the_type": wrong(
            "The base is bfloat16", "rank, bias=False, dtype=dtype)", "rank, bias=False)"
        ),
        "begins_at_random": wrong(
            "At first the output must be the base's", "        nn.init.zeros_(self.up.weight)\n", ""
        ),
        "begins_with_two_zeros": wrong(
            "neither ever gets a gradient",
            "        nn.init.zeros_(self.up.weight)",
            "        nn.init.zeros_(self.up.weight)\n        nn.init.zeros_(self.down.weight)",
        ),
        "adds_it_once": wrong("36 is added, and not 18", "2 * self.up", "self.up"),
        "forgets_the_base": wrong(
            "At first the output must be the base's",
            "self.base(x) + 2 * self.up",
            "2 * self.up",
        ),
        "scales_down": right("2 * self.up(self.down(x))", "self.up(2 * self.down(x))"),
    },
    "four-bit": {
        "saves_the_whole_weight": wrong(
            "bytes are saved: the 4 bits and scales",
            *(
                "        ctx.save_for_backward(pairs, scale)\n"
                "        return x @ from_4_bits(pairs, scale, shape).T",
                "        weight = from_4_bits(pairs, scale, shape)\n"
                "        ctx.save_for_backward(weight)\n"
                "        return x @ weight.T",
            ),
            *("from_4_bits(*ctx.saved_tensors, ctx.shape)", "ctx.saved_tensors[0]"),
        ),
        "keeps_the_weight_on_ctx": wrong(
            "Nothing is saved",
            *(
                "        ctx.save_for_backward(pairs, scale)\n"
                "        return x @ from_4_bits(pairs, scale, shape).T",
                "        ctx.weight = from_4_bits(pairs, scale, shape)\n"
                "        return x @ ctx.weight.T",
            ),
            *("from_4_bits(*ctx.saved_tensors, ctx.shape)", "ctx.weight"),
        ),
        "keeps_the_weight_beside_them": wrong(
            "49152 new bytes wait beside the output",
            "        ctx.save_for_backward(pairs, scale)\n",
            "        ctx.save_for_backward(pairs, scale)\n"
            "        ctx.weight = from_4_bits(pairs, scale, shape)\n",
        ),
        "saves_x_too": wrong(
            "bytes are saved: the 4 bits and scales",
            *("save_for_backward(pairs, scale)", "save_for_backward(pairs, scale, x)"),
            *("*ctx.saved_tensors, ctx", "*ctx.saved_tensors[:2], ctx"),
        ),
        "forgets_to_transpose": wrong(
            "mat1 and mat2 shapes cannot be multiplied", "shape).T", "shape)"
        ),
        "multiplies_twice": wrong(
            "The gradient by x is wrong", "gradient @ weight,", "2 * gradient @ weight,"
        ),
        "gives_three_gradients": wrong(
            "returned an incorrect number of gradients", "None, None, None", "None, None"
        ),
        "uses_linear": right(
            "x @ from_4_bits(pairs, scale, shape).T",
            "nn.functional.linear(x, from_4_bits(pairs, scale, shape))",
        ),
    },
    "offloaded": {
        "moves_nothing": wrong(
            "64 bytes wait on the card", "tensor.to(HOST), tensor.device", "tensor, tensor.device"
        ),
        "moves_without_a_checkpoint": wrong(
            "Backward does not run the block again",
            "checkpointed(block, *args, **kwargs)",
            "block(*args, **kwargs)",
        ),
        "moves_to_the_cpu": wrong("have different metadata", "moved.to(device)", "moved.to('cpu')"),
        "leaves_it_on_the_host": wrong("have different metadata", "moved.to(device)", "moved"),
        "remembers_the_device": right("moved.to(device)", "moved.to(device, copy=True)"),
    },
    "step-seconds": {
        "forgets_the_recomputation": wrong(
            "four forwards' worth of arithmetic take 8 s, and not 6",
            "4 if checkpointed else 3",
            "3",
        ),
        "gathers_once": wrong(
            "three times 7/8 of the weights take 21 s, and not 14", "* 3 *", "* 2 *"
        ),
        "sends_once_an_update": wrong(
            "four micro-batches take 42 s, and not 10.5", "micro_batches * 3", "3"
        ),
        "sends_the_whole": wrong(
            "three times 7/8 of the weights take 21 s, and not 24", " * 7 / 8", ""
        ),
        "adds_both": wrong(
            "the longer of both take 30 s, and not 51",
            "max(computes, sent / bytes_per_second)",
            "computes + sent / bytes_per_second",
        ),
        "counts_in_words": right("4 if checkpointed else 3", "3 + checkpointed"),
    },
    "fastest": {
        "takes_the_smallest": wrong(
            "in 40 GiB it is 'a', and not 'd'", "key=lambda name: table[name][2]", "key=table.get"
        ),
        "ignores_the_budget": wrong("in 22 GiB it is 'c', and not 'a'", " if gib <= budget", ""),
        "leaves_out_an_exact_fit": wrong(
            "in 10 GiB it is 'c', and not 'd'", "gib <= budget", "gib < budget"
        ),
        "takes_the_fewest_flops": wrong(
            "in 40 GiB it is 'a', and not 'b'", "table[name][2]", "table[name][1]"
        ),
        "raises_no_number": wrong(
            "does not say that the smallest needs 5 GiB",
            'f"at least {min(table.values())[0]:.1f} GiB are needed"',
            '"nothing fits"',
        ),
        "sorts": right(
            "min(fitting, key=lambda name: table[name][2])",
            "sorted(fitting, key=lambda name: table[name][2])[0]",
        ),
    },
    "make-fused": {
        "forgets_the_seed": wrong(
            "those that `train.make` seeds", "    torch.manual_seed(0)\n", ""
        ),
        "seeds_afterwards": wrong(
            "those that `train.make` seeds",
            *("    torch.manual_seed(0)\n", ""),
            *("    return model", "    torch.manual_seed(0)\n    return model"),
        ),
        "forgets_the_rate": wrong("not 3e-4", "lr=3e-4, ", ""),
        "decays_nothing": wrong(
            "Leave weight_decay as train.py has it", "lr=3e-4, ", "lr=3e-4, weight_decay=0, "
        ),
        "is_not_fused": wrong("isn't fused", ", fused=True", ""),
        "updates_all_at_once": wrong("isn't fused", "fused=True", "foreach=True"),
        "returns_the_model": wrong(
            "It needs to return a model and its optimizer",
            "return model, AdamW(model.parameters(), lr=3e-4, fused=True)",
            "return model",
        ),
        "begins_with_make": right(
            "    torch.manual_seed(0)\n    model = train.GPT(config)\n",
            "    model, _ = train.make(config)\n",
        ),
    },
}
