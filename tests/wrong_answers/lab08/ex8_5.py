"""The cheapest choice that fits."""

from itertools import combinations, product

from wrong_answers import right, wrong


def choices(prices):
    return [c for n in range(len(prices) + 1) for c in combinations(prices, n)]


def price(prices, choice):
    return sum(prices[name] for name in choice)


def refuse(limit, lowest):
    raise ValueError(f"no choice fits {limit} bytes: the lowest peak is {lowest} bytes.")


@wrong("Yours has the lowest peak of all")
def the_lowest_peak(prices, peak_of, limit):
    peaks = {choice: peak_of(choice) for choice in choices(prices)}
    best = min(peaks, key=peaks.get)
    return best if peaks[best] <= limit else refuse(limit, peaks[best])


@wrong("Yours has the fewest blocks")
def the_fewest_blocks(prices, peak_of, limit):
    peaks = {}
    for choice in sorted(choices(prices), key=lambda c: (len(c), price(prices, c))):
        peaks[choice] = peak_of(choice)
        if peaks[choice] <= limit:
            return choice
    return refuse(limit, min(peaks.values()))


@wrong("a whole segment comes back in backward")
def adds_savings_up(prices, peak_of, limit):
    plain = peak_of(())
    saved = dict.fromkeys(prices, 10**6)
    for choice in sorted(choices(prices), key=lambda c: price(prices, c)):
        if plain - sum(saved[name] for name in choice) <= limit:
            return choice
    return refuse(limit, plain)


@wrong("A peak equal to the limit fits")
def below_the_limit(prices, peak_of, limit):
    return in_order(prices, peak_of, limit - 1)


@wrong("dearer than the answer")
def measures_all(prices, peak_of, limit):
    peaks = {choice: peak_of(choice) for choice in choices(prices)}
    fitting = [choice for choice in peaks if peaks[choice] <= limit]
    if not fitting:
        refuse(limit, min(peaks.values()))
    return min(fitting, key=lambda c: price(prices, c))


@wrong("is wanted, and nothing came")
def gives_none(prices, peak_of, limit):
    for choice in sorted(choices(prices), key=lambda c: price(prices, c)):
        if peak_of(choice) <= limit:
            return choice
    return None


@wrong("a tuple of blocks is wanted, and str came")
def gives_a_string(prices, peak_of, limit):
    return ", ".join(in_order(prices, peak_of, limit))


@wrong("was never measured")
def looks_inside(prices, peak_of, limit):
    case = dict(zip(peak_of.__code__.co_freevars, peak_of.__closure__, strict=True))["case"]
    case = case.cell_contents

    def peak(choice):
        back = max((case["whole"][name] for name in choice), default=0)
        return 6 * 10**6 - sum(case["saved"][name] for name in choice) + back

    return in_order(prices, peak, limit)


def naming(words, lowest_of):
    def cheapest_fit(prices, peak_of, limit):
        peaks = []
        for choice in sorted(choices(prices), key=lambda c: price(prices, c)):
            peaks.append(peak_of(choice))
            if peaks[-1] <= limit:
                return choice
        raise ValueError(f"{limit} bytes are too few, {words} {lowest_of(peaks)} bytes")

    return cheapest_fit


names_the_last_peak = wrong("too few, the last peak is")(
    naming("the last peak is", lambda peaks: peaks[-1])
)
names_the_first_peak = wrong("too few, the first peak is")(
    naming("the first peak is", lambda peaks: peaks[0])
)


@wrong("of them again")
def measures_again_for_the_words(prices, peak_of, limit):
    for choice in sorted(choices(prices), key=lambda c: price(prices, c)):
        if peak_of(choice) <= limit:
            return choice
    return refuse(limit, min(peak_of(choice) for choice in choices(prices)))


@wrong("no block at all is a choice too")
def at_least_one_block(prices, peak_of, limit):
    peaks = []
    for choice in sorted(choices(prices)[1:], key=lambda c: price(prices, c)):
        peaks.append(peak_of(choice))
        if peaks[-1] <= limit:
            return choice
    return refuse(limit, min(peaks))


@wrong("'ValueError: all blocks")
def never_all_blocks(prices, peak_of, limit):
    peaks = []
    for choice in sorted(choices(prices)[:-1], key=lambda c: price(prices, c)):
        peaks.append(peak_of(choice))
        if peaks[-1] <= limit:
            return choice
    raise ValueError(f"all blocks but one: {min(peaks)} bytes at least, and not {limit}")


@right
def in_order(prices, peak_of, limit):
    lowest = float("inf")
    for choice in sorted(choices(prices), key=lambda c: price(prices, c)):
        peak = peak_of(choice)
        if peak <= limit:
            return choice
        lowest = min(lowest, peak)
    return refuse(limit, lowest)


@right
def by_bits(prices, peak_of, limit):
    names, peaks = list(prices), []
    masks = product((0, 1), repeat=len(names))
    every = [[n for n, bit in zip(names, mask, strict=True) if bit] for mask in masks]
    while every:
        every.sort(key=lambda c: -price(prices, c))
        choice = every.pop()
        peaks.append(peak_of(tuple(choice)))
        if peaks[-1] <= limit:
            return choice
    raise ValueError(f"lowest peak {min(peaks):,}, limit {limit:,}")
