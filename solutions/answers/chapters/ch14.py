"""Chapter 14: three of six levers, the seconds of eight cards, and a fused optimizer."""

from solutions.answers import right, wrong

FILLINGS = {
    "packed": {
        "shifts_the_whole_row": wrong(
            "the targets are [6, 7, -100, 9, -100, -100], not [6, 7, 8, 9, 4, -100]",
            "torch.cat([next_tokens(row) for row in rows])",
            "next_tokens(ids)",
        ),
        "counts_positions_through": wrong(
            "the positions are [0, 1, 2, 0, 1, 0], not [0, 1, 2, 3, 4, 5]",
            "torch.cat([torch.arange(len(row)) for row in rows])",
            "torch.arange(len(ids))",
        ),
        "forgets_the_batch": wrong(
            "The tokens have the shape [6], not [1, 6]",
            "ids[None], targets[None], positions[None]",
            "ids, targets, positions",
        ),
        "does_not_shift": wrong(
            "not [5, 6, 7, 8, 9, 4]", "next_tokens(row) for row", "row for row"
        ),
        "forgets_the_positions": wrong(
            "Return tokens, targets and positions, not 2", ", positions[None]", ""
        ),
        "joins_each": right(
            "return ids[None], targets[None], positions[None]",
            "return tuple(part.unsqueeze(0) for part in (ids, targets, positions))",
        ),
    },
    "lora-layer": {
        "swaps_the_matrices": wrong(
            "down and up have the shapes [[4, 6], [3, 4]], not [[3, 6], [4, 3]]",
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
        "fills_the_first_with_zeros": wrong(
            "`down` is all zeros", "zeros_(self.up.weight)", "zeros_(self.down.weight)"
        ),
        "begins_with_two_zeros": wrong(
            "`down` is all zeros",
            "        nn.init.zeros_(self.up.weight)",
            "        nn.init.zeros_(self.up.weight)\n        nn.init.zeros_(self.down.weight)",
        ),
        "adds_it_once": wrong("36 should be added, not 18", "2 * self.up", "self.up"),
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
            "The gradient of x is wrong", "gradient @ weight,", "2 * gradient @ weight,"
        ),
        "gives_three_gradients": wrong(
            "returned an incorrect number of gradients", "None, None, None", "None, None"
        ),
        "uses_linear": right(
            "x @ from_4_bits(pairs, scale, shape).T",
            "nn.functional.linear(x, from_4_bits(pairs, scale, shape))",
        ),
    },
    "step-seconds": {
        "forgets_the_recomputation": wrong(
            "four forwards' worth of arithmetic take 8 s, not 6",
            *("4 if checkpointed else 3", "3"),
        ),
        "gathers_once": wrong("three times 7/8 of the weights take 21 s, not 14", "* 3 *", "* 2 *"),
        "sends_once_an_update": wrong(
            "four micro-batches take 42 s, not 10.5", "micro_batches * 3", "3"
        ),
        "sends_the_whole": wrong(
            "three times 7/8 of the weights take 21 s, not 24", " * 7 / 8", ""
        ),
        "adds_both": wrong(
            "the longer of both take 30 s, not 51",
            *("max(computes, sent / bytes_per_second)", "computes + sent / bytes_per_second"),
        ),
        "computes_each_part_in_full": wrong(
            "in four parts, take 8 s, not 32",
            *("computes = forward", "computes = micro_batches * forward"),
        ),
        "counts_in_words": right("4 if checkpointed else 3", "3 + checkpointed"),
    },
    "make-fused": {
        "forgets_the_seed": wrong(
            "those that `train.make` seeds", "    torch.manual_seed(0)\n", ""
        ),
        "seeds_afterwards": wrong(
            "those that `train.make` seeds",
            *("    torch.manual_seed(0)\n", ""),
            *("    optimizer =", "    torch.manual_seed(0)\n    optimizer ="),
        ),
        "forgets_the_rate": wrong("not 3e-4", "lr=3e-4, ", ""),
        "decays_nothing": wrong(
            "Leave weight_decay as train.py has it", "lr=3e-4, ", "lr=3e-4, weight_decay=0, "
        ),
        "is_not_fused": wrong("isn't fused", ", fused=True", ""),
        "updates_all_at_once": wrong("isn't fused", "fused=True", "foreach=True"),
        "returns_the_model": wrong(
            "It needs to return a model and its optimizer",
            "return model, optimizer",
            "return model",
        ),
        "returns_at_once": right(
            "    optimizer = AdamW(model.parameters(), lr=3e-4, fused=True)\n"
            "    return model, optimizer",
            "    return model, AdamW(model.parameters(), fused=True, lr=3e-4)",
        ),
    },
}
