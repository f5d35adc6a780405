"""The commands that need the library: `python -m tutorial_lib COMMAND`, without `lab` and `test`.

An error that the library foresees is one sentence on stderr and exit status 2; `--debug` shows
where it came from.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutorial_lib.instruments.training import Recipe
from tutorial_lib.school import teach
from tutorial_lib.school.emulate import on_cards
from tutorial_lib.school.options import AsJson, Fits, fitting, takes_a_recipe
from tutorial_lib.school.plan import plan
from tutorial_lib.school.said import foreseen, of_own_code, sequence_length, sign_of_life
from tutorial_lib.units import Bytes

if TYPE_CHECKING:
    from torch import nn

    from tutorial_lib.memory import MemoryReport

ROOT = Path(__file__).resolve().parent.parent.parent
DOCTOR_PACKAGES = (
    "torch", "numpy", "matplotlib", "transformers", "diffusers", "scikit-learn",
    "jupyterlab", "ipykernel", "ipywidgets", "nbval",
)  # fmt: skip

ROWS = 20  # of the table by module or line


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Held(enum.StrEnum):
    """By what the bytes at the peak may be told apart."""

    MODULE = "module"
    LINE = "line"


By = Annotated[
    Held | None,
    typer.Option(
        help="Say too which modules, or lines of code, hold it. What none of them made stands "
        "under its phase: (forward), (backward), (optimizer)."
    ),
]


class Kernels(enum.StrEnum):
    """Whose kernels a predicted step takes."""

    CUDA = "cuda"
    CPU = "cpu"


def run(words: Sequence[str]) -> int:
    """Run one command.

    Args:
        words: The command and its options; `--debug` may stand anywhere.

    Returns:
        0 when all went well, 1 when something was found wanting, 2 after an error.

    Raises:
        Exception: What the library did not foresee; with `--debug`, every error.
    """
    debug = "--debug" in words
    try:
        if words[:1] == ["measure"] and (status := on_cards(words)) is not None:
            return status
        app([word for word in words if word != "--debug"], prog_name="python -m tutorial_lib")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:
        sentence = foreseen(error)
        if sentence is None and any(":" in word for word in words):  # a function of the user's
            sentence = of_own_code(error)
        if debug or sentence is None:
            raise
        print(sentence, file=sys.stderr)
        return 2
    return 0


@app.callback()
def _commands() -> None:
    """Training that fits: measure, predict, grade and build."""


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show what this machine has: Python, GPU, versions, free disk."""
    facts = machine()
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    for name, value in facts.items():
        table.add_row(name, str(value))
    Console(highlight=False).print(table)


def machine() -> dict[str, str]:
    """Collect what a bug report needs to say about this machine.

    Returns:
        Words by name; no names of users or folders other than the Python in use.
    """
    from importlib import metadata

    from tutorial_lib import device
    from tutorial_lib.school import bootstrap

    best = device.pick()
    facts = {
        **bootstrap.facts(ROOT),
        "device": device.describe(best),
        "tier": device.tier(best).value,
        "bfloat16 in hardware": "yes" if device.supports_bfloat16(best) else "no",
    }
    for name in DOCTOR_PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts["torch"] = device.versions()["torch"]  # with the CUDA that it was built for
    return facts


def _show(
    report: MemoryReport, recipe: Recipe, network: nn.Module, by: Held | None, as_json: bool
) -> None:
    """Print a report as a table, or as JSON together with what was asked."""
    held = (
        {}
        if by is None
        else report.by(by.value, depth=_depth(report) if by == Held.MODULE else None)
    )
    applied = _applied(network, recipe.checkpointing)
    if as_json:
        from tutorial_lib.memory.report import as_data

        more: dict[str, Any] = {"forward_backward_bytes": report.forward_backward_bytes}
        more |= {"checkpointed": applied} if applied else {}
        more |= {f"by_{by}": held} if by else {}
        more["seq"] = recipe.seq or sequence_length(recipe)
        print(json.dumps(recipe.as_data() | as_data(report) | more, indent=1))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from tutorial_lib.memory.report import HOW, NOT_EMULATED
    from tutorial_lib.units import human_bytes, human_seconds

    changed = "".join(f", {name}={value}" for name, value in recipe.overrides.items())
    print(f"{recipe.label()}{changed}: {HOW[report.method]}, {report.device}")
    if recipe.seq is None and (length := sequence_length(recipe)):
        print(f"Sequences of {length} tokens, as --seq was left out.")
    if applied:
        print(applied)
    table = Table("held at the peak", box=box.SIMPLE, pad_edge=False)
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    for name, size in report.at_peak.items():
        if size:
            share = f"{size / report.peak_bytes:.0%}"
            table.add_row(name.replace("_", " "), human_bytes(size), share)
    table.add_section()
    table.add_row(f"peak of the whole step, in {report.peak_phase}", human_bytes(report.peak_bytes))
    forward_backward = human_bytes(report.forward_backward_bytes)
    table.add_row("peak of forward and backward alone", forward_backward)
    for phase, size in report.phases.items():
        words = "zero_grad" if phase == "zero" else phase
        table.add_row(f"  of {words}", human_bytes(size))
    if report.reserved_bytes is not None:
        table.add_row("reserved by the allocator", human_bytes(report.reserved_bytes))
    if report.method == "emulated":
        print(NOT_EMULATED)
    if report.seconds is not None:
        table.add_row("time of a step, median", human_seconds(report.seconds))
    Console(highlight=False).print(table)
    if by is not None:
        _show_held(held, by)
    if report.peak_phase == "optimizer":
        print("The update is the peak: no checkpointing lowers it, another --optimizer may.")


def _show_held(held: dict[str, Bytes], by: Held) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(f"held at the peak by {by}", box=box.SIMPLE, pad_edge=False)
    table.add_column("bytes", justify="right")
    for name, size in list(held.items())[:ROWS]:
        table.add_row(name, str(size))
    if len(held) > ROWS:
        rest = sum(list(held.values())[ROWS:], Bytes(0))
        table.add_row(f"{len(held) - ROWS} more", str(rest))
    Console(highlight=False, markup=False).print(table)


def _depth(report: MemoryReport) -> int:
    """Choose how much of modules' paths is told: as much as gives no more than the rows shown."""
    depth = 1
    while depth < 8 and len(report.by("module", depth=depth + 1)) <= ROWS:
        depth += 1
    return depth


def _applied(network: nn.Module, strategy: str) -> str:
    """Say what a strategy wraps; nothing where there is none."""
    from tutorial_lib.instruments import segments

    if strategy == "none":
        return ""
    with segments.applied(network, strategy) as applied:
        return str(applied)


@app.command()
@takes_a_recipe
def measure(
    recipe: Recipe,
    fits: Fits = None,
    by: By = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the best if left out")] = None,
    emulated: Annotated[str | None, typer.Option(help="Cards not there, as in t4,a100.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a real training step (random weights) and show its memory."""
    from tutorial_lib import device as devices
    from tutorial_lib import memory

    if recipe.shard is not None:
        raise ValueError(
            f"--ranks {recipe.ranks} cannot be measured in one process: ask `predict`, or measure "
            "on real ranks, as chapter 13 does."
        )
    where = devices.pick(device)
    if fits is not None:
        recipe = fitting(recipe, fits, "cpu" if where.type == "cpu" else "cuda")
    devices.seed_everything(0)
    step, network, update = recipe.make_step(where)
    more: dict[str, Any] = {"label": recipe.label(), "lines": by == Held.LINE, "repeats": 3}
    with sign_of_life(f"Measuring {recipe.model}"):
        report = memory.measure(step, model=network, optimizer=update, **more)
    _show(report, recipe, network, by, as_json)


@app.command()
@takes_a_recipe
def predict(
    recipe: Recipe,
    fits: Fits = None,
    by: By = None,
    kernels: Annotated[Kernels, typer.Option(help="Whose kernels the step is to take.")] = (
        Kernels.CUDA
    ),
    as_json: AsJson = False,
) -> None:
    """Show a training step's memory (random weights) without allocating it."""
    from tutorial_lib import memory

    built: list[nn.Module] = []

    def make_step() -> Any:
        made = recipe.make_step()
        built.append(made[1])
        return made

    with recipe.one_rank(), sign_of_life(f"Predicting {recipe.model}"):
        if fits is not None:
            recipe = fitting(recipe, fits, kernels.value)
        report = memory.predict(
            make_step, kernels=kernels.value, label=recipe.label(), lines=by == Held.LINE
        )
    _show(report, recipe, built[0], by, as_json)


for command in (plan, teach.grade, teach.build, teach.site, teach.new):
    app.command()(command)
