"""Chapter 10: a loop with Accelerate, what the switch wraps, and every n-th layer."""

from solutions.answers import right, wrong

FILLINGS = {
    "one-epoch": {
        "goes_backward_itself": wrong(
            "Update 1: its gradient is 4 times",
            *("accelerator.backward(model(**batch).loss)", "model(**batch).loss.backward()"),
        ),
        "divides_too": wrong("Update 1: its gradient is 0.25 times", ".loss)", ".loss / 4)"),
        "clears_before_backward": wrong(
            "its gradient is 0.4",
            *(
                "            accelerator.b",
                "            optimizer.zero_grad()\n            accelerator.b",
            ),
        ),
        "never_clears": wrong("Update 2: its gradient", "optimizer.zero_grad()", "pass"),
        "forgets_accumulate": wrong(
            "make 2 updates, not 8", "with accelerator.accumulate(model):", "if True:"
        ),
        "forgets_the_update": wrong("make 2 updates, not 0", "optimizer.step()", "pass"),
        "names_the_loss": right(
            *(
                "accelerator.backward(model(**batch).loss)",
                "out = model(**batch)\n            accelerator.backward(out.loss)",
            ),
        ),
    },
    "wrapped": {
        "counts_all_that_have_the_flag": wrong(
            "'GPT2Model': 1",
            "isinstance(m, GradientCheckpointingLayer)",
            "hasattr(m, 'gradient_checkpointing')",
        ),
        "forgets_the_switch": wrong("}, not {}", "switch_on(model)", "model"),
        "gives_a_number": wrong(
            "It returned 12",
            *("Counter(", "sum(Counter("),
            *("m.gradient_checkpointing)", "m.gradient_checkpointing).values())"),
        ),
        "counts_classes": wrong("<class", "type(m).__name__", "type(m)"),
        "goes_by_the_layers_alone": right(" if m.gradient_checkpointing", ""),
    },
    "every-nth": {
        "leaves_the_last_of_each_on": wrong(
            "n=2: the 4 blocks ran [1, 2, 1, 2]", "number % n == 0", "number % n == n - 1"
        ),
        "switches_them_off": wrong(
            "n=1: the 4 blocks ran [1, 1, 1, 1]", "number % n == 0", "number % n != 0"
        ),
        "puts_them_into_eval": wrong(
            "layers are in eval()",
            *("layer.gradient_checkpointing = number % n == 0", "layer.train(number % n == 0)"),
        ),
        "goes_over_all_modules": wrong(
            "n=4: the 4 blocks ran [1,",
            *("[m for m in modules if isinstance(m, GradientCheckpointingLayer)]", "list(modules)"),
        ),
        "leaves_all_on": wrong("n=2: the 4 blocks ran [2, 2, 2, 2]", "number % n == 0", "True"),
        "forgets_the_switch": wrong("_gradient_checkpointing_func", "switch_on(model)", "model"),
        "skips_n": wrong(
            "n=1: the 4 blocks ran [2, 1, 2, 1]", "number % n == 0", "number % (n + 1) == 0"
        ),
        "goes_by_slices": right(
            *(
                "for number, layer in enumerate(layers):",
                "for layer in set(layers) - {*layers[::n]}:",
            ),
            *("number % n == 0", "False"),
        ),
    },
}
