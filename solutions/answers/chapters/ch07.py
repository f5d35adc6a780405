"""Chapter 07: two dispatch modes, one that stores results and one that hands them out."""

from solutions.answers import right, wrong

FILLINGS = {
    "by-hand": {
        "gives_nothing": wrong("It needs to run each operation", "return out", "pass"),
        "stores_everything": wrong(
            "results are stored: attention's and up's are 2",
            "if name_of(op, args) in self.keep:",
            "if True:",
        ),
        "stores_a_history": wrong(
            "A stored tensor has a history",
            *("tree_map_only(torch.Tensor, torch.Tensor.detach, out)", "out"),
        ),
        "stores_the_first_of_a_tuple": wrong(
            "a tuple as a tuple",
            *(
                "tree_map_only(torch.Tensor, torch.Tensor.detach, out)",
                "tree_leaves(out)[0].detach()",
            ),
        ),
        "asks_for_the_operation": wrong("Nothing is stored", "name_of(op, args) in", "op in"),
        "detaches_by_hand": right(
            *("torch.Tensor.detach, out", "lambda tensor: tensor.detach(), out"),
        ),
    },
    "hand-out": {
        "hands_out_the_last": wrong("Another result came out", "pop(0)", "pop()"),
        "never_takes_out": wrong("2 results are left in the store", ".pop(0)", "[0]"),
        "runs_and_then_hands_out": wrong(
            "ran again",
            *("        if name_of", "        op(*args, **(kwargs or {}))\n        if name_of"),
        ),
        "runs_everything": wrong("ran again", "return self.store.pop(0)", "self.store.pop(0)"),
        "forgets_the_keywords": wrong("has to run with its kwargs", ", **(kwargs or {})", ""),
        "forgets_the_others": wrong(
            "It needs to give a stored result, or run the operation",
            *("return op(*args, **(kwargs or {}))", "return self.store.pop(0)"),
        ),
        "looks_at_the_store": right(
            "if name_of(op, args) in self.keep:",
            "if self.store and name_of(op, args) in self.keep:",
        ),
    },
}
