"""Hold the planner's seconds against published steps that kept, recomputed or moved to the host.

    python course/recorded/make/published_offload.py     two minutes, no GPU

Writes what is predicted into course/recorded/published_offload.csv, beside what was published:

- DeepSpeed, pull request 8255 (2026-08-15): Qwen3-14B, 4 sequences on each of 8 H200, ZeRO-3,
  weights, gradients and states in bfloat16, compiled. `planned` moves as little as fits, `all`
  moves four tensors of a block's width for each block: the 22.0 GB at 3328 tokens. Its source
  waits for each copy out (`wait_offload` follows `offload_tensor`), so nothing hides that one.
- torchtitan, pull request 4636 (2026-09-12): neither model nor length is named. The columns MFU
  and tokens/s give 2.048e11 FLOPs a token, Qwen3-32B's at 2048 tokens by torchtitan's rule: one
  sequence on each of 8 H100 with 94.99 GiB, FSDP2, states in float32. A budget counts from the
  peak of full recomputation, 68.56 GiB there.

Where a row says how much it moved, `seconds` is with as much; `own` is with what we would move.

Assumed for all: the roofline of `planning.Speed`, PCIe 5 at four fifths of its published speed, and
bytes that PyTorch's own partitioner of a compiled block saves. The time of collectives is left out.
A plan fits where `plan` would take it, with a tenth of the card left. No number was fitted, but all
rows had been seen before these assumptions were made: that ten bytes a parameter are DeepSpeed's,
that a tenth is left, and that `seconds` moves what the row says.
"""

from __future__ import annotations

import csv
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from tutorial_lib import memory
from tutorial_lib.instruments import planning
from tutorial_lib.instruments.emulated import Room
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB

TABLE = Path(__file__).resolve().parents[1] / "published_offload.csv"
LINK = 0.8 * 64e9  # bytes/s
RANKS, BLOCKS, REPEATED = 8, 5, 3  # blocks that are profiled, and the one repeated for more
WIDTHS = {
    "qwen3-14b": {"intermediate_size": 17408, "num_attention_heads": 40},
    "qwen3-32b": {"intermediate_size": 25600, "num_attention_heads": 64},
}
DEPTH = {"qwen3-14b": 40, "qwen3-32b": 64}
STATES = {"deepspeed": 10, "torchtitan": 16}  # bytes a parameter: weights, gradients, states
CARDS = {"deepspeed": "NVIDIA H200", "torchtitan": "NVIDIA H100 80GB HBM3"}
FULL_PEAK = 68.56 * GIB  # torchtitan's, with everything recomputed
Row = dict[str, str]


def widths(model: str) -> dict[str, int]:
    """Return what differs from Qwen3-8B's configuration, but for the depth."""
    return {"hidden_size": 5120, "num_key_value_heads": 8, **WIDTHS[model]}


def recipe(model: str, samples: int, seq: int, blocks: int) -> Recipe:
    """Name a step of a few of the model's blocks, on one of eight ranks."""
    shape = {**widths(model), "num_hidden_layers": blocks}
    ranks = {"ranks": RANKS, "shard": "zero3"}
    return Recipe("qwen3-8b", samples, seq=seq, precision="bf16", overrides=shape, **ranks)


@cache
def saved_a_token(model: str) -> float:
    """Count what a block saves for each token, as PyTorch's partitioner divides a compiled one.

    A quarter of all widths saves a quarter.
    """
    narrow = {name: size // 4 for name, size in widths(model).items()} | {"vocab_size": 1000}
    sizes = []
    for blocks in (1, 2):
        shape = {**narrow, "num_hidden_layers": blocks}
        loss, net = Recipe("qwen3-8b", 1, seq=128, precision="bf16", overrides=shape).make_loss()
        torch._dynamo.reset()
        compiled = torch.compile(loss, backend="aot_eager_decomp_partition")
        compiled()
        sizes.append(memory.saved(compiled, params_of=net).num_bytes)
    return 4 * (sizes[1] - sizes[0]) / 128


@cache
def chain(source: str, model: str, samples: int, seq: int) -> tuple[planning.Stage, ...]:
    """Profile a few blocks without memory, and repeat one until the depth is the model's."""
    few = recipe(model, samples, seq, BLOCKS)
    with few.one_rank(), memory.predicting():
        loss, net = few.make_loss()
        speed = planning.Speed.of(CARDS[source])
        stages = planning.profile(net, loss, speed=speed, is_judged=True).stages
    saved = int(samples * seq * saved_a_token(model))
    blocks = [replace(stage, saved_bytes=saved) for stage in stages[1:-1]]
    more = [blocks[REPEATED - 1]] * (DEPTH[model] - BLOCKS)
    return (stages[0], *blocks[:REPEATED], *more, *blocks[REPEATED:], stages[-1])


@cache
def resident_bytes(source: str, model: str) -> int:
    """Count what a rank holds all the time."""
    shape = {**widths(model), "num_hidden_layers": DEPTH[model]}
    return Recipe("qwen3-8b", overrides=shape).num_parameters * STATES[source] // RANKS


def deepspeed(row: Row) -> dict[str, str]:
    """Predict a step that recomputes nothing and moves none, all, or a part."""
    seq = int(row["tokens"])
    stages = chain("deepspeed", row["model"], 4, seq)
    kept = planning.Plan(stages, tuple(range(len(stages))))
    room = Room.of("h200").sure - resident_bytes("deepspeed", row["model"])
    each, items = 4 * 4 * seq * 5120 * 2, range(1, len(stages) - 2)
    slots = replace(kept.slots, movable=[each * (n in items) for n in range(len(stages))])
    plans = [slots.schedule(items[:count], room) for count in range(len(items) + 1)]
    least = next((count for count, moves in enumerate(plans) if moves is not None), len(items))
    own = {"none": 0, "all": len(items)}.get(row["way"], least)
    theirs = min(len(items), round(float(row["moved_gb"]) * 1e9 / each)) if row["moved_gb"] else own

    def seconds(count: int) -> str:
        moves = plans[count] or [planning.Move(n, n + 2, n + 1) for n in items[:count]]
        return f"{slots.seconds(moves, LINK) + count * each / LINK:.3f}"  # outward waited for

    fits = "no" if plans[own] is None else "yes"
    moved = f"{own * each / 1e9:.1f}"
    return {"seconds": seconds(theirs), "own": seconds(own), "own_moved_gb": moved, "fits": fits}


def torchtitan(row: Row) -> dict[str, str]:
    """Predict a step that recomputes all, keeps all, or what the planner makes of the budget."""
    stages = chain("torchtitan", row["model"], 1, int(row["tokens"]))
    last = len(stages) - 1
    own = theirs = planning.Plan(stages, (0, *((n,) for n in range(1, last)), last))
    if row["way"] == "none":
        own = theirs = planning.Plan(stages, tuple(range(len(stages))))
    elif row["way"] == "planned":
        budget = own.peak_bytes + int(float(row["budget_gib"]) * GIB - FULL_PEAK)
        moved = int(float(row["moved_gb"]) * 1e9)
        own, theirs = (
            planning.solve_with_host(stages, budget_bytes=budget, host=planning.Host(LINK, most))
            for most in (None, moved)
        )
    room = Room.of(f"{int(94.99 * GIB)}B").sure - resident_bytes("torchtitan", row["model"])
    fits = "yes" if own.peak_bytes <= room else "no"
    moved = f"{own.host_bytes / 1e9:.1f}"
    seconds = {"seconds": f"{theirs.seconds:.3f}", "own": f"{own.seconds:.3f}"}
    return seconds | {"own_moved_gb": moved, "fits": fits}


def settings(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows of one setting; the first that ran is what ratios are taken of."""
    groups = defaultdict(list)
    for row in rows:
        groups[f"{row['source']} {row['tokens']}"].append(row)
    return groups


def published_seconds(row: Row) -> float:
    """Return the seconds of a step, or of a token where a rate is given; infinite if it failed."""
    if not row["published"]:
        return float("inf")
    value = float(row["published"])
    return 1 / value if row["unit"].endswith("/s") else value


def ratios(rows: Sequence[Row], column: str = "seconds") -> Iterator[tuple[Row, float, float]]:
    """Yield a row, its published and its predicted ratio to the setting's first row that ran.

    Left out is a row that was not to fit: its seconds are those of an allocator in need.
    """
    for group in settings(rows).values():
        ran = [row for row in group if row["published"]]
        for row in ran[1:]:
            if row["fits"] == "yes":
                predicted = float(row[column]) / float(ran[0][column])
                yield row, published_seconds(row) / published_seconds(ran[0]), predicted


def best_ways(rows: Sequence[Row]) -> Iterator[tuple[str, set[str], str]]:
    """Yield setting, the ways within 1 % of the published best, and the predicted best.

    Where nothing fits for sure, the last row is the one that moves most.
    """
    for name, group in settings(rows).items():
        least = min(map(published_seconds, group))
        best = {row["way"] for row in group if published_seconds(row) <= 1.01 * least}
        fitting = [row for row in group if row["fits"] == "yes"] or group[-1:]
        yield name, best, min(fitting, key=lambda row: float(row["own"]))["way"]


def main() -> None:
    """Predict each row, write the table anew, and say how far it is off."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {"deepspeed": deepspeed, "torchtitan": torchtitan}[row["source"]](row)
        row["saved_a_token"] = f"{saved_a_token(row['model']):.0f}"
        print(*row.values(), flush=True)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for name, best, ours in best_ways(rows):
        print(f"{name}: best {' or '.join(sorted(best))}, predicted {ours}")
    for source, column in itertools.product(("", "deepspeed", "torchtitan"), ("seconds", "own")):
        off = [abs(b / a - 1) for r, a, b in ratios(rows, column) if r["source"].startswith(source)]
        middle = statistics.median(off)
        print(f"{source or 'all'}, {column}: {len(off)} ratios, off by {middle:.1%} in the median,")
        print(f"  {max(off):.1%} at most")


if __name__ == "__main__":
    main()
