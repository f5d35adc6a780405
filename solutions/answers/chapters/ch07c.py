"""Chapter 07c: the peak of a list of allocations."""

from solutions.answers import right, wrong

SORTED = "[num_bytes for _, num_bytes in sorted(events)]"
MOST = "max(itertools.accumulate(sizes, initial=0))"

FILLINGS = {
    "most-held": {
        "keeps_the_order": wrong("13 bytes at most, not 17", "sorted(events)", "events"),
        "sorts_by_size": wrong("12 bytes at most, not 10", SORTED, "sorted(b for _, b in events)"),
        "adds_up_all": wrong("12 bytes at most, not 10", MOST, "sum(sizes)"),
        "takes_the_largest": wrong("12 bytes at most, not 8", MOST, "max(sizes)"),
        "forgets_what_is_freed": wrong(
            "12 bytes at most, not 18", MOST, "sum(size for size in sizes if size > 0)"
        ),
        "forgets_the_start": wrong("0 bytes at most, not -4", ", initial=0", ""),
        "goes_event_by_event": right(
            f"return {MOST}",
            "held = most = 0\n"
            "    for size in sizes:\n"
            "        held += size\n"
            "        most = max(most, held)\n"
            "    return most",
        ),
    },
}
