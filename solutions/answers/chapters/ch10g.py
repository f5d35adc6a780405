"""Chapter 10g: gradients of an MLP, added up tile by tile inside of its backward."""

from solutions.answers import right, wrong

FILLINGS = {
    "tiled": {
        "divides_by_the_tiles": wrong(
            "The gradient of x is 0.33 times", "slope[tile])", "slope[tile] / 3)"
        ),
        "takes_the_first_slope": wrong(
            "elsewhere: 116% off",
            *("slope[tile]", "slope[: len(rows)]"),
        ),
        "writes_over_the_first_rows": wrong(
            "elsewhere: 127% off", "of_x[tile] =", "of_x[: len(rows)] ="
        ),
        "uses_the_weights_themselves": wrong(
            "Backward must not touch the weights' `.grad`",
            "functional_call(ctx.mlp, stand_ins, (rows,))",
            "ctx.mlp(rows)",
        ),
        "clears_before_each_tile": wrong(
            "of a weight is 0.",
            *(
                "            rows =",
                "            for weight in copies:\n"
                "                weight.grad = None\n            rows =",
            ),
        ),
        "has_no_graph": wrong(
            "does not require grad",
            *("with torch.enable_grad():", "with torch.no_grad():"),
        ),
        "takes_all_at_once": wrong(
            "tiles of [20] tokens",
            "range(0, len(x), ctx.size)",
            "range(1)",
            *("slice(start, start + ctx.size)", "slice(0, len(x))"),
        ),
        "splits": right(
            *("range(0, len(x), ctx.size)", "torch.arange(len(x)).split(ctx.size)"),
            *("slice(start, start + ctx.size)", "start"),
        ),
    },
}
