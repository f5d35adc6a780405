"""Chapter 11c: a DiT block, runs of layers, boundaries, and the loss of rectified flow."""

from solutions.answers import right, wrong

FILLINGS = {
    "run-block": {
        "forgets_silu": wrong("With attention alone, you are 10.", "F.silu(c)", "c"),
        "swaps_shift_and_scale": wrong(
            "With attention alone, you are 5",
            "shift, scale, gate, shift_2",
            "scale, shift, gate, shift_2",
        ),
        "takes_the_gate_of_attention_twice": wrong(
            "With attention and MLP, you are 10.", "gate_2 * block.ff", "gate * block.ff"
        ),
        "forgets_the_one": wrong("With attention alone, you are 3.", "(1 + scale) +", "scale +"),
        "forgets_the_residual": wrong(
            "With attention alone, you are 100.", "x = x + gate", "x = gate"
        ),
        "has_no_axis_for_tokens": wrong(
            "The size of tensor a (9) must match", "F.silu(c))[:, None]", "F.silu(c))"
        ),
        "cuts_the_graph": wrong(
            "has no graph",
            "    rows = block.norm1",
            "    x, block = x, block.requires_grad_(False)\n    rows = block.norm1",
        ),
        "asks_the_norm": right(
            *(
                "rows = block.norm1.linear(F.silu(c))[:, None].chunk(6, dim=-1)",
                "y, *rows = block.norm1(x, emb=c)",
            ),
            *(
                "shift, scale, gate, shift_2, scale_2, gate_2 = rows",
                "gate, shift_2, scale_2, gate_2 = (row[:, None] for row in rows)",
            ),
            *("block.norm2(x) * (1 + scale) + shift)\n", "y)\n"),
        ),
        "unsqueezes": right("(F.silu(c))[:, None]", "(F.silu(c)).unsqueeze(1)"),
    },
    "count-runs": {
        "counts_containers": wrong(
            "Module 1 has children", "if not list(layer.children()):", "if name:"
        ),
        "leaves_the_hooks": wrong(
            "the hooks are still there", "        handle.remove()", "        pass"
        ),
        "never_steps": wrong("`step` was called 0 times", "    step()\n", ""),
        "steps_twice": wrong(
            "`step` was called 2 times", "    step()\n", "    step()\n    step()\n"
        ),
        "counts_types": wrong(
            "but you count {'Linear'",
            "runs.update([name]), name",
            "runs.update([name]), type(layer).__name__",
        ),
        "counts_after_forward": right("register_forward_pre_hook", "register_forward_hook"),
    },
    "boundaries": {
        "leaves_out_single_blocks": wrong(
            "'num_single_layers': 5}, 10 tokens, {}: 1920 bytes",
            *('config["num_layers"] + config.get("num_single_layers", 0)', 'config["num_layers"]'),
        ),
        "wants_single_blocks": wrong(
            "stopped at KeyError: 'num_single_layers'",
            *('config.get("num_single_layers", 0)', 'config["num_single_layers"]'),
        ),
        "takes_the_width_of_a_head": wrong(
            "10 tokens, {}: 960 bytes",
            *(
                'config["num_attention_heads"] * config["attention_head_dim"]',
                'config["attention_head_dim"]',
            ),
        ),
        "is_always_float32": wrong("{'num_bytes': 2}: 1920 bytes", "* num_bytes", "* 4"),
        "has_one_block_less": wrong(
            "10 tokens, {}: 1280 bytes", "blocks * tokens", "(blocks - 1) * tokens"
        ),
        "adds_up_in_two_parts": right(
            *("return blocks * tokens", "return sum(tokens for _ in range(blocks))")
        ),
    },
    "flow-loss": {
        "tells_the_share": wrong(
            "told the times [0.0625, 0.5]", "1000 * share).sample\n", "share).sample\n"
        ),
        "mixes_the_other_way": wrong(
            "the mixture is [0.9375, 0.5]",
            *("(1 - part) * latents + part * noise", "part * latents + (1 - part) * noise"),
        ),
        "wants_the_noise": wrong("not 0.5645.", "noise - latents", "noise"),
        "walks_the_other_way": wrong("not 1.6895.", "noise - latents", "latents - noise"),
        "tells_the_shares_as_images": wrong(
            "told the times [[[[62.5", "1000 * share).sample\n", "1000 * part).sample\n"
        ),
        "forgets_sample": wrong("'types.SimpleNamespace'", ").sample\n", ")\n"),
        "gives_all_words": wrong(
            "The summary is not",
            "seen = model(noisy, words, words[:, 0]",
            "seen = model(noisy, words, words",
        ),
        "rounds_the_times": wrong(
            "told the times [62, 500]", "1000 * share).sample\n", "(1000 * share).long()).sample\n"
        ),
        "gives_rows_of_words": wrong(
            "gets the wrong words", "seen = model(noisy, words,", "seen = model(noisy, words[:, 0],"
        ),
        "returns_a_number": wrong(
            "no attribute 'requires_grad'", "noise - latents)", "noise - latents).item()"
        ),
        "takes_a_tuple": right("1000 * share).sample\n", "1000 * share, return_dict=False)[0]\n"),
        "lerps": right("(1 - part) * latents + part * noise", "latents.lerp(noise, part)"),
        "squares_by_hand": right(
            "F.mse_loss(seen, noise - latents)", "(seen - noise + latents).square().mean()"
        ),
    },
}
