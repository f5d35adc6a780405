"""Chapter 04: the ten lines, forward's surroundings, and the checkpoint with all six fixes."""

from solutions.answers import right, wrong

FILLINGS = {
    "ten-lines": {
        "keeps_x_as_an_attribute": wrong(
            "Autograd keeps nothing: pass x to ctx.save_for_backward",
            *("ctx.save_for_backward(x)", "ctx.x = x", "ctx.saved_tensors[0]", "ctx.x"),
        ),
        "keeps_the_output_too": wrong(
            "Autograd keeps 2 units: keep x, 1 unit, and nothing else",
            *("ctx.save_for_backward(x)", "y = function(x)\n        ctx.save_for_backward(x, y)"),
            *("return function(x)", "return y"),
        ),
        "runs_forward_with_gradients_on": wrong(
            "Autograd keeps 4.5 units",
            *("return function(x)", "with torch.enable_grad():\n            return function(x)"),
        ),
        "does_not_detach": wrong("The gradient is doubled: detach x", ".detach()", ""),
        "takes_no_grad": wrong(
            "is `grad` used?", "y.backward(grad)", "y.backward(torch.ones_like(grad))"
        ),
        "runs_again_with_gradients_off": wrong(
            "does not require grad", "torch.enable_grad()", "torch.no_grad()"
        ),
        "gives_one_gradient_for_two_arguments": wrong(
            "(expected 2, got 1)", "return None, x.grad", "return x.grad"
        ),
        "gives_three_gradients": wrong(
            "(expected 2, got 3)", "return None, x.grad", "return None, x.grad, x.grad"
        ),
        "gives_them_in_the_wrong_order": wrong(
            "a gradient different than None at position 1",
            *("return None, x.grad", "return x.grad, None"),
        ),
        "gives_x_none": wrong(
            "did the second run's x require one", "return None, x.grad", "return None, None"
        ),
        "calls_saved_tensors": wrong(
            "Is something there a tuple", "ctx.saved_tensors[0]", "ctx.saved_tensors()[0]"
        ),
        "gives_the_weights_nothing": wrong(
            "The function's weights need their gradient too",
            *(
                "y.backward(grad)\n        return None, x.grad",
                "return None, torch.autograd.grad(y",
            ),
            *("  # one for each argument of forward", ", x, grad)[0]"),
        ),
        "puts_the_output_on_ctx": wrong(
            "ctx holds a tensor besides the saved one",
            *("return function(x)", "ctx.y = function(x)\n        return ctx.y"),
        ),
    },
    "remember": {
        "sets_no_state": wrong(
            "Inside, the old RNG state is not set", "torch.set_rng_state(rng_state)", "pass"
        ),
        "puts_no_state_back": wrong(
            "Afterwards the RNG state differs",
            *("torch.random.fork_rng(devices=[])", "contextlib.nullcontext()"),
        ),
        "always_enters_autocast": wrong(
            "Autocast: False in forward, True in the second run", ", enabled=enabled", ""
        ),
        "forgets_autocast": wrong(
            "Autocast: True in forward, False in the second run",
            *('torch.autocast("cpu", dtype, enabled=enabled)', "contextlib.nullcontext()"),
        ),
        "forgets_the_dtype": wrong(
            "Autocast: torch.float16 in forward, then torch.bfloat16", "dtype, enabled", "enabled"
        ),
        "does_not_yield": wrong("makes the context `as_it_was`", "yield", "return"),
        "restores_by_hand": right(
            *(
                "with torch.random.fork_rng(devices=[]):",
                "now = torch.get_rng_state()\n        if 1:",
            ),
            *(
                "                yield",
                "                yield\n            torch.set_rng_state(now)",
            ),
        ),
    },
    "many-arguments": {
        "saves_the_first_alone": wrong(
            "64 bytes: the three arguments have 192",
            *("save_for_backward(*args)", "save_for_backward(args[0])"),
        ),
        "keeps_the_arguments_on_ctx": wrong(
            "Autograd keeps 0 bytes",
            *("ctx.save_for_backward(*args)", "ctx.args = args"),
            *("ctx.saved_tensors", "ctx.args"),
        ),
        "gives_the_first_alone": wrong(
            "Argument 2 has no gradient",
            *(
                "*(tensor.grad for tensor in args)",
                "args[0].grad, *(None for _ in args[1:])",
            ),
        ),
        "does_not_detach": wrong("Argument 1's gradient is doubled", ".detach()", ""),
        "asks_none_for_a_gradient": wrong(
            "Argument 1 has no gradient: is one required", ".requires_grad_()", ""
        ),
        "forgets_the_function": wrong(
            "returned an incorrect number of gradients",
            *("None, *(tensor.grad for tensor in args)", "tuple(tensor.grad for tensor in args)"),
        ),
        "takes_no_grad": wrong(
            "Argument 1's gradient is wrong", ".backward(grad)", ".sum().backward()"
        ),
        "runs_again_with_gradients_off": wrong(
            "does not require grad", "torch.enable_grad()", "torch.no_grad()"
        ),
        "loops": right(
            *(
                "[tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]",
                "list(map(lambda saved: saved.detach().requires_grad_(), ctx.saved_tensors))",
            ),
        ),
    },
    "discard": {
        "asks_every_tensor_for_a_gradient": wrong(
            "only Tensors of floating point dtype can require gradients",
            *("requires_grad_(t.requires_grad)", "requires_grad_()"),
        ),
        "asks_none_for_a_gradient": wrong(
            "x has no gradient: is requires_grad_", ".requires_grad_(t.requires_grad)", ""
        ),
        "does_not_detach": wrong("x's gradient is doubled", "t.detach()", "t"),
        "takes_the_first_output_alone": wrong(
            "Two outputs: send all gradients through the graph at once",
            *("list(compress(outputs, used)), list(compress(grads, used))", "outputs[0], grads[0]"),
        ),
        "sends_them_one_after_the_other": wrong(
            "Trying to backward through the graph a second time",
            *("torch.autograd.backward(\n", "for out, grad in zip(\n"),
            *("compress(grads, used))\n        )", "compress(grads, used))\n        ):"),
            *("        return None, *(", "            out.backward(grad)\n        return None, *("),
        ),
        "leaves_no_output_out": wrong(
            "Expected output to be a torch.Tensor. It needs to send gradients only to outputs",
            *("[torch.is_tensor(out) and out.requires_grad for out in outputs]", "[1] * 4"),
        ),
        "gives_gradients_to_other_outputs": wrong(
            "Two outputs: send all gradients through the graph at once",
            *("list(compress(grads, used))", "grads"),
        ),
        "draws_another_mask": wrong(
            "run under ctx.as_it_was()",
            "torch.enable_grad(), ctx.as_it_was()",
            "torch.enable_grad()",
        ),
        "gives_no_none_for_the_function": wrong(
            "returned an incorrect number of gradients",
            *("return None, *(tensor.grad for", "return tuple(tensor.grad for"),
        ),
        "asks_every_float_for_a_gradient": right(
            *("requires_grad_(t.requires_grad)", "requires_grad_(t.is_floating_point())")
        ),
        "sends_them_one_by_one_and_keeps_the_graph": right(
            *("torch.autograd.backward(\n", "for out, grad in zip(\n"),
            *("compress(grads, used))\n        )", "compress(grads, used))\n        ):"),
            *(
                "        return None, *(",
                "            out.backward(grad, retain_graph=True)\n        return None, *(",
            ),
        ),
    },
    "apart": {
        "keeps_the_old_tensors": wrong(
            "`together` holds the old tensor",
            *("again = list(others)", "again = list(leaves)"),
        ),
        "keeps_the_new_tensors": wrong(
            "`together` holds the new tensor", "again = list(others)", "again = others"
        ),
        "counts_the_tensors_alone": wrong(
            "Leaf 0 of the new nest is tensor([0.])",
            *(
                "for place, tensor in zip(places, tensors, strict=True):",
                "for place, tensor in enumerate(tensors):",
            ),
        ),
        "leaves_out_the_masks": wrong(
            "but it found ['x', 'x']",
            *(
                "if torch.is_tensor(leaf)]",
                "if torch.is_tensor(leaf) and leaf.dtype.is_floating_point]",
            ),
        ),
        "leaves_the_nest_flat": wrong(
            "`together` builds", "return tree_unflatten(again, form)", "return again"
        ),
        "calls_itself": right(
            "        again = list(others)\n"
            "        for place, tensor in zip(places, tensors, strict=True):\n"
            "            again[place] = tensor\n",
            "        def fill(place, new):\n"
            "            if place == len(others):\n"
            "                return []\n"
            "            first = next(new) if place in places else others[place]\n"
            "            return [first, *fill(place + 1, new)]\n\n"
            "        again = fill(0, iter(tensors))\n",
        ),
        "builds_a_dict": right(
            "        again = list(others)\n"
            "        for place, tensor in zip(places, tensors, strict=True):\n"
            "            again[place] = tensor\n",
            "        back = dict(zip(places, tensors, strict=True))\n"
            "        again = [back.get(place, leaf) for place, leaf in enumerate(others)]\n",
        ),
        "takes_from_an_iterator": right(
            "        again = list(others)\n"
            "        for place, tensor in zip(places, tensors, strict=True):\n"
            "            again[place] = tensor\n",
            "        new = iter(tensors)\n"
            "        again = [next(new) if place in places else leaf\n"
            "                 for place, leaf in enumerate(others)]\n",
        ),
    },
    "checkpoint": {
        "forgets_the_keywords": wrong(
            "missing 2 required keyword-only arguments",
            *("tree_flatten(function(*args, **kwargs))", "tree_flatten(function(*args))"),
        ),
        "leaves_the_outputs_nested": wrong(
            "a tensor inside {",
            *(
                "outputs, form = tree_flatten(function(*args, **kwargs))",
                "outputs, form = [function(*args, **kwargs)], tree_flatten(0)[1]",
            ),
        ),
        "takes_the_old_tensors": wrong(
            "backward through the graph a second time",
            *("        args, kwargs = together(tensors)\n", ""),
        ),
        "forgets_to_set_the_form": wrong(
            "but got item of type",
            "        outputs, form =",
            "        outputs, _ =",
        ),
        "forgets_the_dummy": wrong(
            "zip() argument 2 is shorter", "torch.empty(0, requires_grad=True), ", ""
        ),
        "gives_the_outputs_flat": wrong(
            "tuple indices must be integers",
            "return tree_unflatten(outputs, form)",
            "return outputs",
        ),
        "has_a_dummy_without_a_gradient": wrong(
            "is the dummy tensor missing?", "torch.empty(0, requires_grad=True)", "torch.empty(0)"
        ),
        "discards_nothing": wrong(
            "Two calls run the function 2 times",
            *(
                "    outputs = Discard",
                "    return function(*args, **kwargs)\n    outputs = Discard",
            ),
        ),
        "runs_once_more": wrong(
            "Two calls run the function 6 times",
            *("    outputs = Discard", "    function(*args, **kwargs)\n    outputs = Discard"),
        ),
        "lets_all_through": wrong("gets through", "known(outputs)", "tuple(outputs)"),
        "keeps_what_it_flattened": right(
            *("outputs, form =", "flat, form ="), *("known(outputs)", "known(flat)")
        ),
    },
}
