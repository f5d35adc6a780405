"""Hold predicted and emulated peaks against what others measured on real GPUs, and published.

    python course/recorded/make/published.py          all rows; needs .venv-cuda (emulate --setup)
    python course/recorded/make/published.py 'lk_*'   these rows

Reads `course/recorded/published.csv` and fills in its columns `predicted_gib`, `emulated_gib`,
`emulated_reserved_gib` and `as_then_gib`, each row run whole, on the card of its column `card`.
"""

from __future__ import annotations

import contextlib
import csv
import fnmatch
import gc
import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from published_steps import DDP, OLD_SOFTMAX, as_then, ddp_buckets, old_softmax, step_of

from tutorial_lib import memory
from tutorial_lib.instruments.emulated import emulate, find_card, find_cuda_torch
from tutorial_lib.memory import private_torch
from tutorial_lib.units import GIB

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "course" / "recorded" / "published.csv"
STEPS = 3  # gradients and optimizer state are there from the second on


def emulated(row_id: str, *, then: bool) -> list[str]:
    """Run a row in a process on an emulated card.

    Args:
        row_id: Which row.
        then: Whether to hold what the source's PyTorch and launcher held beyond today's step.

    Returns:
        Allocated and reserved peak in GiB, or twice the reason why there is none.
    """
    words = as_then(row_id) if then else ""
    old = old_softmax() if OLD_SOFTMAX in words else contextlib.nullcontext()
    try:
        with torch.device("cuda"), old:
            step, model, _ = step_of(row_id)()
            buckets = ddp_buckets(model) if DDP in words else None
            for number in range(STEPS):
                if number == STEPS - 1:
                    torch.cuda.reset_peak_memory_stats()
                step()
        del buckets
    except torch.OutOfMemoryError:
        return ["out of memory"] * 2
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return [f"{peak / GIB:.5f}" for peak in peaks]


def emulate_all(ids: list[str]) -> dict[str, list[str]]:
    """Run rows one after the other, each as if the process had just begun."""
    found: dict[str, list[str]] = {}
    for row_id in ids:
        for then in (False, True) if as_then(row_id) else (False,):
            found[f"{row_id} {then}"] = emulated(row_id, then=then)
            gc.collect()
            private_torch.release_cublas_workspaces()
            torch.cuda.empty_cache()
            print(row_id, then, found[f"{row_id} {then}"], file=sys.stderr, flush=True)
    return found


def run(rows: list[dict[str, str]]) -> None:
    """Fill in the columns of these rows; two kinds of figure of one run are run once."""
    torch_build = find_cuda_torch(ROOT)
    for key in sorted({row["card"] for row in rows}):
        of_card = [row for row in rows if row["card"] == key]
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "found.json"
            command = [
                "python",
                __file__,
                "--inside",
                str(out),
                *dict.fromkeys(map(run_of, of_card)),
            ]
            emulate(command, find_card(key), torch_build, watch=False)
            found = json.loads(out.read_text())
        for row in of_card:
            row["emulated_gib"], row["emulated_reserved_gib"] = found[f"{run_of(row)} False"]
            row["as_then"] = as_then(row["id"])
            row["as_then_gib"] = found.get(f"{run_of(row)} True", [""])[0]
    for run_id in dict.fromkeys(map(run_of, rows)):
        peak = memory.predict(step_of(run_id), label=run_id).peak_bytes
        print(run_id, f"{peak / GIB:.5f}", file=sys.stderr, flush=True)
        for row in rows:
            if run_of(row) == run_id:
                row["predicted_gib"] = f"{peak / GIB:.5f}"


def run_of(row: dict[str, str]) -> str:
    """Name the run that a row's figure is of."""
    return row["id"].removesuffix("_smi").removesuffix("_reserved")


def main(words: list[str]) -> None:
    warnings.simplefilter("ignore")
    if words[:1] == ["--inside"]:
        Path(words[1]).write_text(json.dumps(emulate_all(words[2:])))
        return
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    run([row for row in rows if any(fnmatch.fnmatch(row["id"], word) for word in words or "*")])
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
