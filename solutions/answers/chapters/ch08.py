"""Chapter 08: the loop and its gradient, the last window, ragged rows, and one whole update."""

from solutions.answers import right, wrong

FILLINGS = {
    "two-steps": {
        "divides_by_the_rows": wrong(
            "num=2, divisor=None: your gradient is 0.167 times",
            "(divisor or num)",
            "(divisor or len(micro_batch))",
        ),
        "forgets_the_division": wrong(
            "divisor=None: your gradient is 2 times", " / (divisor or num)", ""
        ),
        "takes_no_divisor": wrong("divisor=1: your gradient is 1 times", "(divisor or num)", "num"),
        "climbs": wrong("divisor=None: your gradient is -1 times", "loss = model", "loss = -model"),
        "forgets_the_update": wrong("then a step, not [12, 12].", "\n    optimizer.step()", ""),
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
    "gradient": {
        "forgets_the_dtype": wrong(
            "The models' dtypes were", "optimizer = make_gpt(dtype)", "optimizer = make_gpt()"
        ),
        "gives_the_weights": wrong(
            "These are the weights themselves", "p.grad.double()", "p.double()"
        ),
        "stays_in_float32": wrong("not float64", "p.grad.double()", "p.grad"),
        "takes_two_steps": wrong(
            "times, not once",
            *(
                "    step(model, optimizer)",
                "    step(model, optimizer)\n    step(model, optimizer)",
            ),
        ),
        "joins_by_hand": right(
            "parameters_to_vector(p.grad.double() for p in model.parameters())",
            "torch.cat([p.grad.double().flatten() for p in model.parameters()])",
        ),
    },
    "mended-epoch": {
        "divides_by_the_full_window": wrong(
            "(157 images) used 0.872 times", "len(rows) / len(window)", "len(rows) / (size * num)"
        ),
        "divides_by_num": wrong(
            "(157 images) used 1.21 times", "len(rows) / len(window)", "1 / num"
        ),
        "does_not_divide": wrong(
            "Update 1 (180 images) used 3 times", "len(rows) / len(window)", "1"
        ),
        "never_clears": wrong("Update 2 (180 images) used ", "optimizer.zero_grad()", "pass"),
        "knows_one_size": wrong(
            "the first are [64, 64, 52]", "window.split(size)", "window.split(64)"
        ),
        "knows_one_number": wrong("make 3 updates, not 5", "size * num)", "size * 2)"),
        "takes_a_window_at_once": wrong(
            "the first are [180, 180, 157]", "window.split(size)", "[window]"
        ),
        "updates_each_time": wrong(
            "3 updates, not 9", "\n        optimizer.step()", "\n            optimizer.step()"
        ),
        "forgets_the_update": wrong("3 updates, not 0", "\n        optimizer.step()", ""),
        "leaves_the_last_window_out": wrong(
            "the last [60, 60, 60]", ".split(size * num)", ".split(size * num)[:2]"
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
            *("(157 images) used 1.21 times", "len(rows) / len(window)"),
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
    "loss-sum": {
        "scores_its_own_token": wrong(
            "does each position score the next token?",
            *("logits[:, :-1]", "logits"),
            *("rows[:, 1:]", "rows"),
        ),
        "scores_the_token_before": wrong(
            "does each position score the next token?",
            *("logits[:, :-1]", "logits[:, 1:]"),
            *("rows[:, 1:]", "rows[:, :-1]"),
        ),
        "gives_the_mean": wrong("You returned the mean over tokens", ', reduction="sum"', ""),
        "gives_every_token": wrong("Return one number, not shape", '"sum"', '"none"'),
        "counts_the_padding": wrong(
            "is padding left out?", "rows[:, 1:].flatten()", "rows.clamp(min=0)[:, 1:].flatten()"
        ),
        "feeds_the_padding": wrong("index out of range", "rows.clamp(min=0)", "rows"),
        "takes_logs": right(
            "F.cross_entropy(scores, targets,", "F.nll_loss(scores.log_softmax(-1), targets,"
        ),
    },
    "ragged-steps": {
        "forgets_the_number": wrong(
            "mean_of_means=True: the gradient is off by 200%",
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
        "keeps_all_graphs": wrong("The sum that you return has a graph", "loss.item()", "loss"),
        "returns_a_tensor": right("loss.item()", "loss.detach()"),
    },
    "update": {
        "clips_each": wrong(
            "You clipped after micro-batches [1, 2]",
            *("    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n", ""),
            *(
                "        logged += loss.item()",
                "        logged += loss.item()\n"
                "        nn.utils.clip_grad_norm_(model.parameters(), 0.1 * scaler.get_scale())",
            ),
        ),
        "never_clips": wrong(
            "You clipped after micro-batches []",
            *("    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n", ""),
        ),
        "never_unscales": wrong(
            "did you clip before unscaling?", "    scaler.unscale_(optimizer)\n", ""
        ),
        "unscales_after_the_clip": wrong(
            "did you clip before unscaling?",
            *("    scaler.unscale_(optimizer)\n", ""),
            *("    scaler.step", "    scaler.unscale_(optimizer)\n    scaler.step"),
        ),
        "does_not_scale": wrong(
            "_scale is None", "scaler.scale(loss).backward()", "loss.backward()"
        ),
        "steps_the_schedule_each_time": wrong(
            "The schedule should run once per window",
            *("    scheduler.step()\n", ""),
            *(
                "        logged += loss.item()",
                "        logged += loss.item()\n        scheduler.step()",
            ),
        ),
        "forgets_the_scalers_update": wrong(
            "The update should run once per window", "    scaler.update()\n", ""
        ),
        "does_not_divide": wrong("You clipped 2 times the gradient", " / num", ""),
        "divides_what_it_logs_alone": wrong(
            "You clipped 2 times the gradient",
            *(" / num", ""),
            *("return logged", "return logged / num"),
        ),
        "updates_past_the_scaler": wrong(
            "Update with `scaler.step`", "scaler.step(optimizer)", "optimizer.step()"
        ),
        "never_clears": wrong(
            "An earlier update's gradient is in the sum", "optimizer.zero_grad()", "pass"
        ),
        "takes_all_at_once": wrong("32 digits", "chunk(num)", "chunk(1)"),
        "names_the_limit": right("parameters(), 0.1)", "parameters(), max_norm=0.1)"),
        "logs_apart": right("logged += loss.item()", "logged = logged + float(loss)"),
        "splits": right("torch.arange(64).chunk(num)", "torch.arange(64).split(64 // num)"),
    },
    "in-micro-batches": {
        "clears_before_the_update": wrong(
            "The gradients are gone",
            *("\n    optimizer.step()", "\n    optimizer.zero_grad()\n    optimizer.step()"),
        ),
        "clears_twice_at_the_beginning": right(
            *("    for part in", "    optimizer.zero_grad()\n    for part in"),
        ),
        "takes_the_whole": wrong(
            "4 micro-batches of 3 sequences, not [12]", "in parts:", "in [tokens]:"
        ),
        "forgets_the_division": wrong("4.00 times the whole batch's", " / len(parts)", ""),
        "steps_each_time": wrong(
            "steps after losses [1, 2, 3, 4, 4]",
            "        loss.backward()\n",
            "        loss.backward()\n        optimizer.step()\n",
        ),
        "holds_all_graphs": wrong(
            "Call backward after each loss",
            "        loss.backward()\n        total = total + loss.detach()",
            "        total = total + loss\n    total.backward()\n    total = total.detach()",
        ),
        "gives_the_last_loss": wrong(
            "The mean loss is", "total = total + loss.detach()", "total = loss.detach()"
        ),
        "keeps_the_graph": wrong("has a graph", "loss.detach()", "loss"),
        "sums_it_up": right("total = total + loss.detach()", "total += loss.detach()"),
        "weighs_by_rows": right("/ len(parts)", "* len(part) / len(tokens)"),
    },
}
