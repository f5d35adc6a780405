"""Hold predicted prices of checkpointing against times that others measured and published.

    python course/recorded/make/published_times.py              all rows; some minutes, no GPU
    python course/recorded/make/published_times.py 'llama*'     these rows
    python course/recorded/make/published_times.py --own        our own: own_times.csv anew

A row of `course/recorded/published_times.csv` has two published times (or rates) of one step, and
what runs again: `again` is the share of the blocks' forward, 0 for none and 1 for all. The price
is predicted in three ways: in FLOPs, by the roofline, and by one whose operations the CPU launches.
Where `recipe` names a model that the library builds, they are counted on it, without memory. Else
FLOPs are those of chapter 06's rule: forward is a third of a step, or half of it where the weights
are frozen.
"""

from __future__ import annotations

import contextlib
import csv
import fnmatch
import functools
import json
import statistics
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tutorial_lib import memory
from tutorial_lib.instruments import recorded
from tutorial_lib.instruments.planning.run.roofline import Roofline, Speed
from tutorial_lib.instruments.training import Recipe

TABLE = Path(__file__).resolve().parents[1] / "published_times.csv"
Row = dict[str, str]

# Forwards in a step that keeps everything.
FORWARDS = {"all": 3, "lora": 2}
NEAR = 5  # points
OWN = ("measured", "flops", "roofline", "elapsed")
TIMED = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
RATIO = "times the time"  # the unit of a row whose source gives a ratio alone
# What is said of any model: "about 20 % slower" in transformers' guide, and a third by the rule.
FLAT = {"always 20 %": 1.2, "always a third": 4 / 3}
SPEEDS = {"V100": Speed.of("Tesla V100-SXM2-16GB")}


def read(patterns: Sequence[str] = ("*",)) -> list[Row]:
    """Read the rows whose id is like one of these patterns."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if any(fnmatch.fnmatch(row["id"], word) for word in patterns)]


def published(row: Row) -> float:
    """Divide the published time with by the one without; rates the other way round."""
    ratio = float(row["with"]) / float(row["without"])
    return 1 / ratio if row["unit"].endswith("/s") else ratio


def by_rule(row: Row) -> float:
    """Predict the ratio from FLOPs alone: each forward that runs again is one more."""
    forwards = FORWARDS[row["trains"]]
    return (forwards + float(row["again"])) / (forwards + float(row["again_without"]))


@functools.cache
def costs(recipe: str, *speeds: Speed) -> list[list[float]]:
    """Count a step's FLOPs, predict its seconds without and with launches, and count these.

    Args:
        recipe: Its fields, as JSON.
        speeds: Of the cards.
    """
    with memory.predicting(), contextlib.ExitStack() as counting:
        step, *_ = Recipe(**json.loads(recipe)).make_step()
        counter = counting.enter_context(memory.flop_counter())
        rooflines = [counting.enter_context(Roofline(speed)) for speed in speeds]
        step()
    flops = counter.get_total_flops()
    return [[flops, each.seconds, each.elapsed, each.launches] for each in rooflines]


def at_depth(recipe: dict[str, Any], depth: Any, speed: Speed) -> list[float]:
    """Return the costs of a step; of many equal blocks, from those of two and of three."""
    if depth is None:
        return costs(json.dumps(recipe), speed)[0]
    field, blocks = depth
    two, three = (
        costs(json.dumps(recipe | {"overrides": recipe["overrides"] | {field: number}}), speed)[0]
        for number in (2, 3)
    )
    return [a + (blocks - 2) * (b - a) for a, b in zip(two, three, strict=True)]


def sides(row: Row) -> list[list[float]]:
    """Return FLOPs, roofline seconds, and elapsed ones: without and with what it pays for."""
    chosen = {"optimizer": "adamw-fused", "overrides": {}} | json.loads(row["recipe"])
    depth, changed = chosen.pop("depth", None), chosen.pop("with", {})
    speed, found = SPEEDS.get(row["card"][:4], Speed()), []
    for recipe, share in ((chosen, row["again_without"]), (chosen | changed, row["again"])):
        side = plain = at_depth(recipe, depth, speed)
        if float(share):
            blocks = at_depth(recipe | {"checkpointing": "per-block"}, depth, speed)
            side = [a + float(share) * (b - a) for a, b in zip(plain, blocks, strict=True)]
        found.append(side[:3])
    return found


def predicted(row: Row) -> list[float | None]:
    """Predict the ratio by FLOPs, and where the model is known by the roofline and the CPU, too."""
    if not row["again"]:
        return [None, None, None]
    if not row["recipe"]:
        return [by_rule(row), None, None]
    without, with_ = sides(row)
    return [b / a for a, b in zip(without, with_, strict=True)]


def own() -> Iterator[dict[str, str]]:
    """Predict the steps that we timed on two cards, without checkpoints and with every block."""
    speeds = [Speed.of(card) for card in TIMED]
    for place, card in enumerate(TIMED):
        rows = recorded.load(card).rows
        seconds = {key: row["report"]["seconds"] for key, row in rows.items() if "report" in row}
        for key, took in seconds.items():
            checkpointed = f"{key}, per-block"
            if not took or not seconds.get(checkpointed):
                continue
            plain, again = (
                costs(json.dumps(rows[name]["recipe"]), *speeds)[place]  # one run for both cards
                for name in (key, checkpointed)
            )
            prices = [seconds[checkpointed] / took]
            prices += [b / a for a, b in zip(plain[:3], again[:3], strict=True)]
            yield {
                "card": card,
                "step": key,
                "measured_ms": f"{1000 * took:.1f}",
                "roofline_ms": f"{1000 * plain[1]:.1f}",
                "elapsed_ms": f"{1000 * plain[2]:.1f}",
                "launches": str(plain[3]),
                **{
                    f"{name}_price": f"{100 * (price - 1):.1f}"
                    for name, price in zip(OWN, prices, strict=True)
                },
            }


def clock(row: Row) -> str:
    """Hold the roofline's seconds against the published ones, of the step without.

    `work` is what the recipe's step does in the unit of the published rate, as in 8192 tokens.
    """
    theirs, ours = float(row["work"]) / float(row["without"]), sides(row)[0][1]
    return f"{row['id']:<32}{theirs:>9.3f} s{ours:>8.3f} s{100 * (ours / theirs - 1):>+8.0f} %"


def summary(name: str, pairs: Iterable[tuple[float, float]]) -> str:
    """Say in one line how far predicted prices are from published ones.

    Args:
        name: Of the prediction.
        pairs: Published ratio and predicted ratio.
    """
    sizes = sorted(abs(100 * (guess - ratio)) for ratio, guess in pairs)
    if not sizes:
        return f"  {name}: no row"
    near = sum(size <= NEAR for size in sizes)
    return (
        f"  {name:<32}{len(sizes):>3} rows, off by {statistics.median(sizes):.1f} points in the "
        f"median, {near} within {NEAR}, {sizes[-1]:.0f} at worst"
    )


def main(patterns: Sequence[str]) -> None:
    """Print the prices of the rows in percent, and how many points predictions are off."""
    warnings.simplefilter("ignore")
    if patterns == ["--own"]:
        rows = list(own())  # before the file is emptied
        with TABLE.with_name("own_times.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return
    found = []
    heads = f"{'published':>9}{'FLOPs':>8}{'roofline':>10}{'with CPU':>10}"
    print(f"{'price of a step, percent':<32}{heads}")
    for row in read(patterns or ("*",)):
        ratio, (flops, time, longer) = published(row), predicted(row)
        found.append((row, ratio, flops, time, longer))
        words = _price(ratio, 9) + _price(flops, 8) + _price(time, 10) + _price(longer, 10)
        print(f"{row['id']:<32}{words}  {row['differs'] or row['why']}".rstrip(), flush=True)
    for title, differs, alone in (
        ("one setting, two values", False, False),
        ("one setting, a ratio alone", False, True),
        ("another setting as well", True, False),
    ):
        group = [
            each
            for each in found
            if bool(each[0]["differs"]) is differs and (each[0]["unit"] == RATIO) is alone
        ]
        known = [(ratio, flops) for _, ratio, flops, *_ in group if flops]
        both = [(ratio, flops, time, longer) for _, ratio, flops, time, longer in group if longer]
        print(f"{title}: {len(group)} rows")
        print(summary("by FLOPs", known))
        for name, flat in FLAT.items():
            print(summary(name, ((ratio, flat) for ratio, _ in known)))
        for place, name in enumerate(("FLOPs", "roofline", "roofline and CPU"), 1):
            print(summary(f"model known, by {name}", ((each[0], each[place]) for each in both)))

    print("seconds of the step without: published, by the roofline")
    for row, *_ in found:
        if row["work"]:
            print(clock(row))


def _price(ratio: float | None, width: int) -> str:
    return f"{'-':>{width}}" if ratio is None else f"{100 * (ratio - 1):>+{width}.1f}"


if __name__ == "__main__":
    main(sys.argv[1:])
