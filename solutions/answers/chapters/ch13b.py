"""Chapter 13b: softmax over keys that come in parts."""

from solutions.answers import right, wrong

FILLINGS = {
    "merge": {
        "never_rescales_what_was_seen": wrong(
            "Parts: 3, largest score 3: attention is off by",
            *("total * before +", "total +"),
            *("out * before +", "out +"),
        ),
        "rescales_the_result_alone": wrong(
            "Parts: 3, largest score 3: attention is off by", "total * before +", "total +"
        ),
        "takes_the_parts_own_largest": wrong(
            "`top` isn't the largest score",
            *("torch.maximum(top, scores.amax(-1, keepdim=True))", "scores.amax(-1, keepdim=True)"),
        ),
        "takes_no_largest": wrong(
            "`top` isn't the largest score",
            *("torch.maximum(top, scores.amax(-1, keepdim=True))", "torch.zeros_like(top)"),
        ),
        "forgets_the_values_weights": wrong(
            "Parts: 1, largest score 3: attention is off by",
            *("weights @ value", "scores @ value"),
        ),
        "rescales_afterwards": right(
            "total = total * before + weights.sum(-1, keepdim=True)",
            "total, out = total * before, out * before",
            *(
                "return new_top, total, out * before",
                "total = total + weights.sum(-1, keepdim=True)\n    return new_top, total, out",
            ),
        ),
    },
}
