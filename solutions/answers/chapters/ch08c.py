"""Chapter 08c: a linear layer that keeps its rows in eight bits."""

from solutions.answers import right, wrong

FILLINGS = {
    "in-fp8": {
        "keeps_sixteen_bits": wrong(
            "You saved ['torch.float32', 'torch.float32']",
            "save_for_backward(eight, weight)",
            "save_for_backward(x, weight)",
        ),
        "keeps_the_rounded_rows_on_ctx": wrong(
            "120 bytes wait for backward, but the FP8 copy has only 24",
            "ctx.save_for_backward(eight, weight)",
            "ctx.save_for_backward(eight, weight)\n        ctx.rows = eight.to(x.dtype) * scale",
        ),
        "keeps_the_rows_themselves_too": wrong(
            "120 bytes wait for backward, but the FP8 copy has only 24",
            "ctx.save_for_backward(eight, weight)",
            "ctx.save_for_backward(eight, weight)\n        ctx.x = x",
        ),
        "multiplies_the_exact_rows": wrong(
            "The result isn't computed from the rounded rows",
            "(eight.to(x.dtype) * scale) @ weight.T",
            "x @ weight.T",
        ),
        "forgets_the_scale_in_backward": wrong(
            "The weight's gradient is 100 times",
            "eight.to(slope.dtype) * ctx.scale",
            "eight.to(slope.dtype)",
        ),
        "divides_by_the_scale": wrong(
            "The weight's gradient is 1e+04 times", "* ctx.scale", "/ ctx.scale"
        ),
        "rounds_the_weight_too": wrong(
            "You saved ['torch.float8_e4m3fn', 'torch.float8_e4m3fn']",
            "save_for_backward(eight, weight)",
            "save_for_backward(eight, to_fp8(weight, scale))",
        ),
        "scales_the_rows_gradient": wrong(
            "The gradient of the rows is wrong",
            "return slope @ weight,",
            "return slope @ weight * ctx.scale,",
        ),
        "multiplies_before": right("slope.T @ x, None", "(x.T @ slope).T, None"),
    },
}
