"""Chapter 05: the tensors that a second run saves, and the two hooks around it."""

from solutions.answers import right, wrong

FILLINGS = {
    "packed": {
        "lets_pack_return_the_tensor": wrong(
            "A saved tensor stays for ever", "return tensors[number]", "return tensor"
        ),
        "forgets_enable_grad": wrong("Nothing is saved", "torch.enable_grad(), ", ""),
        "numbers_from_one": wrong(
            "Keys are [1, 2, 3, 4]", "number = len(tensors)", "number = len(tensors) + 1"
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
            "After forward autograd still holds a tensor",
            *(
                "lambda tensor: next(numbers), unpack",
                "lambda tensor: tensor, lambda tensor: tensor",
            ),
        ),
        "sets_no_hooks": wrong(
            "After forward autograd still holds a tensor",
            *("saved_tensors_hooks(lambda tensor: next(numbers), unpack)", "torch.enable_grad()"),
        ),
        "runs_it_once_in_forward": wrong(
            "2 runs: one in forward, and one for each of 5 tensors",
            *(
                "def unpack(number):\n"
                "        return packed(partial(function, *args, **kwargs))[number]",
                "unpack = packed(partial(function, *args, **kwargs)).get",
            ),
        ),
        "always_gives_the_first": wrong("is it that number?", "[number]", "[0]"),
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
            "The second run has drawn another mask", "torch.set_rng_state(rng_state)", "pass"
        ),
        "never_pops": wrong(
            "Near the end of backward the store has", "store.pop(number)", "store[number]"
        ),
        "recomputes_each_time": wrong(
            "and should run twice", "if number not in store:", "if True:"
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
}
