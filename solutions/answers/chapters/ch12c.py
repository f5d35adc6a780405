"""Chapter 12c: routing that is saved, and tensors in 8 bits."""

from solutions.answers import right, wrong

FILLINGS = {
    "saving-routing": {
        "saves_nothing": wrong(
            "Routing by noise: the gradient is off", ", context_fn=contexts", ""
        ),
        "saves_another_operation": wrong(
            "Routing by noise: the gradient is off",
            "[torch.ops.aten.topk.default]",
            "[torch.ops.aten.sort.default]",
        ),
        "saves_everything": wrong(
            "the routing has 6144",
            "[torch.ops.aten.topk.default]",
            "lambda *_, **__: torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE",
        ),
        "saves_the_scores": wrong(
            "the routing has 6144",
            "[torch.ops.aten.topk.default]",
            "[torch.ops.aten.topk.default, torch.ops.aten._softmax.default]",
        ),
        "recomputes_nothing": wrong(
            "nothing was recomputed",
            *(
                "return checkpoint(function, *args, context_fn=contexts, **options)",
                "return function(*args)",
            ),
        ),
        "forgets_the_options": wrong(
            "`options` never reach", "=contexts, **options)", "=contexts)"
        ),
        "names_no_overload": wrong("topk", "topk.default]", "topk]"),
        "makes_contexts_itself": right(
            *(
                "partial(create_selective_checkpoint_contexts, operations)",
                "lambda: create_selective_checkpoint_contexts(operations)",
            )
        ),
        "goes_by_a_policy": right(
            "[torch.ops.aten.topk.default]",
            "lambda _, op, *a, **k: torch.utils.checkpoint.CheckpointPolicy["
            "'MUST_SAVE' if op is torch.ops.aten.topk.default else 'PREFER_RECOMPUTE']",
        ),
    },
    "to-8-bits": {
        "has_one_scale": wrong(
            "((4, 64), (1, 1)",
            "rows.abs().amax(dim=1, keepdim=True)",
            "rows.abs().amax()[None, None]",
        ),
        "cuts_off": wrong("0.49803", ".round_()", ""),
        "wants_one_stretch": wrong(
            "view size is not compatible", "tensor.reshape(", "tensor.view("
        ),
        "knows_one_block": wrong("((4, 64), (4, 1), (2, 128)), not ((8", "(-1, block)", "(-1, 64)"),
        "divides_by_128": wrong("200.0, 2.0", "/ 127\n", "/ 128\n"),
        "divides_zeros_by_zero": right(".clamp(min=1e-12)", ""),
        "keeps_16_bits": wrong("torch.int16, not int8", "torch.int8", "torch.int16"),
        "gives_the_rows_shape": wrong("(4, 1), (4, 64)), not", "tensor.shape", "rows.shape"),
        "clamps_afterwards": right(".round_()", ".round_().clamp_(-127, 127)"),
    },
    "from-8-bits": {
        "forgets_the_size": wrong("You return [1, -2, 127, 0]", "steps * scale", "steps"),
        "forgets_the_shape": wrong("[[0.5, -1.0]", "(steps * scale).view(shape)", "steps * scale"),
        "divides": wrong("You return [2.0, -4.0", "steps * scale", "steps / scale"),
        "reshapes": right(".view(shape)", ".reshape(shape)"),
    },
}
