"""Chapter 10f: the engine's cache and weights, log-probabilities in chunks, one division."""

from solutions.answers import right, wrong

FILLINGS = {
    "cache-bytes": {
        "forgets_the_values": wrong("a real cache has", "2 * config.num_key", "config.num_key"),
        "counts_all_heads": wrong("a real cache has", "num_key_value_heads", "num_attention_heads"),
        "divides_the_width": wrong(
            "a real cache has",
            *("config.head_dim", "(config.hidden_size // config.num_attention_heads)"),
        ),
        "has_one_block": wrong("a real cache has", "config.num_hidden_layers * ", ""),
        "is_always_bfloat16": wrong("a real cache has", "tokens * num_bytes", "tokens * 2"),
        "sums_over_blocks": right(
            "config.num_hidden_layers * of_a_block * tokens * num_bytes",
            "sum(of_a_block * tokens * num_bytes for _ in range(config.num_hidden_layers))",
        ),
    },
    "wake": {
        "shares_the_weights": wrong(
            "it needs a copy", *("to(weight.dtype, copy=True)", "to(weight.dtype)")
        ),
        "makes_room_alone": wrong(
            "aren't the policy's current weights",
            *(
                "theirs.detach().to(weight.dtype, copy=True)",
                "torch.zeros_like(theirs, dtype=weight.dtype)",
            ),
        ),
        "takes_the_policys_dtype": wrong(
            "keep its dtype", "to(weight.dtype, copy=True)", "clone()"
        ),
        "copies_the_first_alone": wrong(
            "A weight of the engine is empty",
            "copy=True)",
            "copy=True)\n        break",
        ),
        "puts_the_policy_to_sleep": wrong(
            "A weight of the engine is empty",
            "weight.data = theirs.detach()",
            "theirs.data = weight.detach()",
        ),
        "copies_in_two_steps": right(
            "theirs.detach().to(weight.dtype, copy=True)", "theirs.data.clone().to(weight.dtype)"
        ),
    },
    "log-probs": {
        "checkpoints_nothing": wrong(
            "bytes wait for backward",
            *(
                "checkpoint(usual, head, rows, theirs, use_reentrant=False)",
                "usual(head, rows, theirs)",
            ),
        ),
        "checkpoints_the_whole": wrong(
            "The chunks have 8, 8 and 4 tokens, not [20]",
            *("hidden.split(size), targets.split(size)", "[hidden], [targets]"),
        ),
        "sums_each_chunk": wrong(
            "20 tokens have 20 numbers, not [3]",
            *("use_reentrant=False)", "use_reentrant=False).sum()"),
            *("torch.cat(parts)", "torch.stack(parts)"),
        ),
        "keeps_the_last": wrong("not [4]", "torch.cat(parts)", "parts[-1]"),
        "cuts_the_rows_off": wrong(
            "appears to not have been used in the graph", "head, rows,", "head, rows.detach(),"
        ),
        "turns_them_round": wrong(
            "differ from those of `usual`", "torch.cat(parts)", "torch.cat(parts[::-1])"
        ),
        "appends_by_plus": right(
            *("parts.append(checkpoint(", "parts += [checkpoint("),
            *("use_reentrant=False))", "use_reentrant=False)]"),
        ),
    },
    "accumulate": {
        "divides_by_its_own_tokens": wrong(
            "apart from that 11% off",
            *("/ tokens", '/ part["mask"].sum()'),
        ),
        "divides_twice": wrong("The gradient is 0.50 times", "/ tokens", "/ tokens / 2"),
        "counts_padding": wrong(
            "The gradient is 0.6", 'window["mask"].sum()', 'window["mask"].numel()'
        ),
        "takes_a_mean_of_means": wrong("The gradient is 1.25 times", ".sum() / tokens", ".mean()"),
        "does_not_divide": wrong("The gradient is 15.00 times", " / tokens", ""),
        "goes_backward_at_the_end": wrong(
            "Call backward after each loss",
            *("    for part in", "    total = 0\n    for part in"),
            *("        loss.backward()", "        total = total + loss\n    total.backward()"),
        ),
        "takes_the_window_at_once": wrong(
            "losses of 2 and 2 answers, not [4]", "split(window, size)", "[window]"
        ),
        "divides_each_token": right(
            "token_losses(model, part).sum() / tokens", "(token_losses(model, part) / tokens).sum()"
        ),
    },
}
