"""Chapter 10e: three functions of a training script, each with a lever."""

from solutions.answers import right, wrong

FILLINGS = {
    "hidden-of": {
        "checkpoints_nothing": wrong(
            "Backward runs no block again",
            "checkpoint(block, x, use_reentrant=False)",
            "block(x)",
        ),
        "checkpoints_all_at_once": wrong(
            "Backward runs the blocks [0, 1, 2] again",
            *(
                "    for block in model.blocks:\n        x = checkpoint(block, x, ",
                "    blocks = torch.nn.Sequential(*model.blocks)\n    x = checkpoint(blocks, x, ",
            ),
        ),
        "checkpoints_the_first_alone": wrong(
            "Backward runs the blocks [0] again",
            *("model.blocks:", "model.blocks[1:]:"),
            *(
                "    for block",
                "    x = checkpoint(model.blocks[0], x, use_reentrant=False)\n    for block",
            ),
            *("        x = checkpoint(block, x, use_reentrant=False)", "        x = block(x)"),
        ),
        "forgets_the_norm": wrong("The result is not the script's", "model.norm(x)", "x"),
        "forgets_the_positions": wrong(
            "The result is not the script's",
            "train.embedded(model, tokens)",
            "model.token_embedding(tokens)",
        ),
        "is_reentrant": right("use_reentrant=False", "use_reentrant=True"),
        "wraps_a_function": right(
            "checkpoint(block, x,", "checkpoint(lambda h, block=block: block(h), x,"
        ),
    },
    "update": {
        "takes_the_whole": wrong("the losses are of [12]", "tokens.split(micro_batch)", "[tokens]"),
        "takes_that_many_parts": wrong(
            "the losses are of [4, 4, 4]",
            "tokens.split(micro_batch)",
            "tokens.chunk(micro_batch)",
        ),
        "forgets_the_division": wrong("4.00 times the whole batch's", " / len(parts)", ""),
        "steps_each_time": wrong(
            "steps after losses [1, 2, 3, 4]", "    optimizer.step()", "        optimizer.step()"
        ),
        "never_clears": wrong("of the update before", "    optimizer.zero_grad()\n", ""),
        "clears_afterwards": wrong(
            "clear it at the beginning",
            *("    optimizer.zero_grad()\n", ""),
            *("    return total", "    optimizer.zero_grad()\n    return total"),
        ),
        "holds_all_graphs": wrong(
            "Go backward after each loss",
            *(
                "        loss.backward()\n        total = total + loss.detach()",
                "        total = total + loss",
            ),
            *(
                "    optimizer.step()\n    return total",
                "    total.backward()\n    optimizer.step()\n    return total.detach()",
            ),
        ),
        "gives_the_last_loss": wrong("The mean loss is", "return total", "return loss.detach()"),
        "keeps_the_graph": wrong("has a graph", "loss.detach()", "loss"),
        "divides_at_the_end": right(
            *("total = total + loss.detach()", "total = total + loss.detach() * len(parts)"),
            *("return total", "return total / len(parts)"),
        ),
        "weighs_by_rows": right("/ len(parts)", "* len(part) / len(tokens)"),
    },
    "loss-of": {
        "checkpoints_nothing": wrong(
            "Backward makes the logits of [] tokens",
            *(
                "checkpoint(train.summed, model.head, rows, theirs, use_reentrant=False)",
                "train.summed(model.head, rows, theirs)",
            ),
        ),
        "takes_all_at_once": wrong(
            "the chunks have [768]",
            *("hidden.split(size), targets.split(size)", "[hidden], [targets]"),
        ),
        "has_a_size_of_its_own": wrong(
            "the chunks have [512, 256]",
            *("hidden.split(size), targets.split(size)", "hidden.split(512), targets.split(512)"),
        ),
        "divides_by_all": wrong("The mean is", "(targets >= 0).sum()", "len(targets)"),
        "keeps_the_last": wrong("The mean is", "total = total + summed", "total = summed"),
        "gives_the_sum": wrong("The mean is", " / (targets >= 0).sum()", ""),
        "counts_first": right("(targets >= 0).sum()", "int((targets != -100).sum())"),
        "goes_by_slices": right(
            *(
                "zip(hidden.split(size), targets.split(size), strict=True):",
                "[(hidden[i : i + size], targets[i : i + size]) for i in range(0, 768, size)]:",
            ),
        ),
    },
    "four-bits": {
        "keeps_the_whole_weight": wrong(
            "bytes wait for backward",
            "return checkpoint(compute, x, use_reentrant=False)",
            "return compute(x)",
        ),
        "makes_the_weight_outside": wrong(
            "bytes wait for backward",
            "    def compute(x):\n"
            "        return F.linear(x, planned.from_4_bits(*stored).to(x.dtype))\n",
            "    weight = planned.from_4_bits(*stored).to(x.dtype)\n\n"
            "    def compute(x):\n"
            "        return F.linear(x, weight)\n",
        ),
        "transposes": wrong(
            "mat1 and mat2", "planned.from_4_bits(*stored).to", "planned.from_4_bits(*stored).T.to"
        ),
        "stays_in_float32": wrong("have the same dtype", ".to(x.dtype)", ""),
        "returns_the_rows": wrong(
            "is not F.linear(x, weight)",
            "return checkpoint(compute, x, use_reentrant=False)",
            "return 2 * checkpoint(compute, x, use_reentrant=False)",
        ),
        "gives_the_tensors_too": right(
            "    def compute(x):\n"
            "        return F.linear(x, planned.from_4_bits(*stored).to(x.dtype))\n\n"
            "    return checkpoint(compute, x, use_reentrant=False)",
            "    def compute(x, *stored):\n"
            "        return x @ planned.from_4_bits(*stored).to(x.dtype).T\n\n"
            "    return checkpoint(compute, x, *stored, use_reentrant=False)",
        ),
    },
}
