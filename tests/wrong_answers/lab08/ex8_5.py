"""Micro-batch and segments together: the fastest plan that fits."""

from itertools import combinations, product

from wrong_answers import right, wrong


def choices(prices):
    return [c for n in range(len(prices) + 1) for c in combinations(prices, n)]


def work(num, full, size):
    return -(-num // size) * max(size, full)


def useful(num, full):
    sizes = range(1, num + 1)
    return [n for n in sizes if all(work(num, full, m) > work(num, full, n) for m in range(1, n))]


def in_order(num, full, plain, prices, key=None, sizes=None, blocks=None):
    """List the plans, the fastest first, or by another key of time, micro-batch and blocks."""

    def time(plan):
        return work(num, full, plan[0]) * (plain + sum(prices[name] for name in plan[1]))

    plans = list(product(sizes or useful(num, full), blocks or choices(prices)))
    return sorted(plans, key=(lambda plan: key(time(plan), *plan)) if key else time)


def first_fit(plans, peak_of, limit):
    peaks = []
    for plan in plans:
        peaks.append(peak_of(*plan))
        if peaks[-1] <= limit:
            return plan
    raise ValueError(f"no plan fits {limit} bytes: the lowest peak is {min(peaks)} bytes.")


@right
def all_in_order(num, full, plain, prices, peak_of, limit):
    return first_fit(in_order(num, full, plain, prices), peak_of, limit)


@right
def as_lists_with_loops(num, full, plain, prices, peak_of, limit):
    waiting, peaks = [list(plan) for plan in in_order(num, full, plain, prices)][::-1], []
    while waiting:
        size, names = waiting.pop()
        peaks.append(peak_of(size, list(names)))
        if peaks[-1] <= limit:
            return [size, set(names)]
    raise ValueError(f"lowest peak {min(peaks):,}, limit {limit:,}")


@wrong("Micro-batches alone fit")
def micro_batches_alone(num, full, plain, prices, peak_of, limit):
    try:
        return first_fit(in_order(num, full, plain, prices, blocks=[()]), peak_of, limit)
    except ValueError:
        return all_in_order(num, full, plain, prices, peak_of, limit)


@wrong("A smaller micro-batch with fewer segments is faster")
def segments_before_micro_batches(num, full, plain, prices, peak_of, limit):
    plans = in_order(num, full, plain, prices, key=lambda time, size, names: (-size, time))
    return first_fit(plans, peak_of, limit)


@wrong("larger than `full` takes fewer rounds")
def never_goes_beyond_full(num, full, plain, prices, peak_of, limit):
    sizes = [n for n in useful(num, full) if n <= full]
    return first_fit(in_order(num, full, plain, prices, sizes=sizes), peak_of, limit)


@wrong("of them slower than the answer")
def measures_all(num, full, plain, prices, peak_of, limit):
    peaks = {plan: peak_of(*plan) for plan in in_order(num, full, plain, prices)}
    fitting = [plan for plan in peaks if peaks[plan] <= limit]
    if not fitting:
        raise ValueError(f"no plan fits {limit} bytes: the lowest peak is {min(peaks.values())}")
    return fitting[0]


def greedily(num, full, plain, prices, peak_of, limit, column):
    """Add one block after the other, in the order of a column, at the fastest size that fits."""
    ranked = sorted(prices, key=column)
    taken = [tuple(ranked[:n]) for n in range(len(ranked) + 1)]
    return first_fit(in_order(num, full, plain, prices, blocks=taken), peak_of, limit)


@wrong("in the order of their prices alone")
def by_price_alone(num, full, plain, prices, peak_of, limit):
    return greedily(num, full, plain, prices, peak_of, limit, prices.get)


@wrong("Yours has the lowest peak of all")
def the_lowest_peak(num, full, plain, prices, peak_of, limit):
    peaks = {plan: peak_of(*plan) for plan in in_order(num, full, plain, prices)}
    best = min(peaks, key=peaks.get)
    if peaks[best] > limit:
        raise ValueError(f"{limit} bytes are less than {peaks[best]}")
    return best


@wrong("a whole segment comes back in backward")
def adds_savings_up(num, full, plain, prices, peak_of, limit):
    floor = 2 * peak_of(1, ()) - peak_of(2, ())
    saved = {name: peak_of(1, ()) - peak_of(1, (name,)) + 4000 for name in prices}
    for size, names in in_order(num, full, plain, prices):
        each = peak_of(1, ()) - floor - sum(saved[name] for name in names)
        if floor + size * each <= limit:
            return size, names
    raise ValueError(f"{limit} bytes are less than {floor}")


@wrong("A peak equal to the limit fits")
def below_the_limit(num, full, plain, prices, peak_of, limit):
    return all_in_order(num, full, plain, prices, peak_of, limit - 1)


@wrong("although a smaller micro-batch takes no longer")
def every_micro_batch(num, full, plain, prices, peak_of, limit):
    plans = in_order(num, full, plain, prices, sizes=range(1, num + 1))
    return first_fit(plans, peak_of, limit)


@wrong("no block at all is a choice too")
def at_least_one_block(num, full, plain, prices, peak_of, limit):
    blocks = choices(prices)[1:]
    return first_fit(in_order(num, full, plain, prices, blocks=blocks), peak_of, limit)


@wrong("2 values are wanted, a micro-batch and a tuple of blocks, and NoneType came")
def gives_none(num, full, plain, prices, peak_of, limit):
    for plan in in_order(num, full, plain, prices):
        if peak_of(*plan) <= limit:
            return
    raise ValueError(limit)


@wrong("a tuple of blocks is wanted, and str came")
def gives_a_string(num, full, plain, prices, peak_of, limit):
    size, names = all_in_order(num, full, plain, prices, peak_of, limit)
    return size, ", ".join(names)


@wrong("was never measured")
def looks_inside(num, full, plain, prices, peak_of, limit):
    plans = dict(zip(peak_of.__code__.co_freevars, peak_of.__closure__, strict=True))["plans"]
    peak = plans.cell_contents.peak
    return first_fit(
        in_order(num, full, plain, prices), lambda *plan: peak((plan[0], tuple(plan[1]))), limit
    )


@wrong("of them again")
def measures_again_for_the_words(num, full, plain, prices, peak_of, limit):
    plans = in_order(num, full, plain, prices)
    for plan in plans:
        if peak_of(*plan) <= limit:
            return plan
    raise ValueError(f"{limit} bytes, lowest {min(peak_of(*plan) for plan in plans)}")


@wrong("too few, the last peak is")
def names_the_last_peak(num, full, plain, prices, peak_of, limit):
    for plan in in_order(num, full, plain, prices):
        peak = peak_of(*plan)
        if peak <= limit:
            return plan
    raise ValueError(f"{limit} bytes are too few, the last peak is {peak} bytes")


@wrong("'ValueError: all blocks")
def all_blocks_for_the_lowest(num, full, plain, prices, peak_of, limit):
    plans, peaks = in_order(num, full, plain, prices), {}
    for plan in plans:
        peaks[plan] = peak_of(*plan)
        if peaks[plan] <= limit:
            return plan
    lowest = peaks[1, tuple(prices)]
    raise ValueError(f"all blocks at one image need {lowest} bytes, and not {limit}")
