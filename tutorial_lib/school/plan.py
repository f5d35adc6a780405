"""`python -m tutorial_lib plan`: the fastest way to train a model within a memory budget."""

from __future__ import annotations

from typing import Annotated

import typer

from tutorial_lib.school.options import (
    AsJson,
    Named,
    Own,
    Ranks,
    Seq,
    Set,
    Sharding,
    Size,
    one_model,
    overrides,
)
from tutorial_lib.units import parse_bytes


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
    ranks: Ranks = 1,
    shard: Sharding = None,
    as_json: AsJson = False,
) -> None:
    """Find micro-batch, accumulation, checkpointing, precision and optimizer for a budget.

    Everything is predicted, on tensors without memory. Status 1 when nothing fits.
    """
    from tutorial_lib import plan as planning

    if ranks != 1 or shard is not None:
        raise ValueError(
            f"plan searches for one device, and --ranks {ranks} was asked for: predict one "
            f"rank instead, `predict MODEL --ranks {ranks} --shard {shard or 'fsdp'}`, with the "
            "--checkpointing and the --fits of your choice."
        )
    found = planning.fit(
        one_model(named, model),
        budget_bytes=parse_bytes(budget),
        effective_batch=effective_batch,
        seq=seq,
        size=size,
        overrides=overrides(changed),
        precisions=precision or planning.PRECISIONS,
        optimizers=optimizer or planning.OPTIMIZERS,
    )
    print(found.to_json() if as_json else found)
    if found.best is None:
        raise typer.Exit(1)
