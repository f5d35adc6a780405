"""Whole training runs that others measured on real GPUs, predicted from their conditions.

    python -m pip install --no-deps --target OLD timm==0.6.7 torchvision==0.28.0
    PYTHONPATH=OLD python course/recorded/make/whole_runs.py ROWS.csv     predicted, half an hour
    PYTHONPATH=OLD python course/recorded/make/whole_runs.py --seconds ROWS.csv   of a step
    PYTHONPATH=OLD python course/recorded/make/whole_runs.py --emulate ROWS.csv   needs .venv-cuda
    python course/recorded/make/whole_runs.py --table                     what is kept

ROWS.csv has a line for each run: its source with commit and file, conditions, peak.
`whole_steps.py` has a recipe for each kind that its conditions describe; `whole_runs.csv` keeps
every line, and says of the others why they have no recipe. `placed` is what the predicted tensors
reserve in the allocator's blocks, where the published figure counts those. Lines in it are not run
again. Nothing was fitted; LitGPT's recipe follows bitsandbytes 0.42 and Lightning, whose source was
read only when its 4-bit rows had come out a third too low.
"""

from __future__ import annotations

import csv
import re
import signal
import statistics
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from whole_steps import Row, step_for

from tutorial_lib import memory
from tutorial_lib.instruments.emulated import (
    Placed,
    Room,
    Verdict,
    emulate,
    find_card,
    find_cuda_torch,
    place,
)
from tutorial_lib.instruments.planning.run.roofline import LASTS, Roofline, Speed

TABLE = Path(__file__).resolve().parents[1] / "whole_runs.csv"
FIELDS = ("id", "source", "kind", "card", "published", "bound", "outcome", "predicted", "placed")
FIELDS = (*FIELDS, "reserved", "theirs", "seconds", "roofline_seconds", "elapsed_seconds", "why")
UNITS = {"bytes": 1, "MiB": 2**20, "GiB": 2**30, "GB, 1024^3 by the code": 2**30, "GB (1e9)": 1e9}
UNITS["GB"] = 2**30  # Qwen's and detectron2's: probably read where MiB were counted
CARDS = {"L40S": "l40s", "A100 40": "a100-40", "A100": "a100", "A10G": "a10"}
SPEEDS = {"a100": "NVIDIA A100-SXM4-80GB", "l40s": "NVIDIA L40S"}
DRIVERS = {"reserved", "driver"}  # kinds that count blocks, not tensors
STEPS = 3  # gradients and states are there from the second on
LIMIT = 120  # seconds for a row: some adapters are made number by number


def too_long(*_: object) -> None:
    """End a row that takes too long."""
    raise TimeoutError(f"it takes more than {LIMIT} s")


def kind_of(row: Row) -> str:
    """Name what a figure counts: allocated, reserved, the driver's, or not said."""
    words = row["kind"]
    kinds = {"max_memory_allocated": "allocated", "max_memory_reserved": "reserved"}
    kinds |= {"nvidia-smi memory.used": "driver"}
    if words.startswith("not stated (GiB), by the script max_memory_reserved"):
        return "reserved"
    return next((kind for start, kind in kinds.items() if words.startswith(start)), "not said")


def described(row: Row) -> Row:
    """Keep of a row what the table has of it."""
    value, theirs = row["value"], re.search(r"estimate of the authors, MiB: ([\d.]+)", row["note"])
    card = next((key for start, key in CARDS.items() if start in row["gpu"]), "")
    known = value and "+" not in value
    seconds = row["seconds"] if row["seconds_unit"].startswith(("s/step", "s/update")) else ""
    if seconds and "of 8 micro-batches" in row["seconds_unit"]:
        seconds = f"{float(seconds) / 8:.4f}"
    return {
        **{name: row[name] for name in ("id", "source", "outcome")},
        **{"kind": kind_of(row), "card": card, "seconds": seconds},
        "published": str(int(float(value) * UNITS[row["unit"]])) if known else "",
        "bound": "at most" if "CENSORED" in row["note"] else "",
        "theirs": str(int(float(theirs.group(1)) * 2**20)) if theirs else "",
    }


def read(path: Path) -> list[Row]:
    """Read a table, or nothing where there is none."""
    return list(csv.DictReader(path.read_text("utf-8").splitlines())) if path.exists() else []


def write(rows: list[Row]) -> None:
    """Write the table anew."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def predict(path: Path) -> None:
    """Predict each run that a recipe describes, and note why the others have none."""
    kept = read(TABLE)
    known = {row["id"] for row in kept}
    signal.signal(signal.SIGALRM, too_long)
    for row in read(path):
        if row["id"] in known:
            continue
        make, found = step_for(row), described(row)
        if isinstance(make, str):
            found["why"] = make
        else:
            signal.setitimer(signal.ITIMER_REAL, LIMIT, 5)  # again, where a callback eats it
            try:
                report = memory.predict(make)
                peak = int(report.peak_bytes)
                found |= {"predicted": str(peak), "placed": ""}
                if found["kind"] in DRIVERS:
                    workspace = Room.of(found["card"]).workspace
                    found["placed"] = str(place(report.timeline, peak, workspace).reserves)
            except Exception as error:  # what a method does may not run without values
                found["why"] = f"can't be predicted: {str(error).splitlines()[0][:90]}"
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(row["id"], found.get("predicted", found.get("why")), file=sys.stderr, flush=True)
        kept.append(found)
        write(kept)


def time_steps(path: Path) -> None:
    """Fill in a roofline's seconds, without and with launches, where seconds are published."""
    rows, sources = read(TABLE), {row["id"]: row for row in read(path)}
    for row in rows:
        asked = row["seconds"] and row["predicted"] and row["card"] in SPEEDS
        if asked and not row["elapsed_seconds"]:
            make = step_for(sources[row["id"]])
            assert not isinstance(make, str)
            with memory.predicting():
                step, *_ = make()
                with Roofline(Speed.of(SPEEDS[row["card"]])) as roofline:
                    step()
            row["roofline_seconds"] = f"{roofline.seconds:.4f}"
            row["elapsed_seconds"] = f"{roofline.elapsed:.4f}"
            print(row["id"], row["seconds"], row["elapsed_seconds"], flush=True)
            write(rows)


def emulate_reserved(path: Path) -> None:
    """Run what says reserved on an emulated card of its kind, and note what that reserved."""
    rows, torch_build = read(TABLE), find_cuda_torch(TABLE.parents[2])
    for row in rows:
        if row["predicted"] and row["kind"] in DRIVERS and not row["reserved"]:
            with tempfile.TemporaryDirectory() as folder:
                found = Path(folder) / "found"
                command = ["python", __file__, "--inside", str(path), row["id"], str(found)]
                emulate(command, find_card(row["card"]), torch_build, watch=False)
                row["reserved"] = found.read_text() if found.exists() else "failed"
            write(rows)
            print(row["id"], row["published"], row["reserved"], file=sys.stderr, flush=True)


def run_on_card(path: Path, row_id: str, found: Path) -> None:
    """Run some steps of one row in a process on the emulated card."""
    row = next(row for row in read(path) if row["id"] == row_id)
    make = step_for(row)
    assert not isinstance(make, str)
    with torch.device("cuda"):
        step, *_ = make()
        torch.cuda.empty_cache()
        for number in range(STEPS):
            if number == 1:
                torch.cuda.reset_peak_memory_stats()
            step()
    found.write_text(str(torch.cuda.max_memory_reserved()))


def off_by(row: Row, of: str = "predicted") -> float:
    """Return how far a figure is from the published one, as a share of that.

    What the driver shows has CUDA's context in it.
    """
    context = find_card(row["card"], context=None).context if row["kind"] == "driver" else 0
    return (int(row[of]) + context) / int(row["published"]) - 1


def print_table() -> None:
    """Print the errors by source, and how many rows have no recipe."""
    rows = read(TABLE)
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["predicted"] and row["published"] and not row["bound"]:
            groups[f"{row['source'].partition(' (')[0]}: {row['kind']}"].append(row)
    print(f"{len(rows)} rows, {sum(map(len, groups.values()))} with a recipe and a peak")
    for name, group in groups.items():
        for of in ("predicted", "placed", "reserved", "theirs"):
            off = sorted(abs(off_by(row, of)) for row in group if row[of].isdigit())
            if off:
                print(
                    f"{name}, {of}: {len(off)}, median {statistics.median(off):.1%}, "
                    f"nine in ten {off[int(0.9 * (len(off) - 1))]:.1%}, worst {off[-1]:.1%}"
                )
    driver = [row for row in rows if row["kind"] == "driver" and row["predicted"]]
    inside = 0
    for row in driver:
        placed = Placed(int(row["placed"]), int(row["placed"]))
        room = Room.of(row["card"])
        low, high = Verdict(int(row["predicted"]), room, placed=placed).takes
        inside += low <= int(row["published"]) <= high
    print(f"{inside} of {len(driver)} of the driver's are where --fits says nvidia-smi shows them")
    timed = [row for row in rows if row["elapsed_seconds"]]
    shares = [float(row["seconds"]) / float(row["elapsed_seconds"]) for row in timed]
    within = sum(LASTS[0] <= share <= LASTS[1] for share in shares)
    print(f"{within} of {len(timed)} published seconds are in the range of `predict --seconds`")
    bounds = [row for row in rows if row["bound"] and row["predicted"]]
    below = sum(int(row["predicted"]) <= int(row["published"]) for row in bounds)
    print(f"{below} of {len(bounds)} upper bounds hold")
    for why, number in Counter(row["why"] for row in rows if not row["predicted"]).most_common():
        print(f"{number:4} {why}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    match sys.argv[1:]:
        case ["--table"]:
            print_table()
        case ["--seconds", path]:
            time_steps(Path(path))
        case ["--emulate", path]:
            emulate_reserved(Path(path))
        case ["--inside", path, row_id, found]:
            run_on_card(Path(path), row_id, Path(found))
        case [path]:
            predict(Path(path))
        case _:
            raise SystemExit(__doc__)
