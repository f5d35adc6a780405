"""Chapter 15: a relative error that misses nothing, a block in JAX, and what JAX keeps."""

from solutions.answers import right, wrong

FILLINGS = {
    "compare": {
        "takes_pythons_max": wrong(
            "A gradient is nan", "return np.max(errors)", "return max([0.0, *errors])"
        ),
        "forgets_the_sign": wrong(
            "[[-5.0]], the error is 0.25, not 0.0", "abs(ours - right)", "(ours - right)"
        ),
        "divides_by_each": wrong(
            "[1.5, 2.0] and [[-4.0]], the error is 0.25, not 0.5",
            "abs(ours - right).max() / abs(right).max()",
            "(abs(ours - right) / abs(right)).max()",
        ),
        "does_not_divide": wrong(", not 1.0.", " / abs(right).max()", ""),
        "averages": wrong("the error is 0.25, not 0.125", "np.max(errors)", "np.mean(errors)"),
        "compares_what_is_left": wrong("One of two gradients is missing", ", strict=True", ""),
        "looks_at_one": wrong(
            "[[-3.0]], the error is 0.25, not 0.0", "np.max(errors)", "errors[0]"
        ),
        "loops": right(
            *("    errors = [", "    errors = np.array(["),
            *("for ours, right in pairs]", "for ours, right in pairs])"),
            *("np.max(errors)", "float(errors.max())"),
        ),
    },
    "jax-block": {
        "forgets_the_first_sum": wrong(
            "With attention alone", 'x = x + linear(w, "out"', 'x = linear(w, "out"'
        ),
        "forgets_the_second_sum": wrong(
            "With attention alone", "return x + linear", "return linear"
        ),
        "forgets_the_norm": wrong("With attention alone", 'jax_norm(x, *w["norm_1"])', "x"),
        "takes_one_norm_twice": wrong("With attention and MLP", 'w["norm_2"]', 'w["norm_1"]'),
        "forgets_gelu": wrong("With attention and MLP", "jax.nn.gelu(", "("),
        "takes_relu": wrong("With attention and MLP", "jax.nn.gelu(", "jax.nn.relu("),
        "forgets_the_layer_out": wrong(
            "With attention alone", 'linear(w, "out", attend(', "(attend("
        ),
        "reads_the_input_again": wrong(
            "With attention and MLP",
            *('    x = x + linear(w, "out"', '    old = x\n    x = x + linear(w, "out"'),
            *('jax_norm(x, *w["norm_2"])', 'jax_norm(old, *w["norm_2"])'),
        ),
        "names_each_step": right(
            *(
                '    x = x + linear(w, "out", attend(linear(w, "qkv", jax_norm(x, *w["norm_1"]))))',
                '    shift, scale = w["norm_1"]\n'
                '    qkv = linear(w, "qkv", jax_norm(x, shift, scale))\n'
                '    x += attend(qkv) @ w["out"][1] + w["out"][0]',
            ),
        ),
    },
    "jax-kept": {
        "counts_weights": wrong("For three wrapped blocks", " if leaf.ndim > 2", ""),
        "counts_numbers": wrong(", not 131072.", "leaf.nbytes", "leaf.size"),
        "counts_arrays": wrong("524288 bytes, not 2.", "leaf.nbytes", "1"),
        "leaves_three_axes_out": wrong(", not 0.", "leaf.ndim > 2", "leaf.ndim > 3"),
        "looks_at_the_loss": wrong(", not 0.", "forward(w)[1]", "forward(w)[0]"),
        "takes_the_gradient": wrong("jax_kept", "jax.vjp", "jax.grad"),
        "sums_by_hand": right(
            *(
                "    return sum(leaf.nbytes for leaf in leaves if leaf.ndim > 2)",
                "    return 4 * sum(math.prod(s) for s in map(jnp.shape, leaves) if len(s) == 3)",
            ),
        ),
    },
}
