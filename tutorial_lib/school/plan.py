"""`python -m tutorial_lib plan`: the fastest way to train a model within a memory budget."""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutorial_lib.instruments.training import Recipe
from tutorial_lib.school.options import (
    AsJson,
    Lora,
    Named,
    Own,
    Ranks,
    Seq,
    Set,
    Sharding,
    Size,
    lora_rank,
    one_model,
    overrides,
)
from tutorial_lib.school.said import sequence_length, sign_of_life
from tutorial_lib.units import human_bytes, parse_bytes

if TYPE_CHECKING:
    from tutorial_lib.instruments.emulated.cards import Card
    from tutorial_lib.instruments.planning.fitting.candidates import Fit

ROOT = Path(__file__).resolve().parent.parent.parent


def plan(
    budget: Annotated[str, typer.Option(help="Memory for all of it, as in 16GiB.")],
    effective_batch: Annotated[int, typer.Option(help="Samples for each update.")],
    named: Named = None,
    model: Own = None,
    seq: Seq = None,
    size: Size = None,
    changed: Set = None,
    precision: Annotated[list[str] | None, typer.Option(help="One to try; may repeat.")] = None,
    optimizer: Annotated[list[str] | None, typer.Option(help="One to try; may repeat.")] = None,
    lora: Lora = None,
    ranks: Ranks = 1,
    shard: Sharding = None,
    emulated: Annotated[str | None, typer.Option(help="Cards to run the plan on: t4,a100.")] = None,
    save: Annotated[Path | None, typer.Option(help="File for the plan, for Plan.load.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find micro-batch, accumulation, checkpointing, precision and optimizer for a budget.

    Everything is predicted, without memory; times are an A100's. Status 1 when nothing fits. Tried
    are bf16-amp and bf16, adamw-fused and adamw-8bit. A function of your own takes micro_batch, and
    gives loss (a function that runs forward) and model: no whole step.
    """
    from tutorial_lib.instruments.emulated.cards import find_card
    from tutorial_lib.instruments.planning.fitting.search import PRECISIONS, fit

    cards = [find_card(key) for key in emulated.split(",")] if emulated else []
    recipe = Recipe(
        one_model(named, model),
        seq=seq,
        size=size,
        overrides=overrides(changed),
        lora_rank=lora_rank(lora),
        ranks=ranks,
        shard=shard,
    )
    _refuse_no_folder(save)
    if cards and recipe.shard is not None:
        raise ValueError(f"--emulated runs one process, and --ranks {ranks} was asked for.")
    refuse_whole_step(recipe)
    with sign_of_life(f"Planning {recipe.model}"):
        found = fit(
            recipe,
            budget_bytes=parse_bytes(budget),
            effective_batch=effective_batch,
            precisions=precision or PRECISIONS,
            optimizers=optimizer,
        )
    rows = [_on_card(found, card) for card in cards if found.best]
    if as_json:
        print(json.dumps(found.as_data() | ({"emulated": rows} if rows else {}), indent=1))
    else:
        _show(found, rows)
    if found.best is None or found.best.plan is None:
        raise typer.Exit(1)
    if save is not None:
        found.best.plan.save(save)
        if not as_json:
            load = f"planning.Plan.load({str(save)!r})"
            print(f"In a script that trains as the first row: planning.apply(model, {load})")


def _refuse_no_folder(save: Path | None) -> None:
    if save is not None and not save.parent.is_dir():
        raise ValueError(f"--save {save}: there is no folder {save.parent}. Make it first.")


def _show(found: Fit, rows: Sequence[dict[str, str | int]]) -> None:
    print(found)
    if found.best:
        print("Times are predicted, for an A100.")
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
            raise ValueError(
                "plan needs a function that takes micro_batch, and gives loss (a function that "
                f"runs forward) and model. {error}"
            ) from error


_PEAKS = ("requested", "peak", "reserved")


def _on_card(found: Fit, card: Card) -> dict[str, str | int]:
    """Run the best plan on an emulated card, and give the peaks of PyTorch's allocator."""
    from tutorial_lib.instruments.emulated import environment, run

    torch = environment.find_cuda_torch(ROOT)
    assert found.best is not None
    recipe = found.recipe_of(found.best)
    recipe = replace(
        recipe, accumulation=min(2, recipe.accumulation)
    )  # a third peaks as the second
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan"
        path.write_bytes(pickle.dumps((recipe, found.best.plan)))
        command = ["python", "-m", "tutorial_lib.school.plan", str(path)]
        result = run.emulate(command, card, torch, watch=False)
        if result.status:
            raise ValueError(
                f"The plan did not run on the emulated {card.name} "
                f"({human_bytes(card.memory)}): see above. {result.reason}"
            )
        return {"card": card.name, **json.loads(path.read_text(encoding="utf-8"))}


def run_here(path: Path) -> None:
    """Run a pickled recipe and plan on this process's GPU, and write the peaks in its place."""
    from tutorial_lib import memory
    from tutorial_lib.instruments.planning.run.apply import apply

    recipe, found = pickle.loads(path.read_bytes())  # written by `_on_card`, in our own folder
    step, model, optimizer = recipe.make_step("cuda")
    apply(model, found)
    report = memory.measure(step, model=model, optimizer=optimizer)
    peaks = {f"{name}_bytes": int(getattr(report, f"{name}_bytes")) for name in _PEAKS}
    path.write_text(json.dumps(peaks), encoding="utf-8")


if __name__ == "__main__":
    run_here(Path(sys.argv[1]))
