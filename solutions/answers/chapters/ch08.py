"""Chapter 08: the loop, the last window, and the divisor of ragged rows."""

from solutions.answers import right, wrong

FILLINGS = {
    "two-steps": {
        "divides_by_the_rows": wrong(
            "num=2, divisor=None: 0.167 times", "(divisor or num)", "(divisor or len(micro_batch))"
        ),
        "forgets_the_division": wrong("divisor=None: 2 times", " / (divisor or num)", ""),
        "takes_no_divisor": wrong("divisor=1: 1 times", "(divisor or num)", "num"),
        "climbs": wrong("divisor=None: -1 times", "loss = model", "loss = -model"),
        "forgets_the_update": wrong(
            "12 rows and a step, not [12, 12].", "\n    optimizer.step()", ""
        ),
        "updates_each_time": wrong(
            "not [12, 'step', 12, 'step']", "\n    optimizer.step()", "\n        optimizer.step()"
        ),
        "goes_by_the_size": wrong("not [2, 2, 2, ", "chunk(num)", "split(num)"),
        "never_clears": wrong("is still in the sum", "optimizer.zero_grad()", "pass"),
        "clears_at_the_end": wrong(
            "clear it at the beginning",
            *("optimizer.step()", "optimizer.step()\n    optimizer.zero_grad()"),
        ),
        "holds_both_graphs": wrong(
            "both graphs are in memory at once",
            *("    for micro", "    total = 0\n    for micro"),
            *("        loss.backward()", "        total = total + loss"),
            *("    optimizer.step()", "    total.backward()\n    optimizer.step()"),
        ),
        "goes_backward_from_a_number": wrong(
            "No gradient reaches the model",
            *("loss.backward()", "loss.detach().requires_grad_().backward()"),
        ),
        "names_each_weight": right(
            *("optimizer.zero_grad()", "weights = [*model.parameters()]"),
            *(
                "    for micro",
                "    for w in weights:\n        w.grad = torch.zeros_like(w)\n    for micro",
            ),
            *(
                "        loss.backward()",
                "        for w, g in zip(weights, torch.autograd.grad(loss, weights)):\n"
                "            w.grad += g",
            ),
        ),
        "divides_the_sum": right(
            *(" / (divisor or num)", ""),
            *(
                "\n    optimizer.step()",
                "\n    for p in model.parameters():\n        p.grad /= divisor or num"
                "\n    optimizer.step()",
            ),
        ),
    },
    "mended-epoch": {
        "divides_by_the_full_window": wrong(
            "of 157 images: 0.872 times", "len(rows) / len(window)", "len(rows) / (size * num)"
        ),
        "divides_by_num": wrong("of 157 images: 1.21 times", "len(rows) / len(window)", "1 / num"),
        "does_not_divide": wrong(
            "Update 1, of 180 images: 3 times", "len(rows) / len(window)", "1"
        ),
        "never_clears": wrong("Update 2, of 180 images: ", "optimizer.zero_grad()", "pass"),
        "knows_one_size": wrong("not [64, 64, 52, ", "window.split(size)", "window.split(64)"),
        "knows_one_number": wrong("are 3 updates, not 5", "size * num)", "size * 2)"),
        "takes_a_window_at_once": wrong("not [180, 180, 157]", "window.split(size)", "[window]"),
        "updates_each_time": wrong(
            "3 updates, not 9", "\n        optimizer.step()", "\n            optimizer.step()"
        ),
        "forgets_the_update": wrong("3 updates, not 0", "\n        optimizer.step()", ""),
        "leaves_the_last_window_out": wrong(
            "60, 60, 60].", ".split(size * num)", ".split(size * num)[:2]"
        ),
        "holds_all_graphs": wrong(
            "graphs are all in memory at once",
            *("        for rows in", "        losses = []\n        for rows in"),
            *(
                "(model.loss(images[rows], labels[rows]) * share).backward()",
                "losses.append(model.loss(images[rows], labels[rows]) * share)",
            ),
            *(
                "\n        optimizer.step()",
                "\n        sum(losses).backward()\n        optimizer.step()",
            ),
        ),
        "counts_micro_batches": wrong(
            *("of 157 images: 1.21 times", "len(rows) / len(window)"),
            "1 / len(window.split(size))",
        ),
        "divides_in_the_end": right(
            *("share = len(rows) / len(window)", "share = len(rows)"),
            *(
                "\n        optimizer.step()",
                "\n        for p in model.parameters():\n            p.grad /= len(window)"
                "\n        optimizer.step()",
            ),
        ),
    },
    "ragged-steps": {
        "forgets_the_number": wrong(
            "mean_of_means=True: the gradient is 200% off",
            "len(starts) * num_targets(part)",
            "num_targets(part)",
        ),
        "divides_by_its_own": wrong(
            "mean_of_means=False: the gradient", "else num_targets(lines)", "else own"
        ),
        "returns_the_last_loss": wrong(
            "mean_of_means=False: the scaled losses sum to", "total += loss", "total = loss"
        ),
        "leaves_the_last_line_out": wrong(
            "not [2, 2, 'step']", "range(0, len(lines), size)", "range(0, len(lines) - 1, size)"
        ),
        "forgets_the_update": wrong("not [2, 2, 1].", "\n    optimizer.step()", ""),
        "never_clears": wrong("An older gradient is in the sum", "optimizer.zero_grad()", "pass"),
        "clears_at_the_end": wrong(
            "clear it at the beginning",
            *("    return total", "    optimizer.zero_grad()\n    return total"),
        ),
        "holds_all_graphs": wrong(
            "all graphs are in memory at once",
            *("        loss.backward()\n", ""),
            *("loss.item()", "loss"),
            *("    optimizer.step()", "    total.backward()\n    optimizer.step()"),
            *("return total", "return total.item()"),
        ),
        "returns_a_tensor": right("loss.item()", "loss.detach()"),
    },
}
