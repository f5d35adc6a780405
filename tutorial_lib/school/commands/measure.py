"""Run a real training step (random weights) and show its memory."""

import argparse

from tutorial_lib.school.commands.messages import sign_of_life
from tutorial_lib.school.commands.recipe_options import add_examples, add_step, fitting, step_of


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_step(parser)
    add_examples(
        parser,
        "gpt2 --seq 128",
        "train.py:make_loss --batch 4 --by line",
        "train.py:make_loss --emulated t4",
        whole_step="It may return three things, step, model and optimizer: a whole step is "
        "measured as it is.",
    )
    parser.add_argument("--device", help="cpu, cuda, ...; the best if left out")
    parser.add_argument("--emulated", metavar="CARDS", help="cards not there, as in t4,a100")


def run(options: argparse.Namespace) -> int:
    """Measure the step here, or on each emulated card."""
    if options.emulated:
        from tutorial_lib.school.commands.emulate import on_cards

        return on_cards("measure", options)
    from tutorial_lib import device as devices
    from tutorial_lib import memory
    from tutorial_lib.school.commands.show import show

    recipe = step_of(options)
    if recipe.shard is not None:
        raise ValueError(
            f"--ranks {recipe.ranks} cannot be measured in one process: ask `predict`, or measure "
            "on real ranks, as chapter 13 does."
        )
    where = devices.pick(options.device)
    lines = options.by == "line"
    with sign_of_life(f"Measuring {recipe.model}") as tell:
        recipe = fitting(recipe, options, "cpu" if where.type == "cpu" else "cuda", tell)
        devices.seed_everything(0)
        step, network, update = recipe.make_step(where)
        report = memory.measure(
            step, model=network, optimizer=update, label=recipe.label(), lines=lines, repeats=3
        )
    show(report, recipe, network, options)
    return 0
