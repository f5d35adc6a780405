"""Chapter 02: the meter in five steps, and the training step that it is tried on."""

from solutions.answers import right, wrong

FILLINGS = {
    "operations": {
        "loses_the_result": wrong("of an operation is lost", "return result", "pass"),
        "forgets_the_keywords": wrong("where did alpha go", ", **(kwargs or {})", ""),
        "runs_it_twice": wrong(
            "`x.add_(1)` ran twice",
            *("return result", "return operation(*args, **(kwargs or {}))"),
        ),
        "looks_at_results_alone": wrong(
            "as arguments, but `see` was told of ['made']",
            *("tensors_in((args, kwargs))", "()"),
        ),
        "looks_at_the_keywords_no_more": wrong(
            "`out=` was not shown", "tensors_in((args, kwargs))", "tensors_in(args)"
        ),
        "shows_the_arguments_last": wrong(
            "arguments first, then the result",
            *(
                "for tensor in tensors_in((args, kwargs)):\n"
                '            self.see(tensor, "inputs")\n'
                "        result = operation(*args, **(kwargs or {}))",
                "result = operation(*args, **(kwargs or {}))",
            ),
            *(
                "        return result",
                "        for tensor in tensors_in((args, kwargs)):\n"
                '            self.see(tensor, "inputs")\n'
                "        return result",
            ),
        ),
        "shows_a_list_as_one": wrong(
            "Some operations take and return lists", "in tensors_in(result)", "in [result]"
        ),
        "takes_two_loops_for_the_arguments": right(
            *("tensors_in((args, kwargs))", "[*tensors_in(args), *tensors_in(kwargs)]"),
        ),
    },
    "storages": {
        "counts_each_tensor": wrong(
            "Two tensors of one storage are 400 bytes", "storage._cdata", "id(tensor)"
        ),
        "goes_by_the_address_of_a_view": wrong(
            "Two tensors of one storage are 400 bytes", "storage._cdata", "tensor.data_ptr()"
        ),
        "counts_the_view": wrong("A view of 40 bytes", "storage.nbytes()", "tensor.nbytes"),
        "watches_the_tensor": wrong(
            "of a storage are left, but 0 counted", "finalize(storage", "finalize(tensor"
        ),
        "never_forgets": wrong(
            "400 bytes are still counted",
            *("weakref.finalize(storage, self.alive.pop, key)", "weakref.ref(storage)"),
        ),
        "writes_a_new_record": wrong(
            "as inputs must not say ['made']",
            *(
                "            weakref.finalize",
                "        else:\n            self.alive[key].category = category\n"
                "        if 1:\n            weakref.finalize",
            ),
            *("self.alive.pop, key)", "self.alive.pop, key, None)"),
        ),
        "finalizes_in_each_call": wrong(
            "a finalizer raises KeyError",
            "            weakref.finalize",
            "        weakref.finalize",
        ),
        "calls_all_of_them_made": wrong(
            "as inputs must not say ['made']",
            "storage.nbytes(), category",
            'storage.nbytes(), "made"',
        ),
        "takes_the_storage_for_the_key": wrong(
            "400 bytes are still counted",
            *("storage._cdata", "storage"),
        ),
        "leaves_early": right(
            *(
                "if key not in self.alive:",
                "if key in self.alive:\n            return\n        else:",
            ),
        ),
    },
    "peak": {
        "loses_the_result": wrong("of an operation is lost", "return result", "pass"),
        "keeps_the_last_moment": wrong(
            "12000 at the peak, not 4004", "alive > self.peak_bytes", "True"
        ),
        "adds_up_all_moments": wrong(
            "at the peak, not 20000",
            *("self.peak_bytes, self.peak_at = alive,", "self.peak_bytes, self.peak_at = 20000,"),
        ),
        "holds_what_is_alive_later": wrong(
            "it changed after the peak", "list(self.alive.values())", "self.alive.values()"
        ),
        "holds_copies": wrong(
            "`at_peak` holds copies",
            "list(self.alive.values())",
            "[Record(r.num_bytes, r.category) for r in self.alive.values()]",
        ),
        "returns_a_dict": wrong("must return a Counter", "return totals", "return dict(totals)"),
        "names_the_first_operation": wrong(
            "The peak is after `y * 2`",
            *("self.peak_at = alive, operation", "self.peak_at = alive, self.peak_at or operation"),
        ),
        "counts_the_records": wrong("8000 made, not", "+= record.num_bytes", "+= 1"),
        "takes_the_later_of_two": right("alive > self.peak_bytes", "alive >= self.peak_bytes"),
        "makes_a_tuple": right("list(self.alive.values())", "tuple(self.alive.values())"),
    },
    "meter": {
        "swaps_the_two": wrong(
            "Forward's output is 'temporary'",
            *(
                '"activations" if torch',
                '"temporary" if torch',
                'else "temporary"',
                'else "activations"',
            ),
        ),
        "takes_all_for_activations": wrong(
            "A new gradient is 'activations'",
            *('"activations" if torch.is_grad_enabled() else "temporary"', '"activations"'),
        ),
        "renames_inputs_too": wrong("The layer's input is", 'if category == "made":', "if True:"),
        "names_what_is_new_alone": wrong(
            "the gradient is 'temporary'",
            *(
                "\n                self.alive[tensor.untyped_storage()._cdata].category = category",
                "",
            ),
        ),
        "makes_another_record": wrong(
            "records don't include the gradient",
            *(
                "self.alive[tensor.untyped_storage()._cdata].category = category",
                "self.alive[tensor.untyped_storage()._cdata] = Record(tensor.nbytes, category)",
            ),
        ),
        "sees_nothing_before": wrong(
            "It needs to set each record's category",
            "                self.see(tensor, category)\n",
            "",
        ),
        "leaves_none_out_itself": right(
            "in tensors_in(values):",
            "in tensors_in([value for value in values if value is not None]):",
        ),
    },
    "metered": {
        "knows_nothing_after": wrong(
            "the meter knows no gradients",
            *("        step()\n    meter.know(model, optimizer)", "        step()"),
        ),
        "knows_nothing_before": wrong(
            "both before and after the step",
            *(
                "    meter = Meter()\n    meter.know(model, optimizer)",
                "    meter = Meter()",
            ),
        ),
        "forgets_the_optimizer": wrong(
            "the meter knows no optimizer_state",
            *(
                "        step()\n    meter.know(model, optimizer)",
                "        step()\n    meter.know(model)",
            ),
        ),
        "runs_outside": wrong(
            "the step ran outside it",
            "with meter:\n        step()",
            "with meter:\n        pass\n    step()",
        ),
        "warms_up": wrong(
            "The step ran 2 times", "    meter = Meter()", "    step()\n    meter = Meter()"
        ),
        "gives_bytes": wrong("must return a Meter", "return meter", "return meter.by_category()"),
        "knows_inside_too": right(
            "with meter:\n        step()", "with meter:\n        meter.know(model)\n        step()"
        ),
    },
    "step-of": {
        "clears_at_the_end": wrong(
            "The step left no gradients",
            *("        model.zero_grad()\n", ""),
            *(
                "            optimizer.step()",
                "            optimizer.step()\n        model.zero_grad()",
            ),
        ),
        "never_clears": wrong(
            "gradients are 2.0 times the first's", "        model.zero_grad()\n", ""
        ),
        "clears_before_backward": wrong(
            "The old gradients are there in forward",
            "        model.zero_grad()\n        model.loss(tokens).backward()",
            "        loss = model.loss(tokens)\n        model.zero_grad()\n        loss.backward()",
        ),
        "never_updates": wrong("yours by 0.00 times it", "optimizer.step()", "pass"),
        "updates_before_backward": wrong(
            "yours by 0.00 times it",
            *("        model.loss(tokens).backward()\n", ""),
            *(
                "            optimizer.step()",
                "            optimizer.step()\n        model.loss(tokens).backward()",
            ),
        ),
        "runs_at_once": wrong("It needs to return a function", "return step", "return step()"),
        "clears_by_hand": right(
            "model.zero_grad()",
            "for parameter in model.parameters():\n            parameter.grad = None",
        ),
    },
    "metered-twin": {
        "meters_the_first": wrong("The peak has no optimizer states", "    step()\n", ""),
        "warms_another_up": wrong(
            "The peak has no optimizer states",
            "    step()\n",
            "    train.update(*train.make(train.TWIN), your_run.ROWS)\n",
        ),
        "forgets_the_optimizer": wrong(
            "The peak has no optimizer states",
            "metered(step, model, optimizer)",
            "metered(step, model)",
        ),
        "returns_bytes": wrong(
            "Return a Meter, not a value",
            "metered(step, model, optimizer)",
            "metered(step, model, optimizer).peak_bytes",
        ),
        "takes_half_the_rows": wrong(
            "but yours is", "optimizer, your_run.ROWS", "optimizer, your_run.ROWS[:6]"
        ),
        "takes_the_full_size": wrong("but yours is", "train.TWIN", "train.MEDIUM"),
        "calls_a_function": right(
            "partial(train.update, model, optimizer, your_run.ROWS)",
            "lambda: train.update(model, optimizer, your_run.ROWS)",
        ),
    },
}
