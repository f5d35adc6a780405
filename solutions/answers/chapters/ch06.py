"""Chapter 06: the memory of a segment's length on paper, and the plan that keeps nothing."""

from solutions.answers import right, wrong

FILLINGS = {
    "on-paper": {
        "forgets_the_ratio": wrong("are 44 a, not 14 a", "ratio * segment", "segment"),
        "puts_the_ratio_on_the_boundaries": wrong(
            "are 44 a, not 194 a",
            *("num_blocks / segment", "ratio * num_blocks / segment"),
            *("inside = ratio * segment", "inside = segment"),
        ),
        "rounds_the_boundaries": wrong("not 9 a", "num_blocks / segment", "num_blocks // segment"),
        "has_one_inside_too_many": wrong(
            ", not 2 a sqrt(16)", "ratio * segment", "2 * ratio * segment"
        ),
        "gives_units": wrong(", not 2 a sqrt(16)", "x.nbytes * ", ""),
        "adds_in_another_order": right("boundaries + inside", "inside + boundaries"),
    },
    "nothing-kept-plan": {
        "is_flat": wrong(
            "2 blocks make ((0,), 1), not (0, 1)",
            *(
                "return nothing_kept(num_blocks - 1), num_blocks - 1",
                "return *nothing_kept(num_blocks - 1), num_blocks - 1",
            ),
        ),
        "begins_at_no_block": wrong(
            "1 blocks make (0,), not ((), 0)",
            *("num_blocks == 1", "num_blocks == 0"),
            *("return (0,)", "return ()"),
        ),
        "keeps_the_first": wrong(
            "2 blocks make ((0,), 1), not (1, (0,))",
            *(
                "nothing_kept(num_blocks - 1), num_blocks - 1",
                "num_blocks - 1, nothing_kept(num_blocks - 1)",
            ),
        ),
        "counts_from_one": wrong(
            "2 blocks make ((0,), 1), not ((0,), 2)",
            "num_blocks - 1), num_blocks - 1",
            "num_blocks - 1), num_blocks",
        ),
        "begins_with_a_bare_number": wrong("1 blocks make (0,), not 0", "return (0,)", "return 0"),
        "grows_in_a_loop": right(
            *(
                "if num_blocks == 1:\n        return (0,)",
                "plan = (0,)\n    for number in range(1, num_blocks):\n        plan = plan, number",
            ),
            *("return nothing_kept(num_blocks - 1), num_blocks - 1", "return plan"),
        ),
    },
}
