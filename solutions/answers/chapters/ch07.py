"""Chapter 07: prices, segments around modules, and policies by operation."""

from solutions.answers import right, wrong

FILLINGS = {
    "makers": {
        "lets_the_last_one_win": wrong(
            "the note says 'add_'",
            *(
                "self.notes.setdefault(storage, (self.name_of(op), flops, storages(args)))",
                "self.notes[storage] = self.name_of(op), flops, storages(args)",
            ),
        ),
        "keeps_nothing_alive": wrong(
            "their addresses may be reused", "        self.alive.append(out)\n", ""
        ),
        "forgets_the_flops": wrong(
            "but the note says 0",
            *("count(*args, **kwargs, out_val=out) if count else 0", "0"),
        ),
        "notes_the_first_of_a_tuple": wrong(
            "Nothing is noted for ['places']", "in storages(out):", "in storages(out)[:1]:"
        ),
        "drops_the_keywords": wrong(
            "`op` is called without its kwargs", "op(*args, **kwargs)", "op(*args)"
        ),
        "forgets_the_result": wrong(
            "It needs to run each operation", "        return out", "        pass"
        ),
        "notes_the_result_as_input": wrong(
            "made from x and w", "storages(args))", "storages(out))"
        ),
        "asks_first": right(
            "self.notes.setdefault(storage, (",
            "self.notes[storage] = self.notes.get(storage) or ((",
        ),
    },
    "price": {
        "prices_its_own_operation": wrong(
            "kept: x. gelu costs 100, not 0.",
            "flops + sum(price(one, kept, notes) for one in missing)",
            "flops",
        ),
        "makes_what_is_kept": wrong("down costs 50, not 150.", " - set(kept)", ""),
        "is_free_if_kept": wrong(
            "kept: x, b. up costs 100, not 0.",
            "    _, flops",
            "    if storage in kept:\n        return 0\n    _, flops",
        ),
        "runs_in_a_circle": wrong("stopped at RecursionError", " - {storage}", ""),
        "leaves_its_own_out": wrong("kept: x. up costs 100, not 0.", "flops + sum", "sum"),
        "counts_two_views_twice": wrong(
            "mul costs 109, not 209",
            "set(inputs) - {storage} - set(kept)",
            "[one for one in inputs if one != storage and one not in kept]",
        ),
        "loops": right(
            "    return flops + sum(price(one, kept, notes) for one in missing)",
            "    for one in missing:\n        flops += price(one, kept, notes)\n    return flops",
        ),
    },
    "dropped": {
        "keeps_the_tables_order": wrong(
            "A point is (0, 70), not (15.0, 100.0)", "    table = cheapest_first(table)\n", ""
        ),
        "sorts_by_flops": wrong(
            "A point is (25, 10), not (15.0, 60.0)",
            *("cheapest_first(table)", 'table.sort_values("flops")'),
        ),
        "gives_a_share": wrong("A point is (25, 10), not (0.25, 10.0)", "100 * ", ""),
        "begins_with_one_dropped": wrong("4 points, not 3", "(0, table.kept.sum()), *zip", "*zip"),
        "adds_up_what_is_dropped": wrong(
            "A point is (0, 70), not (0.0, 40.0)", "table.kept.sum() - table", "table"
        ),
        "gives_lists": right(
            "[(0, table.kept.sum()), *zip(again, kept, strict=True)]",
            "[[0, table.kept.sum()], *map(list, zip(again, kept, strict=True))]",
        ),
    },
    "both-modules": {
        "wraps_attention_alone": wrong(
            "Backward runs ['attention'] again",
            "remade(block.mlp, block.norm_2(x))",
            "block.mlp(block.norm_2(x))",
        ),
        "forgets_a_sum": wrong(
            "The output is not the block's", "return x + remade", "return remade"
        ),
        "wraps_the_norms_too": wrong(
            "Backward runs ['norm_2', 'mlp', 'norm_1', 'attention'] again",
            *("block.attention, block.norm_1(x)", "lambda h: block.attention(block.norm_1(h)), x"),
            *("block.mlp, block.norm_2(x)", "lambda h: block.mlp(block.norm_2(h)), x"),
        ),
        "has_two_names": right(
            "    x = x + remade(block.attention, block.norm_1(x))\n"
            "    return x + remade(block.mlp, block.norm_2(x))",
            "    h = x + remade(block.attention, block.norm_1(x))\n"
            "    return h + remade(block.mlp, block.norm_2(h))",
        ),
    },
    "halves": {
        "wraps_the_block": wrong(
            "Backward runs ['norm_1', 'attention', 'norm_2', 'mlp'] again",
            "    x = remade(lambda h: h + block.attention(block.norm_1(h)), x)\n"
            "    return remade(lambda h: h + block.mlp(block.norm_2(h)), x)",
            "    return per_block(block, x)",
        ),
        "leaves_the_norms_out": wrong(
            "Backward runs ['mlp', 'attention'] again",
            *(
                "lambda h: h + block.attention(block.norm_1(h)), x",
                "block.attention, block.norm_1(x)",
            ),
            *("lambda h: h + block.mlp(block.norm_2(h)), x", "block.mlp, block.norm_2(x)"),
            *("x = remade", "x = x + remade"),
            *("return remade", "return x + remade"),
        ),
        "forgets_a_sum": wrong("The output is not the block's", "h + block.mlp", "block.mlp"),
        "sums_outside": right(
            "return remade(lambda h: h + block.mlp(block.norm_2(h)), x)",
            "return x + remade(lambda h: block.mlp(block.norm_2(h)), x)",
        ),
    },
    "in-units": {
        "counts_the_weights": wrong(
            "the peak of all is 9, not 10",
            '(kept + curve["temporary"]).max()',
            "curve.sum(axis=1).max()",
        ),
        "takes_the_first_tick": wrong("3 wait, not 0", '== "backward"', '== "forward"'),
        "forgets_what_is_recomputed": wrong(
            "the peak of all is 9, not 8", ' + curve["recomputed"]', ""
        ),
        "adds_up_two_peaks": wrong(
            *("the peak of all is 9, not 10", '(kept + curve["temporary"]).max()'),
            'kept.max() + curve["temporary"].max()',
        ),
        "takes_the_most_that_waits": wrong("3 wait, not 5", "[tick]", ".max()"),
        "takes_the_most_of_backward": wrong("3 wait, not 4", "[tick]", "[tick:].max()"),
        "gives_bytes": wrong("3 wait, not 393216", " / unit", ""),
        "asks_by_column": right(
            'curve["activations"] + curve["recomputed"]',
            'curve[["activations", "recomputed"]].sum(axis=1)',
        ),
    },
    "by-hand": {
        "gives_nothing": wrong("It needs to run each operation", "return out", "pass"),
        "stores_everything": wrong(
            "results are stored: there should be two",
            "if name_of(op, args) in self.keep:",
            "if True:",
        ),
        "stores_a_history": wrong(
            "A stored tensor has a history",
            *("tree_map_only(torch.Tensor, torch.Tensor.detach, out)", "out"),
        ),
        "stores_the_first_of_a_tuple": wrong(
            "a tuple as a tuple",
            *(
                "tree_map_only(torch.Tensor, torch.Tensor.detach, out)",
                "tree_leaves(out)[0].detach()",
            ),
        ),
        "runs_again_to_store": wrong(
            "`up` runs 2 times",
            "detach, out))",
            "detach, op(*args, **(kwargs or {}))))",
        ),
        "asks_for_the_operation": wrong("Nothing is stored", "name_of(op, args) in", "op in"),
        "detaches_by_hand": right(
            *("torch.Tensor.detach, out", "lambda tensor: tensor.detach(), out"),
        ),
    },
    "hand-out": {
        "hands_out_the_last": wrong("A wrong result came out", "pop(0)", "pop()"),
        "never_takes_out": wrong("2 results are left in the store", ".pop(0)", "[0]"),
        "runs_and_then_hands_out": wrong(
            "ran again",
            *("        if name_of", "        op(*args, **(kwargs or {}))\n        if name_of"),
        ),
        "runs_everything": wrong("ran again", "return self.store.pop(0)", "self.store.pop(0)"),
        "forgets_the_keywords": wrong("must run with its kwargs", ", **(kwargs or {})", ""),
        "forgets_the_others": wrong(
            "It needs to return a stored result, or run the operation",
            *("return op(*args, **(kwargs or {}))", "return self.store.pop(0)"),
        ),
        "looks_at_the_store": right(
            "if name_of(op, args) in self.keep:",
            "if self.store and name_of(op, args) in self.keep:",
        ),
    },
    "by-hand-block": {
        "gives_no_modes": wrong("'out': 2, 'up': 2", ", context_fn=lambda: modes", ""),
        "shares_one_store": wrong(
            "give each call a store of its own",
            *("    store = []\n", "    store = by_hand.__dict__.setdefault('store', [])\n"),
        ),
        "gives_no_function": wrong(
            "'tuple' object is not callable", "context_fn=lambda: modes", "context_fn=modes"
        ),
        "has_two_stores": wrong("pop from empty list", "HandOut(keep, store)", "HandOut(keep, [])"),
        "checkpoints_nothing": wrong(
            "{'qkv': 1, 'out': 1, 'up': 1,",
            "remade(partial(Block.forward, block), x, context_fn=lambda: modes)",
            "Block.forward(block, x)",
        ),
        "keeps_all": wrong(
            "{'qkv': 1, 'out': 1, 'up': 1,",
            "Store(keep, store), HandOut(keep, store)",
            "Store({'qkv', *keep}, store), HandOut({'qkv', *keep}, store)",
        ),
        "gives_a_list": right(
            "Store(keep, store), HandOut(keep, store)", "[Store(keep, store), HandOut(keep, store)]"
        ),
    },
    "by-torch": {
        "turns_it_round": wrong("{'qkv': 1, 'out': 2,", "if kept else", "if not kept else"),
        "keeps_all": wrong("{'qkv': 1, 'out': 1,", "name_of(op, args) in keep", "True"),
        "gives_the_policy_itself": wrong(
            "stopped at",
            "partial(create_selective_checkpoint_contexts, policy)",
            "policy",
        ),
        "insists": right("PREFER_RECOMPUTE", "MUST_RECOMPUTE"),
    },
    "keep-attention": {
        "turns_it_round": wrong("should be saved", "if kept else", "if not kept else"),
        "keeps_all": wrong("should be recomputed", '"attention" in str(op)', "True"),
        "knows_one_kernel": wrong(
            "should be saved", '"attention" in str(op)', '"flash_attention" in str(op)'
        ),
        "says_yes_or_no": wrong(
            "which isn't a CheckpointPolicy",
            "CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE",
            "kept",
        ),
        "prefers": right("MUST_SAVE", "PREFER_SAVE"),
        "looks_at_the_name": right("str(op)", "op.__name__"),
    },
}
