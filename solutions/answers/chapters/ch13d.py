"""Chapter 13d: when a layer's gathered weights are freed."""

from solutions.answers import right, wrong

FILLINGS = {
    "free-after-use": {
        "frees_while_recomputing": wrong(
            "'shape': torch.Size([0])",
            "        if not again.is_on:\n            weights",
            "        weights",
        ),
        "keeps_them_until_backward": wrong(
            "After forward 48 layers are still whole",
            *("    layer.register_forward_hook(after_forward)\n", ""),
        ),
        "turns_it_around": wrong(
            "After forward 48 layers are still whole", "if not again.is_on", "if again.is_on"
        ),
        "keeps_them_after_backward": wrong(
            "After backward 48 layers are still whole",
            *("    layer.register_full_backward_hook(lambda *_: weights.free())", ""),
        ),
        "waits_for_gradients_of_weights": wrong(
            "cannot register a hook on a tensor that doesn't require gradient",
            "layer.register_full_backward_hook(lambda *_: weights.free())",
            "weights.tensors[0].register_hook(lambda *_: weights.free())",
        ),
        "frees_as_backward_begins": wrong(
            "got weight of shape [0]",
            *("register_full_backward_hook", "register_full_backward_pre_hook"),
        ),
        "returns_early": right(
            *(
                "        if not again.is_on:\n            weights.free()",
                "        if again.is_on:\n            return\n        weights.free()",
            ),
        ),
    },
}
