"""Chapter 06c: the fewest forwards, by the formula."""

from solutions.answers import right, wrong

FILLINGS = {
    "binomial": {
        "forgets_the_first_pass": wrong(
            "1 blocks, 1 boundaries: the search finds 1, and you 0",
            *("return num_blocks + times", "return times"),
        ),
        "repeats_once_too_little": wrong(
            "2 blocks, 1 boundaries: the search finds 3, and you 2",
            *("slots) < num_blocks", "slots) < num_blocks - 1"),
        ),
        "chooses_the_wrong_number": wrong(
            "2 blocks, 1 boundaries: the search finds 3, and you 4", "slots + 1)", "slots + 2)"
        ),
        "counts_by_the_boundaries": wrong(
            "6 blocks, 2 boundaries: the search finds 14, and you 10",
            *("math.comb(slots + times, slots) <", "math.comb(slots + times, 1) <"),
        ),
        "adds_the_last_term": wrong(
            "and you 5", "num_blocks - math.comb", "num_blocks + math.comb"
        ),
        "goes_on_where_it_is_equal": right("slots) < num_blocks", "slots) <= num_blocks"),
        "begins_with_one": right("times = 0", "times = 1"),
    },
}
