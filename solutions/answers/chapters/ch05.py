"""Chapter 05: what a second run saves, early stop, saved arguments, and the hooks around them."""

from solutions.answers import right, wrong

FILLINGS = {
    "packed": {
        "lets_pack_return_the_tensor": wrong(
            "A saved tensor is never freed", "return tensors[number]", "return tensor"
        ),
        "forgets_enable_grad": wrong("Nothing is saved", "torch.enable_grad(), ", ""),
        "numbers_from_one": wrong(
            "The keys are [1, 2, 3, 4]", "number = len(tensors)", "number = len(tensors) + 1"
        ),
        "takes_no_alias": wrong(
            "needs the alias of its tensor", "alias(tensor)", "tensor.detach()"
        ),
        "gives_what_forward_gives": wrong(
            "It returned a Tensor, not a dict",
            *("        forward()\n    return tensors", "        return forward()"),
        ),
        "counts_by_itertools": right(
            *("tensors = {}", "tensors, numbers = {}, itertools.count()"),
            *("number = len(tensors)", "number = next(numbers)"),
        ),
    },
    "every-unpack": {
        "keeps_every_tensor": wrong(
            "After forward, autograd still holds a tensor",
            *(
                "lambda tensor: next(numbers), unpack",
                "lambda tensor: tensor, lambda tensor: tensor",
            ),
        ),
        "sets_no_hooks": wrong(
            "After forward, autograd still holds a tensor",
            *("saved_tensors_hooks(lambda tensor: next(numbers), unpack)", "torch.enable_grad()"),
        ),
        "runs_it_once_in_forward": wrong(
            "2 runs, not 1 in forward and 1 in unpack for each of 5 tensors",
            *(
                "def unpack(number):\n"
                "        return packed(partial(function, *args, **kwargs))[number]",
                "unpack = packed(partial(function, *args, **kwargs)).get",
            ),
        ),
        "always_gives_the_first": wrong("return that number's tensor", "[number]", "[0]"),
        "forgets_the_arguments": wrong(
            "missing 2 required positional arguments",
            "partial(function, *args, **kwargs)",
            "function",
        ),
        "numbers_by_a_list": right(
            *("numbers = itertools.count()", "numbers = []"),
            *(
                "lambda tensor: next(numbers)",
                "lambda tensor: numbers.append(0) or len(numbers) - 1",
            ),
        ),
    },
    "recompute-once": {
        "forgets_fork_rng": wrong(
            "Backward has changed the RNG state",
            "torch.random.fork_rng(devices=[])",
            "torch.enable_grad()",
        ),
        "draws_another_mask": wrong(
            "The second run drew a different mask", "torch.set_rng_state(rng_state)", "pass"
        ),
        "never_pops": wrong(
            "Late in backward the store still has", "store.pop(number)", "store[number]"
        ),
        "recomputes_each_time": wrong(
            "but should run twice", "if number not in store:", "if True:"
        ),
        "keeps_aliases_of_its_own": wrong(
            "`alias` was never called", "**kwargs), alias)", "**kwargs))"
        ),
        "runs_packed_in_forward": wrong(
            "Forward has made aliases",
            *(
                "    def unpack(number):",
                "    store = packed(partial(function, *args, **kwargs), alias)\n"
                "    def unpack(number):",
            ),
        ),
        "forgets_nonlocal": wrong("stopped at UnboundLocalError", "        nonlocal store\n", ""),
        "packs_the_tensor": wrong(
            "stopped at KeyError", "lambda tensor: next(numbers)", "lambda tensor: tensor"
        ),
        "fills_its_own_dict": right(
            *("        nonlocal store\n", ""),
            *(
                "store = packed(partial(function, *args, **kwargs), alias)",
                "store.update(packed(partial(function, *args, **kwargs), alias))",
            ),
        ),
        "asks_whether_the_store_is_empty": right("if number not in store", "if not store"),
    },
    "first-saved": {
        "never_stops": wrong(
            "forward ran on after the second tensor",
            *("        if len(tensors) == count:\n            raise Enough\n", ""),
        ),
        "stops_one_too_early": wrong("keys are [0], not 0 and 1", "== count:", "== count - 1:"),
        "stops_one_too_late": wrong(
            "forward ran on after the second tensor", "== count:", "> count:"
        ),
        "keeps_the_history": wrong("put detached ones in the dict", "tensor.detach()", "tensor"),
        "suppresses_everything": wrong(
            "An error raised by forward is lost", "suppress(Enough)", "suppress(Exception)"
        ),
        "catches_nothing": wrong(
            "stopped at Enough", "contextlib.suppress(Enough)", "contextlib.nullcontext()"
        ),
        "gives_what_packed_gives": wrong(
            "stopped at UnboundLocalError",
            *("        packed(forward, alias)", "        whole = packed(forward, alias)"),
            *("return tensors", "return whole"),
        ),
        "tries_and_excepts": right(
            *(
                "with contextlib.suppress(Enough):\n        packed(forward, alias)",
                "try:\n        packed(forward, alias)\n    except Enough:\n        pass",
            ),
        ),
        "sets_hooks_of_its_own": right(
            *(
                "        packed(forward, alias)",
                "        with hooks, torch.enable_grad():\n            forward()",
            ),
            *(
                "    with contextlib",
                "    hooks = saved_tensors_hooks(alias, lambda kept: kept)\n    with contextlib",
            ),
        ),
    },
    "registered": {
        "holds_the_arguments": wrong(
            "your closure holds it",
            *("output.grad_fn.saved_tensors, strict", "tensors, strict"),
        ),
        "keeps_them_beside": wrong(
            "your closure holds it",
            *("None if torch.is_tensor(arg) else arg for", "arg for"),
        ),
        "forgets_the_dummy": wrong(
            "The outer pack hook sees 0 tensors", "torch.empty(0, requires_grad=True)", "None"
        ),
        "forgets_the_others": wrong(
            "3 arguments went in, but 2 came back",
            *(
                "[found.get(place, other) for place, other in enumerate(others)]",
                "list(found.values())",
            ),
        ),
        "puts_tensors_first": wrong(
            "came back as ['Tensor', 'Tensor', 'int']",
            *(
                "[found.get(place, other) for place, other in enumerate(others)]",
                "[*found.values(), *(other for other in others if other is not None)]",
            ),
        ),
        "gives_the_list": wrong(
            "'list' object is not callable", "return bring_back", "return bring_back()"
        ),
        "leaves_the_mask_out": wrong(
            "The outer pack hook sees 1 tensors",
            *(
                "tensors = [arg for arg in args if torch.is_tensor(arg)]",
                "tensors = [a for a in args if torch.is_tensor(a) and a.is_floating_point()]",
            ),
        ),
        "takes_turns": right(
            *(
                "        found = dict(zip(places, output.grad_fn.saved_tensors, strict=True))\n"
                "        return [found.get(place, other) for place, other in enumerate(others)]",
                "        again, brought = list(others), output.grad_fn.saved_tensors\n"
                "        for place, tensor in zip(places, brought, strict=True):\n"
                "            again[place] = tensor\n"
                "        return again",
            ),
        ),
        "goes_by_an_iterator": right(
            *(
                "    places = [place for place, arg in enumerate(args) if torch.is_tensor(arg)]\n",
                "    is_there = [torch.is_tensor(arg) for arg in args]\n",
            ),
            *(
                "        found = dict(zip(places, output.grad_fn.saved_tensors, strict=True))\n"
                "        return [found.get(place, other) for place, other in enumerate(others)]",
                "        kept = iter(output.grad_fn.saved_tensors)\n"
                "        pairs = zip(is_there, others, strict=True)\n"
                "        return [next(kept) if there else other for there, other in pairs]",
            ),
        ),
    },
    "recompute-less": {
        "takes_the_arguments_itself": wrong(
            "backward still used it: call bring_back()", "*bring_back()", "*args"
        ),
        "never_stops": wrong(
            "The second run went on after its last tensor",
            "first_saved(again, len(numbers))",
            "packed(again)",
        ),
        "recomputes_each_time": wrong(
            "but should begin twice", "if number not in store:", "if True:"
        ),
        "draws_another_mask": wrong(
            "drew a different mask", "torch.set_rng_state(rng_state)", "pass"
        ),
        "forgets_fork_rng": wrong(
            "Backward has changed the RNG state",
            "torch.random.fork_rng(devices=[])",
            "torch.enable_grad()",
        ),
        "forgets_the_keywords": wrong(
            "missing 1 required positional argument",
            ", **kwargs)\n            with",
            ")\n            with",
        ),
        "counts_to_this_one": wrong("stopped at KeyError", "again, len(numbers)", "again, number"),
        "brings_back_when_it_runs": right(
            *("            again = partial(function, *bring_back(), **kwargs)\n", ""),
            *("first_saved(again,", "first_saved(lambda: function(*bring_back(), **kwargs),"),
        ),
        "asks_whether_the_store_is_empty": right("if number not in store", "if not store"),
    },
    "hidden-of": {
        "checkpoints_nothing": wrong(
            "Backward runs no block again",
            "checkpoint(block, x, use_reentrant=False)",
            "block(x)",
        ),
        "checkpoints_all_at_once": wrong(
            "Backward runs the blocks [0, 1, 2] again",
            *(
                "    for block in model.blocks:\n        x = checkpoint(block, x, ",
                "    blocks = torch.nn.Sequential(*model.blocks)\n    x = checkpoint(blocks, x, ",
            ),
        ),
        "checkpoints_the_first_alone": wrong(
            "Backward runs the blocks [0] again",
            *("model.blocks:", "model.blocks[1:]:"),
            *(
                "    for block",
                "    x = checkpoint(model.blocks[0], x, use_reentrant=False)\n    for block",
            ),
            *("        x = checkpoint(block, x, use_reentrant=False)", "        x = block(x)"),
        ),
        "forgets_the_norm": wrong("The result is not the script's", "model.norm(x)", "x"),
        "forgets_the_positions": wrong(
            "The result is not the script's",
            "train.embedded(model, tokens)",
            "model.token_embedding(tokens)",
        ),
        "is_reentrant": right("use_reentrant=False", "use_reentrant=True"),
        "wraps_a_function": right(
            "checkpoint(block, x,", "checkpoint(lambda h, block=block: block(h), x,"
        ),
    },
}
