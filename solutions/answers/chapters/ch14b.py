"""Chapter 14b: which blocks were alive when memory ran out."""

from solutions.answers import right, wrong

FILLINGS = {
    "alive": {
        "frees_nothing": wrong(
            "you find events [1, 5, 6, 7] alive", 'living.pop(event["addr"], None)', "pass"
        ),
        "reads_on_behind_the_end": wrong(
            "you find events [1, 6, 11] alive",
            *(
                'if event["action"] == "oom":\n            return list(living.values())\n',
                "if False:\n            pass\n",
            ),
            *(
                'living.pop(event["addr"], None)',
                'living.pop(event["addr"], None)\n    return list(living.values())',
            ),
        ),
        "knows_one_way_to_end": wrong(
            "you find events [1, 5, 6] alive, not",
            *("        else:", '        elif event["action"] == "free_completed":'),
        ),
        "takes_every_event_for_a_block": wrong(
            "you find events [1, 4, 6, 8",
            *('if event["action"] == "alloc":', 'if event["action"] != "free":'),
        ),
        "wants_every_block_to_have_begun": wrong(
            "stopped at KeyError: 1", 'living.pop(event["addr"], None)', 'living.pop(event["addr"])'
        ),
        "gives_sizes": wrong(
            "is not in list",
            "return list(living.values())",
            'return [e["size"] for e in living.values()]',
        ),
        "gives_a_tuple": right("return list(living.values())", "return tuple(living.values())"),
        "looks_before_it_ends_a_block": right(
            'living.pop(event["addr"], None)',
            'living = {a: e for a, e in living.items() if a != event["addr"]}',
        ),
    },
}
