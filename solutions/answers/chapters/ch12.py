"""Chapter 12: buffers that recomputation works on, and a model from two layers and three."""

from solutions.answers import right, wrong

FILLINGS = {
    "on-copies": {
        "copies_the_outer_module_alone": wrong(
            "The block's own norm_1.running_mean was updated, not a copy",
            "block.modules()",
            "[block]",
        ),
        "makes_no_copies": wrong(
            "The block's own norm_1.running_mean was updated, not a copy",
            "buffer.clone()",
            "buffer",
        ),
        "forgets_to_put_back": wrong(
            "norm_1.running_mean is still a copy: put",
            *("            setattr(module, name, buffer)", "            pass"),
        ),
        "puts_back_after_success_alone": wrong(
            "norm_1.running_mean is still a copy, after an error too",
            *("    finally:", "    except ZeroDivisionError:\n        pass\n    else:"),
        ),
        "begins_at_zero": wrong(
            "starts with different numbers", "buffer.clone()", "torch.zeros_like(buffer) - 1"
        ),
        "stops_the_updates": wrong(
            "Inside, a forward doesn't change norm_1.running_mean",
            *("        setattr(module, name, buffer.clone())", "        module.eval()"),
        ),
        "copies_floats_alone": wrong(
            "The block's own norm_1.num_batches_tracked was updated",
            *("(recurse=False)]", "(recurse=False) if buffer.is_floating_point()]"),
        ),
        "does_not_yield": wrong("be a context in which", "        yield", "        return"),
        "copies_by_deepcopy": right("buffer.clone()", "__import__('copy').deepcopy(buffer)"),
        "restores_the_numbers_in_place": right(
            *(
                "setattr(module, name, buffer.clone())",
                "setattr(module, f'{name}_old', buffer.clone())",
            ),
            *(
                "            setattr(module, name, buffer)",
                "            buffer.copy_(vars(module).pop(f'{name}_old'))",
            ),
        ),
    },
    "at-full-depth": {
        "counts_from_none": wrong(
            "34 blocks, not 32", "two[name] + 30 * one_more", "two[name] + 32 * one_more"
        ),
        "counts_from_three": wrong("33 blocks, not 32", "two[name] + 30", "three[name] + 30"),
        "multiplies_two": wrong(
            "42.5 blocks, not 32", "two[name] + 30 * one_more[name]", "16 * two[name]"
        ),
        "forgets_the_first_two": wrong("29.3 blocks", "two[name] + 30 *", "30 *"),
        "keeps_to_one_strategy": wrong(
            "not `llama`'s",
            *("llama(tokens, strategy, depth)", 'llama(tokens, "none", depth)'),
        ),
        "keeps_to_one_length": wrong(
            "32 blocks of 4 bytes for 'none' are not 65536",
            "llama(tokens, strategy, depth)",
            "llama(2048, strategy, depth)",
        ),
        "multiplies_one_category": wrong(
            "32 blocks of 4 bytes for 'none' are not 8",
            *("30 * one_more[name]", '(name == "parameters") * 30 * one_more[name]'),
        ),
        "gives_the_sum": wrong(
            "'int' object is not iterable",
            *(
                "return {name: two[name] + 30 * one_more[name] for name in two}",
                "return sum(two.values()) + 30 * sum(one_more.values())",
            ),
        ),
        "goes_on_from_three": right(
            "two[name] + 30 * one_more[name]", "three[name] + 29 * one_more[name]"
        ),
        "takes_four_as_well": right(
            *("for depth in (2, 3))", "for depth in (2, 4))"),
            *("three[name] - two[name] for", "(three[name] - two[name]) / 2 for"),
        ),
    },
}
