"""Show a training step's memory (random weights) without allocating it."""

import argparse
from typing import TYPE_CHECKING, Any

from tutorial_lib.school.commands.messages import sign_of_life
from tutorial_lib.school.commands.recipe_options import add_examples, add_step, fitting, step_of

if TYPE_CHECKING:
    from torch import nn


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_step(parser)
    add_examples(
        parser,
        "gpt2 --batch 8",
        "gpt2 --checkpointing per-block --fits 16GiB",
        "train.py:make_loss --batch 4 --by module",
        whole_step="It may return three things, step, model and optimizer: a whole step is "
        "predicted as it is.",
    )
    release = "PyTorch whose CUDA kernels and context to take, as in 2.13 (default: installed)"
    cards = "list all cards: whether it fits, and a list price"
    taken = "whose kernels the step takes"
    add = parser.add_argument
    add("--kernels", choices=["cuda", "cpu"], default="cuda", help=taken)
    add("--cards", action="store_true", help=cards)
    add("--torch", metavar="RELEASE", help=release)
    add("--seconds", metavar="CARD", help="say how long a step lasts on a card, as in h200")


def run(options: argparse.Namespace) -> int:
    """Predict the step's memory."""
    from tutorial_lib import memory
    from tutorial_lib.instruments.predicting.release import following
    from tutorial_lib.school.commands.show import seconds_on, show

    recipe = step_of(options)
    if options.seconds and recipe.ranks > 1:
        raise ValueError("--seconds times one rank's own work: leave out --ranks and --shard.")
    built: list[nn.Module] = []
    told = sign_of_life(f"Predicting {recipe.model}")
    with recipe.one_rank(), following(options.torch), told as tell:
        recipe = fitting(recipe, options, options.kernels, tell)

        def make_step() -> Any:
            tell("part 1 of 2: the model")
            made = recipe.make_step()
            built.append(made[1])
            tell("part 2 of 2: the step")
            return made

        report = memory.predict(
            make_step, kernels=options.kernels, label=recipe.label(), lines=options.by == "line"
        )
        if options.seconds:
            options.seconds = seconds_on(options.seconds, recipe)
    show(report, recipe, built[0], options)
    return 0
