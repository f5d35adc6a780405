"""Chapter 10d: the usual loss, the one whose forward takes the gradients, and what is around it."""

from solutions.answers import right, wrong

FILLINGS = {
    "usual": {
        "stays_in_bfloat16": wrong("not float32", "head(hidden).float()", "head(hidden)"),
        "gives_the_mean": wrong("The sum is", ', reduction="sum"', ""),
        "gives_each": wrong("Return one number, not shape", '"sum"', '"none"'),
        "takes_logs": right(
            "F.cross_entropy(logits, targets,", "F.nll_loss(logits.log_softmax(1), targets,"
        ),
    },
    "checkpointed": {
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
        "keeps_the_last": wrong("The loss is ", "total = total + ", "total = "),
        "has_a_size_of_its_own": wrong(
            "not [16, 4]",
            *("hidden.split(size), targets.split(size)", "hidden.split(16), targets.split(16)"),
        ),
        "cuts_the_rows_off": wrong(
            "appears to not have been used in the graph",
            *("head, rows, theirs", "head, rows.detach(), theirs"),
        ),
        "adds_in_place": right("total = total + ", "total += "),
    },
    "slope": {
        "forgets_the_one": wrong("should sum to 0, not 1.0", ".scatter_add_(1, picked, -ones)", ""),
        "adds_the_one": wrong("should sum to 0, not 2.0", "-ones", "ones"),
        "gives_the_mean": wrong("The loss is ", ".sum()", ".mean()"),
        "loses_the_dtype": wrong("The slope of bfloat16 logits", "slope.to(logits.dtype)", "slope"),
        "stops_at_the_logs": wrong("should sum to 0, not 14.", "logs.exp_()", "logs"),
        "goes_by_one_hot": right(
            "logs.exp_().scatter_add_(1, picked, -ones)",
            "logs.exp() - F.one_hot(targets, logits.shape[1])",
        ),
    },
    "in-forward": {
        "keeps_the_last_sum": wrong(
            "The gradient of weight is", "of_weight += slope", "of_weight = slope"
        ),
        "keeps_the_last_loss": wrong("Your loss is ", "total = total + loss", "total = loss"),
        "takes_all_rows_at_once": wrong(
            "isn't below all logits",
            *("len(hidden), size):", "1):"),
            *("start + size", "len(hidden)"),
        ),
        "keeps_the_slopes": wrong(
            "isn't below all logits",
            *("        for start", "        kept = []\n        for start"),
            *("del slope", "kept.append(slope)"),
        ),
        "writes_over_the_first_rows": wrong(
            "The gradient of hidden is", "of_hidden[part] =", "of_hidden[:len(slope)] ="
        ),
        "saves_the_rows_too": wrong(
            "but you save 5.88 KiB",
            *("of_weight)\n        return", "of_weight, hidden)\n        return"),
            *("of_hidden, of_weight = ctx", "of_hidden, of_weight, _ = ctx"),
        ),
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
    "run": {
        "goes_nowhere": wrong("not 1073741824", ".backward()", ""),
        "forgets_the_baseline": wrong(
            "is the baseline subtracted?",
            "report.peak_bytes - report.baseline_bytes",
            "report.peak_bytes",
        ),
        "watches_forward_alone": wrong(
            "not 1073741824",
            *(
                "        loss_of(head, hidden, targets).backward()",
                "        loss = loss_of(head, hidden, targets)",
            ),
            *("    peak =", "    loss.backward()\n    peak ="),
        ),
        "exchanges_the_gradients": wrong(
            "Rows' gradient: [8192, 64]",
            "[hidden.grad, head.weight.grad]",
            "[head.weight.grad, hidden.grad]",
        ),
        "counts_first": right(
            "memory.watch(model=end) as report, memory.flop_counter() as counter",
            "memory.flop_counter() as counter, memory.watch(model=end) as report",
        ),
    },
    "formula": {
        "forgets_a_float": wrong("), not 22", "4 * (sums", "(sums"),
        "has_one_chunk": wrong("), not 52", "2 * logits", "logits"),
        "forgets_the_heads_gradient": wrong(
            "the sums and a chunk and the head's gradient", "logits + of_head", "logits"
        ),
        "holds_the_sums_once": wrong(
            "the sums and both sums again", "logits + of_head, sums", "logits + of_head"
        ),
        "adds_the_moments": wrong("), not 140", "max(moments)", "sum(moments)"),
        "goes_by_sorted": right("max(moments)", "sorted(moments)[-1]"),
    },
    "mean": {
        "divides_by_all": wrong(
            "5 of 20 tokens count", "counts.sum().clamp(min=1)", "len(targets)"
        ),
        "divides_by_none": wrong(", not nan", ".clamp(min=1)", ""),
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
            "the loss is right, but its", "hidden[counts]", "hidden[counts].detach()"
        ),
        "asks_whether_any_counts": right(
            *("counts.sum().clamp(min=1)", "max(1, int((targets >= 0).sum()))"),
        ),
    },
    "refusing": {
        "refuses_always": wrong(
            "this loss has only first gradients", "if torch.is_grad_enabled():", "if True:"
        ),
        "refuses_never": wrong(
            "must raise a RuntimeError", "if torch.is_grad_enabled():", "if False:"
        ),
        "asks_the_arriving": wrong(
            "must raise a RuntimeError", "torch.is_grad_enabled()", "gradient.requires_grad"
        ),
        "loses_the_factor": wrong(
            "Backward differs from InForward's",
            *("InForward.backward(ctx, gradient)", "InForward.backward(ctx, 0 * gradient)"),
        ),
        "turns_it_round": wrong(
            "this loss has only first gradients", "if torch.is_grad", "if not torch.is_grad"
        ),
        "asks_by_super": right(
            "InForward.backward(ctx, gradient)", "super(Refusing, Refusing).backward(ctx, gradient)"
        ),
    },
    "loss-of": {
        "takes_the_usual": wrong(
            "chunks of 300, 300, 168, not [768]",
            "checkpointed(model.head, hidden, targets, size)",
            "usual(model.head, hidden, targets)",
        ),
        "forgets_the_size": wrong(
            "chunks of 300, 300, 168, not [512, 256]", ", targets, size)", ", targets)"
        ),
        "divides_by_all": wrong("The mean is", "(targets >= 0).sum()", "len(targets)"),
        "gives_the_sum": wrong("The mean is", " / (targets >= 0).sum()", ""),
        "keeps_the_rows_apart": wrong("It needs to return the mean loss", ".flatten(0, 1)", ""),
        "counts_first": right("(targets >= 0).sum()", "int((targets != -100).sum())"),
        "reshapes": right("flatten(0, 1)", "reshape(-1, 64)"),
    },
}
