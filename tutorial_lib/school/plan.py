"""`python -m tutorial_lib plan`: the fastest way to train a model within a memory budget."""

from __future__ import annotations

from typing import Annotated

import typer

from tutorial_lib.units import parse_bytes


def plan(
    model: Annotated[str, typer.Argument(help="A published model, as in gpt2 or sd15-unet.")],
    budget: Annotated[str, typer.Option(help="Memory for all of it, as in 16GiB.")],
    effective_batch: Annotated[int, typer.Option(help="Samples for each update.")],
    seq: Annotated[int | None, typer.Option(help="Tokens in a sequence.")] = None,
    size: Annotated[int | None, typer.Option(help="Image height and width; of latents.")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="One to try; may repeat.")] = None,
    optimizer: Annotated[list[str] | None, typer.Option(help="One to try; may repeat.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find micro-batch, accumulation, checkpointing, precision and optimizer for a budget.

    Everything is predicted, on tensors without memory. Status 1 when nothing fits.
    """
    from tutorial_lib import plan as planning

    found = planning.fit(
        model,
        budget_bytes=parse_bytes(budget),
        effective_batch=effective_batch,
        seq=seq,
        size=size,
        precisions=precision or planning.PRECISIONS,
        optimizers=optimizer or planning.OPTIMIZERS,
    )
    print(found.to_json() if as_json else found)
    if found.best is None:
        raise typer.Exit(1)
