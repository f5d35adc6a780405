"""Chapter 13: no_sync, a step in micro-batches, DDP and FSDP2, and train.py on two ranks."""

from solutions.answers import right, wrong

FILLINGS = {
    "average": {
        "gives_the_sum": wrong(
            "the sum of both, not the mean", "        parameter.grad /= dist.get_world_size()", ""
        ),
        "sends_nothing": wrong(
            "from all eight lines'", "        dist.all_reduce(parameter.grad)\n", ""
        ),
        "runs_all_lines_on_each_rank": wrong(
            "runs 8 lines, not its own 4", "model(my_lines()), my_lines()", "model(lines), lines"
        ),
        "averages_the_weights": wrong(
            "the weights have changed", "all_reduce(parameter.grad)", "all_reduce(parameter.data)"
        ),
        "divides_on_the_way": right(
            *("all_reduce(parameter.grad)", "all_reduce(parameter.grad, dist.ReduceOp.AVG)"),
            *("        parameter.grad /= dist.get_world_size()", ""),
        ),
    },
    "no-sync": {
        "puts_no_sync_around_nothing": wrong(
            "skip=True: 8 all-reduces, not 2",
            *("model.no_sync() if skip else nullcontext()", "nullcontext()"),
        ),
        "puts_no_sync_around_all": wrong(
            "skip=True: 0 all-reduces, not 2",
            *("            loss_of(model(last)", "                loss_of(model(last)"),
        ),
        "skips_where_it_should_not": wrong(
            "skip=False: 2 all-reduces, not 8", "if skip else", "if not skip else"
        ),
        "leaves_the_last_out": wrong(
            "sends 0 P of gradients",
            *("            loss_of(model(last), last).backward()\n", ""),
        ),
        "sends_with_the_first": wrong(
            "2 all-reduces begin before the last micro-batch's forward",
            *(
                "            with model.no_sync()",
                "            loss_of(model(last), last).backward()\n"
                "            with model.no_sync()",
            ),
            *("            loss_of(model(last), last).backward()\n    return", "    return"),
        ),
        "skips_the_others": wrong(
            "skip=True: 2 losses in two updates",
            *("for part in others:", "for part in [] if skip else others:"),
        ),
        "forgets_the_others": wrong(
            "skip=False: 2 all-reduces, not 8",
            *("loss_of(model(part), part).backward()", "loss_of(model(part), part)"),
        ),
        "enters_it_for_each": right(
            *("with model.no_sync() if skip else nullcontext():\n", "for part in others:\n"),
            *(
                "                for part in others:\n                    loss_of",
                "                with model.no_sync() if skip else nullcontext():\n"
                "                    loss_of",
            ),
        ),
    },
    "training-step": {
        "goes_backward_within_the_context": wrong(
            "Backward runs within the context",
            *("            loss.backward()", "                loss.backward()"),
        ),
        "forgets_the_division": wrong(
            "first update's gradient is off by 100%",
            *("part) / num_parts", "part)"),
            *("return total", "return total / num_parts"),
        ),
        "never_clears": wrong(
            "second update's gradient is off", "        optimizer.zero_grad()\n", ""
        ),
        "clears_afterwards": wrong(
            "After the step `.grad` is empty",
            *("        optimizer.zero_grad()\n", ""),
            *("        return total", "        optimizer.zero_grad()\n        return total"),
        ),
        "gives_the_last_ones_loss": wrong(
            "but the mean of all lines is", "return total", "return loss.item() * num_parts"
        ),
        "enters_no_context": wrong(
            "2 micro-batches enter the context 0 times", "context():", "nullcontext():"
        ),
        "holds_all_graphs": wrong(
            "both graphs are in memory at once",
            *(
                "            loss.backward()\n            total += loss.item()",
                "            total += loss",
            ),
            *("        optimizer.step()", "        total.backward()\n        optimizer.step()"),
            *("return total", "return total.item()"),
        ),
        "enters_one_context_again": wrong(
            "enter a new context for each micro-batch",
            *("        for part", "        once = context()\n        for part"),
            *("with context():", "with once:"),
        ),
        "updates_after_each": wrong(
            "gradient is off by 60%", "        optimizer.step()", "            optimizer.step()"
        ),
        "forgets_the_update": wrong(
            "first update moves the weights elsewhere", "        optimizer.step()\n", ""
        ),
        "computes_the_loss_outside": right(
            *("loss = loss_of(model(part), part) / num_parts", "logits = model(part)"),
            *(
                "loss.backward()",
                "loss = loss_of(logits, part) / num_parts\n            loss.backward()",
            ),
        ),
        "splits_by_rows": right("batch.chunk(num_parts)", "batch.split(len(batch) // num_parts)"),
    },
    "ddp": {
        "wraps_nothing": wrong(
            "The model is a GPT",
            "DistributedDataParallel(gpt, gradient_as_bucket_view=True)",
            "gpt",
        ),
        "copies_the_gradients": wrong(
            "`.grad` isn't in a bucket", ", gradient_as_bucket_view=True", ""
        ),
        "trains_on_all_lines": wrong("a block runs on [4, 4, 4, 4] lines", "my_lines()", "lines"),
        "forgets_the_parts": wrong(
            "a block runs on [4, 4] lines", "my_lines(), num_parts", "my_lines()"
        ),
        "checkpoints_nothing": wrong(
            "a block runs on [2, 2] lines", "make_gpt(recomputed)", "make_gpt()"
        ),
        "forgets_the_choices": wrong(
            "The choices are not passed on", "num_parts, **choices", "num_parts"
        ),
        "names_the_parts": right("my_lines(), num_parts", "my_lines(), num_parts=num_parts"),
    },
    "fsdp": {
        "forgets_the_root": wrong(
            "Each rank has all of token_embedding.weight, position_embedding.weight",
            "(*model.blocks, model)",
            "model.blocks",
        ),
        "divides_the_root_alone": wrong(
            "a step gathers 2 times", "(*model.blocks, model)", "(model,)"
        ),
        "never_gathers_again": wrong(
            "twice=True: a step gathers 9 times",
            "reshard_after_forward=twice",
            "reshard_after_forward=False",
        ),
        "forgets_the_choices": wrong(
            "but mp_policy says bfloat16", "=twice, **choices)", "=twice)"
        ),
        "forgets_recomputed": wrong(
            "recomputed=True: a block runs 1 times", "make_gpt(recomputed)", "make_gpt()"
        ),
        "divides_after_the_optimizer": wrong(
            "The optimizer holds other tensors",
            *("    for module", "    made = training_step(model, my_lines())\n    for module"),
            *("return training_step(model, my_lines())", "return made"),
        ),
        "divides_the_root_first": wrong(
            "divide each block, then the model", "(*model.blocks, model)", "(model, *model.blocks)"
        ),
        "trains_on_all_lines": wrong("has 8 of the 8 lines", "my_lines()", "lines"),
        "divides_in_two_calls": right(
            *("(*model.blocks, model)", "model.blocks"),
            *(
                "    return training_step",
                "    fully_shard(model, mesh=mesh, reshard_after_forward=twice, **choices)\n"
                "    return training_step",
            ),
        ),
    },
    "fsdp-accumulation": {
        "exchanges_never": wrong(
            "sync=False: 0 reduce-scatters", "sync or part is parts[-1]", "sync"
        ),
        "turns_it_round": wrong(
            "sync=True: 9 reduce-scatters",
            "sync or part is parts[-1]",
            "not sync or part is parts[-1]",
        ),
        "exchanges_always": wrong(
            "sync=False: 18 reduce-scatters", "sync or part is parts[-1]", "True"
        ),
        "sums_the_means": wrong("the gradient is 2.00 times", " / 2", ""),
        "reports_the_mean_alone": wrong(
            "the gradient is 2.00 times",
            *("/ 2", "", "total += loss.item()", "total += loss.item() / 2"),
        ),
        "never_clears": wrong("update 2: the gradient is", "optimizer.zero_grad()", "pass"),
        "updates_each_time": wrong(
            "The optimizer steps 2 times",
            "            total += loss.item()\n        optimizer.step()",
            "            total += loss.item()\n            optimizer.step()",
        ),
        "counts_the_parts": right(
            "sync or part is parts[-1]", "sync or part.data_ptr() == parts[1].data_ptr()"
        ),
    },
    "on-ranks": {
        "takes_the_mean_of_the_ranks": wrong(
            "Rank 0: the gradient is 0.50 times",
            *(
                "        dist.all_reduce(parameter.grad)\n",
                "        dist.all_reduce(parameter.grad)\n        parameter.grad /= 2\n",
            ),
        ),
        "weights_by_its_own_targets": wrong(
            "Rank 0: the gradient is 2.", "share_of(part, tokens)", "share_of(part, mine)"
        ),
        "exchanges_in_each_micro_batch": wrong(
            "Rank 0 exchanges 2 times",
            *(
                "        total = total + loss.detach()\n    for parameter in model.parameters():\n"
                "        dist.all_reduce(parameter.grad)\n",
                "        total = total + loss.detach()\n"
                "        for parameter in model.parameters():\n"
                "            dist.all_reduce(parameter.grad)\n",
            ),
        ),
        "keeps_its_own_loss": wrong(
            "Rank 0: the loss of all ranks is", "    dist.all_reduce(total)\n", ""
        ),
        "forgets_the_gradients": wrong(
            "Rank 0: the gradient is 0.70 times",
            "    for parameter in model.parameters():\n        dist.all_reduce(parameter.grad)\n",
            "",
        ),
        "computes_on_all_rows": wrong("6 rows per rank by 3", "in mine.split", "in tokens.split"),
        "exchanges_one_flat_tensor": right(
            "    for parameter in model.parameters():\n        dist.all_reduce(parameter.grad)\n",
            "    flat = torch.cat([p.grad.flatten() for p in model.parameters()])\n"
            "    dist.all_reduce(flat)\n"
            "    nn.utils.vector_to_parameters(flat, [p.grad for p in model.parameters()])\n",
        ),
        "reduces_the_loss_first": right(
            *("    dist.all_reduce(total)\n", ""),
            *("    for parameter in", "    dist.all_reduce(total)\n    for parameter in"),
        ),
    },
}
