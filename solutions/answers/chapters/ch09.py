"""Chapter 09: who depends on whom, two fixes for BatchNorm, and cached gradients."""

from solutions.answers import right, wrong

FILLINGS = {
    "influence": {
        "exchanges_rows_and_columns": wrong(
            "A row must be a loss", "for row in rows])", "for row in rows]).T"
        ),
        "adds_up": wrong(
            "Loss 0: lengths 5 at sample 0 and 1 at sample 1, not [7.0, 1.0",
            ".norm(dim=1)",
            ".sum(dim=1)",
        ),
        "takes_one_norm": wrong("[8, 8], not [8].", ".flatten(1).norm(dim=1)", ".norm()"),
        "forgets_to_flatten": wrong("[8, 8], not [8, 8, 8, 8]", ".flatten(1)", ""),
        "returns_float32": right(".norm(dim=1)", ".float().norm(dim=1)"),
        "squares": wrong("not [25.0, 1.0", ".norm(dim=1)", ".square().sum(1)"),
        "ignores_micro_batches": wrong(
            "`losses_of` takes one micro-batch at a time",
            *("pixels.chunk(num_micro_batches)", "pixels.chunk(1)"),
            *("y[:8].chunk(num_micro_batches)", "y[:8].chunk(1)"),
        ),
        "adds_to_the_loss_before": wrong(
            "Loss 7: lengths 5 at sample 7",
            *(
                "grad(loss, pixels, retain_graph=True)[0] for loss in found",
                "grad(found[: i + 1].sum(), pixels, retain_graph=True)[0] for i in range(8)",
            ),
        ),
        "frees_the_graph": wrong(
            "backward through the graph a second time", ", retain_graph=True", ""
        ),
        "goes_backward": right(
            *(
                "[grad(loss, pixels, retain_graph=True)[0] for loss in found]",
                "[]\n    for loss in found:\n        pixels.grad = None\n"
                "        loss.backward(retain_graph=True)\n        rows.append(pixels.grad)",
            ),
        ),
        "takes_all_losses_at_once": right(
            *(
                "[grad(loss, pixels, retain_graph=True)[0] for loss in found]",
                "grad(found, pixels, torch.eye(8).double(), is_grads_batched=True)[0]",
            ),
        ),
    },
    "mend": {
        "puts_all_into_eval": wrong(
            "Other layers are in eval()", "return model", "return model.eval()"
        ),
        "freezes_weight_and_bias": wrong(
            "only the statistics",
            *("module.eval()", "module.eval().requires_grad_(False)"),
        ),
        "freezes_instead": wrong(
            "10 of 10 BatchNorms are still", "module.eval()", "module.requires_grad_(False)"
        ),
        "resets_the_statistics": wrong(
            "Running statistics have changed",
            *("module.eval()", "module.eval().reset_running_stats()"),
        ),
        "takes_them_out": wrong(
            "0 of 10 BatchNorms are left",
            *("model.modules()", "list(model.modules())"),
            *("isinstance(module, nn.BatchNorm2d)", "True"),
            *(
                "module.eval()",
                "module._modules.update({name: nn.Identity() for name, of in"
                " module.named_children() if isinstance(of, nn.BatchNorm2d)})",
            ),
        ),
        "asks_for_another_class": wrong("It returned None", "    return model", "    return None"),
        "names_train": right("module.eval()", "module.train(False)"),
    },
    "with-groups": {
        "takes_four_groups": wrong(
            "channels=4: 4 channels are in 4 group(s)", "width // channels", "channels"
        ),
        "takes_four_groups_always": wrong(
            "channels=2: 4 channels are in 1 group(s)", "width // channels", "width // 4"
        ),
        "stays_in_float32": wrong("is in float32", ".double()", ""),
        "makes_one_group": wrong("channels=4: 16 channels are in 1", "width // channels", "1"),
        "learns_no_scale": wrong(
            "no weight and bias that train", "channels, width)", "channels, width, affine=False)"
        ),
        "sets_nothing": wrong(
            "10 BatchNorms and 0 GroupNorms", "model.set_submodule(name, ", "print(end='') or ("
        ),
        "keeps_the_weights": right(
            *(
                "model.set_submodule(name, nn.GroupNorm(width // channels, width).double())",
                "new = nn.GroupNorm(width // channels, width).double()\n"
                "            new.load_state_dict(module.state_dict(), strict=False)\n"
                "            model.set_submodule(name, new)",
            ),
        ),
    },
    "contrastive": {
        "goes_one_way": wrong("Pair 1, s = 2: the loss is", "(forth + back) / 2", "forth"),
        "adds_both_ways": wrong("Pair 1, s = 2: the loss is", "(forth + back) / 2", "forth + back"),
        "gives_the_mean": wrong(
            "Three pairs have three losses",
            "return (forth + back) / 2",
            "return ((forth + back) / 2).mean()",
        ),
        "takes_the_log": wrong("Pair 1, s = 2: the loss is", "log_scale.exp()", "log_scale"),
        "gives_a_matrix": wrong(
            "Three pairs have three losses",
            "return (forth + back) / 2",
            "return -scores.log_softmax(1)",
        ),
        "writes_it_out": right(
            'F.cross_entropy(scores, own, reduction="none")',
            "scores.logsumexp(1) - scores.diagonal()",
        ),
    },
    "naive": {
        "sums_the_means": wrong("The gradient is 3 times", " / num", ""),
        "updates_each_time": wrong(
            "The optimizer steps after parts [1, 2, 3]",
            "        total += loss.item()\n    optimizer.step()",
            "        total += loss.item()\n        optimizer.step()",
        ),
        "forgets_the_old_gradient": wrong(
            "e+", "    optimizer.zero_grad()\n    total", "    total"
        ),
        "clears_each_time": wrong(
            "The gradient is 0.",
            *("    optimizer.zero_grad()\n    total = 0.0", "    total = 0.0"),
            *("        loss = contrast", "        optimizer.zero_grad()\n        loss = contrast"),
        ),
        "returns_the_last": wrong("The mean is", "return total", "return loss.item()"),
        "returns_a_tensor": wrong("not a number", "return total", "return loss"),
        "takes_all_at_once": wrong(
            "24 pairs in 3 parts should be", "pixels.chunk(num)", "[pixels]"
        ),
        "adds_tensors": right("loss.item()", "float(loss.detach())"),
    },
    "cached": {
        "keeps_the_losss_graph": right(
            "loss.backward()  # step two", "loss.backward(retain_graph=True)  # step two"
        ),
        "returns_the_losss_graph": wrong("holds on to its graph", "loss.item()", "loss"),
        "detaches_the_loss": right("loss.item()", "loss.detach()"),
        "draws_masks_again": wrong(
            "replay=True: both passes draw different masks",
            "torch.set_rng_state(state)",
            "pass",
        ),
        "always_replays": wrong(
            "replay=False: both passes draw the same masks", "if replay:", "if True:"
        ),
        "leaves_the_scale_out": wrong(
            "The gradient of log_scale", "model.log_scale)", "model.log_scale.detach())"
        ),
        "updates_each_time": wrong(
            "step() ran 3 times", "\n    optimizer.step()", "\n        optimizer.step()"
        ),
        "forgets_the_update": wrong("step() ran 0 times", "\n    optimizer.step()", ""),
        "means_over_parts": wrong(
            "The gradient of left.1.0.weight", "backward(cache)", "backward(cache / len(parts))"
        ),
        "goes_backward_from_the_loss": wrong(
            "through the model 6 times, not 3",
            "model(part).backward(cache)",
            "pass",
        ),
        "keeps_the_graphs_of_step_one": wrong(
            "Pass 2 of 6 begins with",
            *("with torch.no_grad():", "if True:"),
            *("torch.cat(rows)", "torch.cat(rows).detach()"),
        ),
        "goes_backward_at_the_end": wrong(
            "Pass 5 of 6 begins with",
            *("    caches = ", "    outs = []\n    caches = "),
            *("model(part).backward(cache)", "outs.append(model(part))"),
            *(
                "    optimizer.step()",
                "    torch.autograd.backward(outs, caches)\n    optimizer.step()",
            ),
        ),
        "never_clears": wrong("An older gradient is in the sum", "optimizer.zero_grad()", "pass"),
        "clears_at_the_end": wrong(
            "clear it at the beginning",
            *("    return loss", "    optimizer.zero_grad()\n    return loss"),
        ),
        "gives_the_sum": wrong(
            "The loss is", "return loss.item()", "return loss.item() * len(parts)"
        ),
        "detaches_each": right(
            *("with torch.no_grad():", "if True:"),
            *("rows.append(model(part))", "rows.append(model(part).detach())"),
        ),
        "gives_a_tensor": right("loss.item()", "loss.detach()"),
        "takes_a_product": right(
            "model(part).backward(cache)", "(model(part) * cache).sum().backward()"
        ),
    },
    "in-memory": {
        "embeds_all_at_once": wrong(
            "[8, 8, 8], not [24]", "for part in pixels.split(size)", "for part in [pixels]"
        ),
        "ignores_embed": wrong(
            "`embed` is called with []", "(embed or model)(part)", "model(part)"
        ),
        "cuts_into_three": wrong(
            "`embed` is called with [8, 8, 8]", "pixels.split(size)", "pixels.chunk(3)"
        ),
        "embeds_without_masks": wrong(
            "With dropout, the masks differ",
            *("    embedded = torch", "    model.eval()\n    embedded = torch"),
        ),
        "begins_at_the_end": wrong(
            "With dropout, the masks differ",
            *("for part in pixels.split(size)])", "for part in pixels.split(size)[::-1]][::-1])"),
        ),
        "asks_for_gradients": right(
            "    loss.backward()\n",
            "    named = list(model.parameters())\n"
            "    for one, of in zip(named, torch.autograd.grad(loss, named), strict=True):\n"
            "        one.grad = of\n",
        ),
        "never_clears": wrong("An older gradient", "    optimizer.zero_grad()\n", ""),
        "takes_a_loss_a_part": wrong(
            "The loss is",
            *("torch.cat(", ""),
            *("pixels.split(size)])", "pixels.split(size)]"),
            *(
                "contrast(embedded, model.log_scale).mean()",
                "sum(contrast(part, model.log_scale).mean() for part in embedded) / len(embedded)",
            ),
        ),
        "returns_the_graph": wrong("It returned", "return loss.item()", "return loss"),
        "forgets_the_update": wrong("steps after parts []", "    optimizer.step()\n", ""),
        "grows_a_list": right(
            "    embedded = torch.cat([(embed or model)(part) for part in pixels.split(size)])\n",
            "    rows = []\n    for part in pixels.split(size):\n"
            "        rows.append(model(part) if embed is None else embed(part))\n"
            "    embedded = torch.cat(rows)\n",
        ),
    },
    "share-of": {
        "counts_rows": wrong(
            "targets that count, a share of",
            *("(train.targets_of(part) >= 0).sum()", "len(part)"),
            *("(train.targets_of(tokens) >= 0).sum()", "len(tokens)"),
        ),
        "counts_padding_too": wrong(
            "targets that count, a share of",
            *("(train.targets_of(part) >= 0).sum()", "train.targets_of(part).numel()"),
            *("(train.targets_of(tokens) >= 0).sum()", "train.targets_of(tokens).numel()"),
        ),
        "returns_a_number_of_targets": wrong(
            "their shares must sum to", "own / (train.targets_of(tokens) >= 0).sum()", "own"
        ),
        "turns_it_round": wrong(
            "their shares must sum to",
            *("own / (train.targets_of(tokens) >= 0).sum()",),
            "(train.targets_of(tokens) >= 0).sum() / own",
        ),
        "counts_by_hand": right(
            "own / (train.targets_of(tokens) >= 0).sum()",
            "int(own) / int((train.targets_of(tokens) != -100).sum())",
        ),
    },
}
