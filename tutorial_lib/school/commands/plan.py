"""Find micro-batch, accumulation, checkpointing, precision and optimizer for a budget.

Everything is predicted: no memory is allocated. Of the plans that fit, the fastest comes first;
that's mostly the one that recomputes least. A row is left out if another one is at least as good in
memory, in time and in exactness. A part of the budget stays free for what real steps need besides
their tensors, with PyTorch's expandable segments.

The plan keeps weights and states in float32, under autocast. Rows marked * change the training.
Those with adamw-8bit come first only if --optimizer asks for them. bf16 throughout is tried where
nothing fits that changes less, or if --precision asks for it.

Times are a roofline of the card that --budget names, or of an A100, and at least 20 us an
operation. They rank choices and leave out a checkpoint's Python, which `predict --seconds` has. On
a T4 or V100 the plan takes fp16-amp, since these cards are slow in bfloat16. The status is 1 when
nothing fits.

With --link, what stages save for backward may also wait on the host, copied beside the computation.
The column recompute is then the time that recomputing and waiting for copies add.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tutorial_lib.instruments.emulated import Room, Verdict
from tutorial_lib.instruments.emulated.blocks import WORKSPACES
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.school import bootstrap
from tutorial_lib.school.commands.messages import is_own, sign_of_life
from tutorial_lib.school.commands.recipe_options import (
    add_examples,
    add_model,
    recipe_of,
    sequence_length,
    to_type,
)
from tutorial_lib.units import human_bytes, parse_bytes

if TYPE_CHECKING:
    from tutorial_lib.instruments.emulated.cards import Card
    from tutorial_lib.instruments.planning.chain.plan import Plan
    from tutorial_lib.instruments.planning.fitting.candidates import Fit


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_model(parser)
    add_examples(
        parser,
        "gpt2 --budget 8GiB --effective-batch 64",
        "gpt2 --budget t4 --effective-batch 8 --save FILE",
        "train.py:make_loss --budget t4 --effective-batch 8",
        whole_step="A whole step (step, model and optimizer) cannot be planned.",
    )
    parser.usage = "%(prog)s MODEL --budget ROOM --effective-batch N ..."
    add = parser.add_argument
    add("--budget", required=True, metavar="ROOM", help="memory of the GPU: 16GiB, or rtx-3060")
    samples = "samples in each update"
    add("--effective-batch", required=True, type=int, metavar="N", help=samples)
    for name in ("precision", "optimizer"):
        allowed = f"{name} that the plan may take; may repeat"
        add(f"--{name}", action="append", metavar="NAME", help=allowed)
    add("--stages", metavar="NAMES", help="modules that may be recomputed: layers.0,layers.1")
    where = "link to the host, where tensors may wait: 55GB/s, or pcie-4"
    add("--link", metavar="SPEED", help=where)
    ways = "what waits there: as much as saves time (auto), nothing, or all that may move"
    add("--offload", choices=("auto", "none", "all"), help=ways)
    add("--host", metavar="SIZE", help="pinned memory there for them: 64GiB (default: any)")
    add("--emulated", metavar="CARDS", help="cards to run the plan on, as in t4,a100")
    release = "PyTorch whose CUDA kernels and context to take, as in 2.13 (default: installed)"
    add("--torch", metavar="RELEASE", help=release)
    add("--save", type=Path, metavar="FILE", help="file for the plan, for Plan.load")


def run(options: argparse.Namespace) -> int:
    """Search, show what fits, and save the best plan where a file is named."""
    from tutorial_lib.instruments.emulated.cards import find_card
    from tutorial_lib.instruments.planning.chain.host import Host
    from tutorial_lib.instruments.planning.fitting.search import fit
    from tutorial_lib.instruments.planning.run.roofline import Speed
    from tutorial_lib.instruments.predicting.release import following

    recipe, save = recipe_of(options), options.save
    room = Room.of(options.budget, options.torch)
    cards = [find_card(key) for key in options.emulated.split(",")] if options.emulated else []
    if save is not None and not save.parent.is_dir():
        raise ValueError(f"--save {save}: there is no folder {save.parent}. Make it first.")
    if cards and recipe.shard is not None:
        raise ValueError(f"--emulated runs one process, but --ranks {recipe.ranks} was asked for.")
    host = None
    if options.link is not None:
        most = None if options.host is None else parse_bytes(options.host)
        host = replace(Host.of(options.link, most), takes_all=options.offload == "all")
    elif options.host is not None or options.offload in ("auto", "all"):
        raise ValueError("The host is behind a link: add --link, as in --link pcie-4.")
    host = None if options.offload == "none" else host
    refuse_whole_step(recipe)
    told = sign_of_life(f"Planning {recipe.model}")
    with following(options.torch), told as tell:
        found = fit(
            recipe,
            budget_bytes=room.sure,
            effective_batch=options.effective_batch,
            precisions=options.precision,
            optimizers=options.optimizer,
            speed=Speed.of(room.card.name if room.card else None),
            host=host,
            stages=[name for name in (options.stages or "").split(",") if name] or None,
            tell=tell,
        )
    best = found.best
    planned = best.plan if best else None
    rows = [_on_card(found.recipe_of(best), planned, c) for c in cards if best and planned]
    if options.json:
        needs = best.peak_bytes if best else found.smallest_bytes or 0
        verdict = Verdict(needs, room).as_data()
        emulated = {"emulated": rows} if rows else {}
        print(json.dumps(found.as_data() | {"verdict": verdict} | emulated, indent=1))
    else:
        _show(found, room, rows, options)
    if planned is None:
        return 1
    if save is not None:
        planned.save(save)
        if not options.json:
            load = f"planning.Plan.load({str(save)!r})"
            print(f"In a script that trains as the first row: planning.apply(model, {load})")
    return 0


def _show(
    found: Fit, room: Room, rows: Sequence[dict[str, str | int]], options: argparse.Namespace
) -> None:
    left, sure = human_bytes(room.free - room.sure), human_bytes(room.sure)
    if room.free > WORKSPACES:
        print(f"Of {human_bytes(room.free)}, {left} stay free for workspaces and fragmentation,")
        print(f"and {sure} are planned:")
    else:
        print(f"Workspaces alone may take {human_bytes(WORKSPACES)}, so nothing can be planned:")
    enough = f"--budget {to_type(Room.for_sure(found.smallest_bytes or 0))}"
    if room.card and not options.precision:  # a size may be planned in another one than this card
        enough += f" --precision {found.asked[0][0]}"
    print(found.in_words(enough))
    if found.best:
        print(f"Times are predicted, for {f'the {room.card.name}' if room.card else 'an A100'}.")
        print(Verdict(found.best.peak_bytes, room))
    elif other := found.otherwise:
        asked = {"--precision": other.precision, "--optimizer": other.optimizer}
        print(f"To take the first row: {' '.join(f'{n} {asked[n]}' for n in asked)}")
    if found.recipe.seq is None and (length := sequence_length(found.recipe)):
        print(f"Sequences of {length} tokens, as --seq was left out.")
    for row in rows:
        sizes = [f"{name} {human_bytes(int(row[f'{name}_bytes']))}" for name in _PEAKS]
        print(f"  {row['card']} (emulated, workspaces included): {', '.join(sizes)}")


def refuse_whole_step(recipe: Recipe) -> None:
    """Refuse, before anything is predicted, a function of one's own that cannot be planned.

    Raises:
        ValueError: When it gives a whole step, or takes no micro_batch.
    """
    if ":" not in recipe.model:
        return
    from tutorial_lib import memory

    with memory.predicting():  # two samples: a function that takes no micro_batch is refused
        try:
            replace(recipe, micro_batch=2).make_loss()
        except ValueError as error:
            if is_own(error) or isinstance(error, RuntimeError):
                raise
            raise ValueError(
                "plan needs a function that takes micro_batch, and gives loss (a function that "
                f"runs forward) and model. {error}"
            ) from error


_PEAKS = ("requested", "peak", "reserved")


def _on_card(recipe: Recipe, planned: Plan, card: Card) -> dict[str, str | int]:
    """Run a plan on an emulated card, and return the peaks of PyTorch's allocator."""
    from tutorial_lib.instruments.emulated import environment
    from tutorial_lib.instruments.emulated.run import emulate

    torch = environment.find_cuda_torch(bootstrap.ROOT)
    # The third of several micro-batches peaks as the second.
    recipe = replace(recipe, accumulation=min(2, recipe.accumulation))
    with tempfile.TemporaryDirectory() as folder:
        planned.save(Path(folder) / "plan.json")
        path = Path(folder) / "recipe.json"
        path.write_text(json.dumps(recipe.as_data()), encoding="utf-8")
        command = ["python", "-m", "tutorial_lib.school.commands.plan", folder]
        result = emulate(command, card, torch, watch=False)
        if result.status:
            raise ValueError(
                f"The plan did not run on the emulated {card.name} "
                f"({human_bytes(card.memory)}): see above. {result.reason}"
            )
        peaks = json.loads((Path(folder) / "peaks.json").read_text(encoding="utf-8"))
        return {"card": card.name, **peaks}


def run_here(folder: Path) -> None:
    """Run a folder's recipe and plan on this process's GPU, and write the peaks beside them."""
    from tutorial_lib import memory
    from tutorial_lib.instruments.planning.chain.plan import Plan
    from tutorial_lib.instruments.planning.run.apply import apply

    recipe = Recipe(**json.loads((folder / "recipe.json").read_text(encoding="utf-8")))
    step, model, optimizer = recipe.make_step("cuda")
    apply(model, Plan.load(folder / "plan.json"))
    report = memory.measure(step, model=model, optimizer=optimizer)
    peaks = {f"{name}_bytes": int(getattr(report, f"{name}_bytes")) for name in _PEAKS}
    (folder / "peaks.json").write_text(json.dumps(peaks), encoding="utf-8")


if __name__ == "__main__":
    run_here(Path(sys.argv[1]))
