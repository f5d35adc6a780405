"""Chapter 10d: the loss whose forward takes the gradients, and its mean over what counts."""

from solutions.answers import right, wrong

FILLINGS = {
    "in-forward": {
        "keeps_the_last_sum": wrong(
            "The gradient of weight is", "of_weight += slope", "of_weight = slope"
        ),
        "keeps_the_last_loss": wrong("The loss is ", "total = total + loss", "total = loss"),
        "takes_all_rows_at_once": wrong(
            "all logits take", *("len(hidden), size):", "1):"), *("start + size", "len(hidden)")
        ),
        "keeps_the_slopes": wrong(
            "all logits take",
            *("        for start", "        kept = []\n        for start"),
            *("del slope", "kept.append(slope)"),
        ),
        "writes_over_the_first_rows": wrong(
            "The gradient of hidden is", "of_hidden[part] =", "of_hidden[:len(slope)] ="
        ),
        "saves_the_rows_too": wrong("and 5.88 KiB are kept", "of_weight)", "of_weight, hidden)"),
        "exchanges_the_sums": wrong(
            "returned an invalid gradient", "(of_hidden, of_weight)", "(of_weight, of_hidden)"
        ),
        "lets_the_slope_live": right("            del slope", "            pass"),
        "asks_autograd": right(
            *(
                "loss, slope = loss_and_slope(hidden[part] @ weight.T, targets[part])",
                "with torch.enable_grad():\n"
                "                logits = (hidden[part] @ weight.T).detach().requires_grad_()\n"
                '                loss = F.cross_entropy(logits, targets[part], reduction="sum")\n'
                "            slope = torch.autograd.grad(loss, logits)[0]",
            ),
            *("total = total + loss", "total = total + loss.detach()"),
        ),
        "splits": right(
            *("range(0, len(hidden), size)", "torch.arange(len(hidden)).split(size)"),
            *("slice(start, start + size)", "start"),
        ),
    },
    "mean": {
        "divides_by_all": wrong(
            "5 of 20 tokens count", "counts.sum().clamp(min=1)", "len(targets)"
        ),
        "divides_by_none": wrong("and not nan", ".clamp(min=1)", ""),
        "does_not_divide": wrong("20 of 20 tokens count", " / number", ""),
        "counts_padding": wrong("Size does not match", "targets[counts]", "targets"),
        "makes_all_logits": wrong(
            "size 8: it got []",
            "in_forward(head, hidden[counts], targets[counts], size)",
            'F.cross_entropy(head(hidden), targets, reduction="sum")',
        ),
        "loses_the_size": wrong("it got [(20, 512)]", "targets[counts], size)", "targets[counts])"),
        "has_no_graph_for_none": wrong(
            "0 of tensors does not require grad",
            *(
                "    number =",
                "    if not counts.any():\n        return torch.zeros(())\n    number =",
            ),
        ),
        "cuts_the_rows_off": wrong(
            "the loss is right, and its", "hidden[counts]", "hidden[counts].detach()"
        ),
        "asks_whether_any_counts": right(
            *("counts.sum().clamp(min=1)", "max(1, int((targets >= 0).sum()))"),
        ),
    },
}
