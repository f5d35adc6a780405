"""Does a model train on an RTX 3090 at this batch? Our answers to timm's training benchmark.

    python -m pip install --no-deps --target OLD timm==0.6.7 torchvision==0.28.0
    PYTHONPATH=OLD python course/recorded/make/ladder.py LADDER.csv     predicted, about an hour
    PYTHONPATH=OLD python course/recorded/make/ladder.py --emulate      needs .venv-cuda, 20 minutes
    PYTHONPATH=OLD python course/recorded/make/ladder.py --cudnn        the same, with cuDNN asked
    python course/recorded/make/ladder.py --table                       what is kept

Ross Wightman's `results/benchmark-train-amp-{nchw,nhwc}-pt112-cu113-rtx3090.csv` (pytorch-image-
models, Apache 2.0, commit c865028c34fc) say at which batch of a fixed ladder, from 512 down, each
model trained. The rung above had ended in an error. LADDER.csv has both: a line for each model and
memory layout, with `ran_at_batch` and `failed_at_batch`.

`ladder.csv` beside this folder keeps a line for each decision: the predicted peak, the room that
the step needs in the blocks of PyTorch 1.12's allocator, and, where the peak is near what the card
leaves or wrong, whether the step ran on an emulated card. Blocks were counted late: they are there
where the peak is more than 66 % of the room, and not above it. The margin on them is the one that
steps on an H200 gave (`least_room.csv`). cuBLAS's workspaces are not in the blocks: PyTorch before
2.0 left them to cuBLAS (pull request 86645), and nothing is taken off the room for them. Models in
the file are not run again, so a run that was ended goes on. The order is one of hashes. Now it is
all 315 models, less three that want InPlace-ABN. The last 157 came when the rule on peaks had long
been fixed. Of them the emulated card was asked for causes alone (`ladder_causes.csv`): those that
are wrong in both layouts ran out there, and so did all others whose cause is `blocks`. `cudnn_ran`
says of the rest whether the step ran on the emulated card with the workspaces that a cuDNN of
today (9) asks for, and `beside` names a model of its kind that ran in the same layout and takes no
less of the room.

The step is `benchmark.py`'s of timm 0.6.6: float16 autocast without a scaler, loss and backward in
it too, SGD with Nesterov's momentum one parameter after the other, gradients zeroed in place.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.instruments.emulated import (
    CudaTorch,
    Placed,
    Room,
    Verdict,
    emulate,
    find_cuda_torch,
    place,
)

TABLE = Path(__file__).resolve().parents[1] / "ladder.csv"
CAUSES = TABLE.with_name("ladder_causes.csv")
ROOM = Room.of("rtx-3090", "1.12")
NEAR = 0.02  # where a prediction is so near to the room, or wrong, the emulated card is asked
STEPS = 3  # the second brings momentum and gradients along


def make_step(name: str, image: int, batch: int, device: str = "cpu", layout: str = "nchw") -> Any:
    """Build a model and its step as the benchmark does."""
    import timm

    kind = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    model = timm.create_model(name, in_chans=3, drop_rate=0.0).train()
    model.to(device=device, memory_format=kind)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False
    )
    images = torch.randn(batch, 3, image, image, device=device).contiguous(memory_format=kind)
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.float16):
            output = model(images)
            output = output[0] if isinstance(output, tuple) else output
            target = torch.empty(len(output), dtype=torch.long, device=device)
            criterion(output, target.random_(model.num_classes)).backward()
        optimizer.step()

    return step, model, optimizer


def order_of(model: str) -> str:
    """Return where a model comes in a run: by a hash of its name."""
    return hashlib.sha1(f"ladder {model}".encode()).hexdigest()


def decisions(path: Path) -> dict[str, list[dict[str, str]]]:
    """Read each model's decisions, where both a batch that ran and one that failed are known."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in read(path):
        ends = {"1": row["ran_at_batch"], "0": row["failed_at_batch"]}
        if all(ends.values()):
            found.setdefault(row["model"], []).extend(
                {name: row[name] for name in ("model", "image", "layout")}
                | {"batch": batch, "ran": ran}
                for ran, batch in ends.items()
            )
    return dict(sorted(found.items(), key=lambda item: order_of(item[0])))


def read(path: Path) -> list[dict[str, str]]:
    """Read a table, or nothing where there is none."""
    return list(csv.DictReader(path.read_text("utf-8").splitlines())) if path.exists() else []


def write(rows: list[dict[str, str]], path: Path = TABLE) -> None:
    """Write a table anew."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def import_timm() -> str:
    """Import timm, and torchvision without its compiled part; return the versions."""

    def unregistered(*_: Any, **__: Any) -> Any:
        return lambda function: function

    with mock.patch.object(torch.library, "register_fake", unregistered):
        import timm  # imports torchvision
    return f"torch {torch.__version__.partition('+')[0]} timm {timm.__version__}"


def predict(path: Path) -> None:
    """Predict all decisions that `ladder.csv` does not have; both layouts take the same bytes."""
    versions, kept = import_timm(), read(TABLE)
    known = {row["model"] for row in kept}
    todo = {model: rows for model, rows in decisions(path).items() if model not in known}
    for done, (model, rows) in enumerate(todo.items(), 1):
        peaks = {}
        try:
            for case in {(int(row["image"]), int(row["batch"])) for row in rows}:
                made = functools.partial(make_step, model, *case)
                report = memory.predict(made)
                peak = int(report.peak_bytes)
                peaks[case] = peak, place(report.timeline, peak, ROOM.workspace).needs
        except ImportError as error:  # some models want a package of their own
            print(f"{done} of {len(todo)}: {model} is left out, {error}", file=sys.stderr)
            continue
        for row in rows:
            both = map(str, peaks[int(row["image"]), int(row["batch"])])
            found = dict(zip(("predicted", "needed"), both, strict=True))
            kept.append(row | found | {"emulated_ran": "", "versions": versions})
        write(kept)
        print(f"{done} of {len(todo)}: {model} {peaks}", file=sys.stderr, flush=True)


def distance(row: dict[str, str]) -> float:
    """Return how far a prediction is from the room, as a share of it."""
    return abs(int(row["predicted"]) / ROOM.free - 1)


def is_right(row: dict[str, str], by: str = "predicted") -> bool:
    """Tell whether the step ran where its predicted peak is at most the room, and nowhere else."""
    return (int(row[by] or row["predicted"]) <= ROOM.free) == (row["ran"] == "1")


def answer_of(row: dict[str, str]) -> str:
    """Return what `predict --fits` says; what is far below the room was not placed."""
    predicted = int(row["predicted"])
    needs = int(row["needed"] or predicted)
    return Verdict(predicted, ROOM, placed=Placed(needs, needs)).answer


def emulate_near() -> None:
    """Run what is near the room, or wrong, on an RTX 3090 whose context holds all kernels."""
    rows, cuda_torch = read(TABLE), find_cuda_torch(TABLE.parents[2])
    for row in sorted(rows, key=distance):
        near = distance(row) < NEAR or not is_right(row)
        if near and not row["emulated_ran"]:
            row["emulated_ran"] = whether_it_ran(row, cuda_torch)
            write(rows)


def ask_cudnn() -> None:
    """Run what free blocks don't explain on such a card again, with cuDNN's workspaces."""
    causes, cuda_torch = read(CAUSES), find_cuda_torch(TABLE.parents[2])
    rows = {tuple(row[of] for of in ("model", "layout", "batch")): row for row in read(TABLE)}
    for cause in causes:
        row = rows[cause["model"], cause["layout"], cause["batch"]]
        if cause["cause"] != "blocks" and not cause["cudnn_ran"]:
            cause["cudnn_ran"] = whether_it_ran(row, cuda_torch, cudnn=True)
            write(causes, CAUSES)


def whether_it_ran(row: dict[str, str], cuda_torch: CudaTorch, cudnn: bool = False) -> str:
    """Return `1` if a decision's steps ran on the emulated card, else `0`."""
    assert ROOM.card
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found"
        command = ["python", __file__, "--inside", json.dumps(row), str(found)]
        emulate(command, ROOM.card, cuda_torch, watch=False, cudnn=cudnn)
        print(row, found.read_text(), file=sys.stderr, flush=True)
        return found.read_text()


def run_on_card(row: dict[str, str], found: Path) -> None:
    """Run one decision's steps in a process on the emulated card."""
    import_timm()
    case = int(row["image"]), int(row["batch"])
    try:
        step, _, _ = make_step(row["model"], *case, device="cuda", layout=row["layout"])
        for _ in range(STEPS):
            step()
        found.write_text("1")
    except torch.OutOfMemoryError:
        found.write_text("0")


def print_table() -> None:
    """Print how many decisions are right, how often it is close, and every miss."""
    rows = read(TABLE)
    misses = [row for row in rows if not is_right(row)]
    print(
        f"{len(rows)} decisions of {len({r['model'] for r in rows})} models: "
        f"{1 - len(misses) / len(rows):.1%} right with all that the card leaves to PyTorch 1.12"
    )
    by_blocks = sum(is_right(row, "needed") for row in rows) / len(rows)
    print(f"{by_blocks:.1%} right in blocks")
    answers = Counter((answer_of(row), row["ran"]) for row in rows)
    for (answer, ran), number in sorted(answers.items()):
        print(f"{answer:>6}: {number:4} {'ran' if ran == '1' else 'failed'}")
    asked = [r for r in rows if r["emulated_ran"]]
    right = [r for r in asked if r["emulated_ran"] == r["ran"]]
    print(f"{len(right)} of {len(asked)} as on the emulated card, where it was asked")
    both = [r for r in rows if r in right or (r not in asked and is_right(r, "needed"))]
    print(f"{len(both) / len(rows):.1%} right with its answers in place of those")
    for row in sorted(misses, key=lambda r: int(r["predicted"])):
        margin = ROOM.free / int(row["predicted"]) - 1
        said = {"1": "ran", "0": "ran out", "": "not asked"}[row["emulated_ran"]]
        words = " ".join(row[name] for name in ("model", "layout", "batch"))
        print(f"{words}: {margin:+.1%}, emulated: {said}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--table"]:
            print_table()
        case ["--emulate"]:
            emulate_near()
        case ["--cudnn"]:
            ask_cudnn()
        case ["--inside", row, found]:
            run_on_card(json.loads(row), Path(found))
        case [path]:
            predict(Path(path))
        case _:
            raise SystemExit(__doc__)
