"""Micro-batch and segments together: the fastest plan that fits."""

from itertools import combinations, product

from solutions.answers import right, wrong

micro_batches_alone = wrong(
    "Micro-batches alone fit", "key=time)", "key=lambda plan: (plan[1] != (), time(plan)))"
)
segments_before_micro_batches = wrong(
    "A smaller micro-batch with fewer segments is faster",
    "key=time)",
    "key=lambda plan: (-plan[0], time(plan)))",
)
measures_all = wrong(
    "of them slower than the answer",
    "    for plan in sorted(product(sizes, choices), key=time)",
    "    plans = sorted(product(sizes, choices), key=time)\n"
    "    measured = {plan: peak_of(*plan) for plan in plans}\n"
    "    for plan in plans",
    "peaks.append(peak_of(*plan))",
    "peaks.append(measured[plan])",
)
by_price_alone = wrong(
    "in the order of their prices alone",
    "[c for k in range(len(prices) + 1) for c in combinations(prices, k)]",
    "[tuple(sorted(prices, key=prices.get)[:k]) for k in range(len(prices) + 1)]",
)
the_lowest_peak = wrong(
    "Yours has the lowest peak of all",
    "    peaks = []",
    "    from functools import cache\n\n    peak_of, peaks = cache(peak_of), []",
    "key=time)",
    "key=lambda plan: peak_of(*plan))",
)
below_the_limit = wrong("A peak equal to the limit fits", "<= limit", "< limit")
never_goes_beyond_full = wrong(
    "larger than `full` takes fewer rounds",
    "if alone.index(min(alone[:n])) == n - 1",
    "if alone.index(min(alone[:n])) == n - 1 and n <= full",
)
every_micro_batch = wrong(
    "although a smaller micro-batch takes no longer", " if alone.index(min(alone[:n])) == n - 1", ""
)
at_least_one_block = wrong(
    "try an empty choice of blocks too", "range(len(prices) + 1)", "range(1, len(prices) + 1)"
)
gives_none = wrong(
    "2 values are wanted, a micro-batch and a tuple of blocks, but None came",
    "            return plan",
    "            return None",
)
gives_a_string = wrong(
    "a tuple of blocks is needed, but str came",
    "            return plan",
    "            return plan[0], ', '.join(plan[1])",
)
looks_inside = wrong(
    "was never measured",
    "    time =",
    "    names = peak_of.__code__.co_freevars\n"
    "    plans = dict(zip(names, peak_of.__closure__, strict=True))['plans'].cell_contents\n"
    "    peak_of = lambda *plan: plans.peak((plan[0], tuple(plan[1])))\n"
    "    time =",
)
measures_again_for_the_words = wrong(
    "of them again", "{min(peaks)}", "{min(peak_of(*plan) for plan in product(sizes, choices))}"
)
names_the_last_peak = wrong(
    "too few, the last peak is",
    "no plan fits {limit_bytes} bytes, the lowest peak is {min(peaks)}",
    "{limit_bytes} bytes are too few, the last peak is {peaks[-1]}",
)
all_blocks_for_the_lowest = wrong(
    "'ValueError: all blocks",
    '    why = f"no plan fits {limit_bytes} bytes, the lowest peak is {min(peaks)}"',
    "    lowest = peaks[sorted(product(sizes, choices), key=time).index((1, choices[-1]))]\n"
    "    why = f'all blocks at one image need {lowest} bytes, and not {limit_bytes}'",
)


def in_order(num, full, plain, prices):
    """List the plans that are worth a try, the fastest first."""

    def work(size):
        return -(-num // size) * max(size, full)

    def time(plan):
        return work(plan[0]) * (plain + sum(prices[name] for name in plan[1]))

    sizes = [n for n in range(1, num + 1) if all(work(m) > work(n) for m in range(1, n))]
    blocks = [c for n in range(len(prices) + 1) for c in combinations(prices, n)]
    return sorted(product(sizes, blocks), key=time)


@right
def all_in_order(num, full, plain, prices, peak_of, limit):
    peaks = {}
    for plan in in_order(num, full, plain, prices):
        peaks[plan] = peak_of(*plan)
        if peaks[plan] <= limit:
            return plan
    raise ValueError(f"no plan fits {limit} bytes: the lowest peak is {min(peaks.values())}.")


@right
def as_lists_with_loops(num, full, plain, prices, peak_of, limit):
    waiting, peaks = [list(plan) for plan in in_order(num, full, plain, prices)][::-1], []
    while waiting:
        size, names = waiting.pop()
        peaks.append(peak_of(size, list(names)))
        if peaks[-1] <= limit:
            return [size, set(names)]
    raise ValueError(f"lowest peak {min(peaks):,}, limit {limit:,}")


@wrong("since backward holds one whole segment")
def adds_savings_up(num, full, plain, prices, peak_of, limit):
    floor = 2 * peak_of(1, ()) - peak_of(2, ())
    saved = {name: peak_of(1, ()) - peak_of(1, (name,)) + 4000 for name in prices}
    for size, names in in_order(num, full, plain, prices):
        each = peak_of(1, ()) - floor - sum(saved[name] for name in names)
        if floor + size * each <= limit:
            return size, names
    raise ValueError(f"{limit} bytes are less than {floor}")
