"""Pull a chapter's lever in train.py: what *Your run*, at the end of a core chapter, calls.

    python course/train/your_run.py

predicts the update after each chapter's lever anew, and writes what it finds to bars.json.
"""

import inspect
import json
import traceback
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import states
import torch
import train
from torch import nn

from tutorial_lib import blanks, data, device, memory, plots
from tutorial_lib.checks import CheckError, assert_same_training
from tutorial_lib.instruments import ranks
from tutorial_lib.units import GIB

BARS = Path(__file__).with_name("bars.json")
CARDS = {
    "T4": "Tesla T4",
    "A100": "NVIDIA A100-SXM4-80GB",
    "H100": "NVIDIA H100 80GB HBM3",
}
ROWS = next(data.text_batches(train.BATCH, train.TWIN.seq_len))  # (batch, sequence)
# The same, and most rows end in padding: of 12 rows the first has 64 tokens, the last 9.
RAGGED = ROWS.where(torch.arange(64) < torch.arange(64, 4, -5)[:, None], 0)


def make_step():
    """Return a step of the full size, its model and its optimizer, for `memory.predict`."""
    model, optimizer = train.make(train.MEDIUM)
    tokens = torch.ones(train.BATCH, train.MEDIUM.seq_len, dtype=torch.long)
    return partial(train.update, model, optimizer, tokens), model, optimizer


def predicted(functions, num_ranks=1):
    """Return what an update of the full size takes, with these functions in train.py.

    It has the bytes by category at the peak, the TFLOP, and the seconds on each card, launches too.
    """
    from tutorial_lib.instruments.planning.run.roofline import Roofline, Speed

    speeds = [replace(Speed.of(name), matmul_flops=None) for name in CARDS.values()]  # with TF32
    lines = dict(zip(CARDS, map(Roofline, speeds), strict=True))
    one_of_them = ranks.pretend(num_ranks) if num_ranks > 1 else nullcontext()
    with one_of_them, patch.dict(vars(train), functions):
        report = memory.predict(make_step)
        with memory.predicting(), memory.flop_counter() as counter, ExitStack() as modes:
            step, *_ = make_step()
            for line in lines.values():
                modes.enter_context(line)
            step()
    seconds = {card: round(line.elapsed, 3) for card, line in lines.items()}
    tera = round(counter.get_total_flops() / 1e12, 2)
    return {"at_peak": report.at_peak, "TFLOP": tera, "seconds": seconds}


def prove(functions, tokens, *, bitwise=False):
    """Train the twin as train.py does, and with these functions; raise an error if they differ."""

    def step(functions, model, optimizer):
        with patch.dict(vars(train), functions):
            return train.update(model, optimizer, tokens)

    makers = iter([train.make, functions.get("make", train.make)])
    steps = partial(step, {}), partial(step, functions)
    assert_same_training(*steps, make=lambda: next(makers)(train.TWIN), bitwise=bitwise)


@contextmanager
def told_in_a_sentence(functions):
    """Say in a sentence at which line of these functions an error comes up."""
    codes = [inspect.unwrap(function).__code__ for function in functions.values()]
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename in {code.co_filename for code in codes}]
        if not own or isinstance(error, CheckError):
            raise
        name, line = Path(own[-1].filename).name, own[-1].lineno
        where = "its cell" if "ipykernel" in own[-1].filename else name
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise blanks.FillingError(
            f"{own[-1].name} stopped at {why}, in line {line} of {where}: {own[-1].line}"
        ) from error


def trained(functions, tokens):
    """Train the twin for two updates; return losses, the first one's gradient, and weights."""
    with patch.dict(vars(train), functions):
        model, optimizer = train.make(train.TWIN)
        losses = [train.update(model, optimizer, tokens).item()]
        gradient = nn.utils.parameters_to_vector(p.grad for p in model.parameters())
        losses.append(train.update(model, optimizer, tokens).item())
    weights = nn.utils.parameters_to_vector(model.parameters())
    return torch.tensor(losses), gradient.detach().clone(), weights.detach()


def on_a_rank(chapter, yours, tokens):
    """Train the twin on a rank, with the levers before a chapter and your functions."""
    return trained(states.functions_before(chapter) | yours, tokens)


def prove_on_ranks(chapter, yours, tokens):
    """Train the twin on real processes; raise an error if it differs from train.py's training."""
    losses, gradient, _ = trained({}, tokens)
    with ranks.start(states.RANKS[chapter]) as group:
        try:
            found = group.run(on_a_rank, chapter, yours, tokens)
        except RuntimeError as error:  # what a rank says begins with a sentence
            raise blanks.FillingError(str(error).splitlines()[0]) from error
    for rank, (theirs, seen, weights) in enumerate(found):
        off = float((seen - gradient).norm() / gradient.norm())
        if off > 1e-5:  # sums of float32 in another order
            raise CheckError(f"Rank {rank}: the gradient is off by {off:.1%} of train.py's.")
        if not torch.allclose(theirs, losses, atol=1e-4):
            raise CheckError(f"Rank {rank} has losses {theirs.tolist()}, not {losses.tolist()}.")
        if not torch.equal(weights, found[0][2]):
            raise CheckError(f"After two updates rank {rank} has other weights than rank 0.")
    print(f"the same training on {len(found)} processes, within rounding")


def measure(functions):
    """Run the update on the GPU, and print what it took, or that it did not fit."""
    place, matmul = device.pick(), torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, True  # as train.py has it
    try:
        with patch.dict(vars(train), functions), place:
            step, model, optimizer = make_step()
            report = memory.measure(step, model=model, optimizer=optimizer, repeats=3)
    except torch.OutOfMemoryError:
        print(f"{device.describe(place)}: the update does not fit.")
    else:
        took = f"{report.peak_bytes / GIB:.1f} GiB, {report.seconds:.2f} s"
        print(f"{device.describe(place)}, measured: {took}")
    finally:
        matmul.allow_tf32 = before


def peak_bytes(chapter):
    """Return the bytes at the peak of the update after a chapter, as predicted."""
    bars = json.loads(BARS.read_text(encoding="utf-8"))
    return sum(bars[chapter]["at_peak"].values())


def draw(bars):
    """Return the figure of some bars, of the form of bars.json, by chapter."""
    labels = {chapter: f"{chapter} {states.CHAPTERS[chapter][0]}" for chapter in bars}
    below = {
        chapter: f"\n{bar['TFLOP']:.1f} TFLOP; s: "
        + ", ".join(f"{card} {seconds:.2f}" for card, seconds in bar["seconds"].items())
        for chapter, bar in bars.items()
    }
    ledgers = {labels[chapter] + below[chapter]: bar["at_peak"] for chapter, bar in bars.items()}
    title = "One update of 12 x 1024 tokens, predicted"
    figure = plots.ledger_bars(ledgers, title=title, cards_gib=(8, 16, 24), predicted=[*ledgers])
    (axes,) = figure.axes
    axes.set_xlim(right=36)  # GiB: the longest bar, with its number beside it
    each = (
        f"{labels[chapter]} {sum(bar['at_peak'].values()) / GIB:.1f} GiB, {bar['TFLOP']:.1f} TFLOP"
        for chapter, bar in bars.items()
    )
    figure.alt = f"Bars by chapter. {title}: {'; '.join(each)}. Cards of 8, 16, 24 GiB are marked."
    return figure


def apply(chapter, to=None, **yours):
    """Put your functions into train.py, on top of the levers of the chapters before.

    First a twin trains with them as it does with train.py as written. Then one update of the full
    size is predicted, and on a GPU measured, too.

    Args:
        chapter: Number of the chapter, as in "05".
        to: Your script, as "my_train.py". Your functions take the place of its own, and what it
            was is kept as "my_train.before.py". If there is none, it's train.py with the levers up
            to this chapter.
        yours: Your functions, by their names in train.py.

    Returns:
        The figure of all bars so far.

    Raises:
        ValueError: When another function is needed than is there.
        CheckError: When the training is not the same.
        AssertionError: When a function stops: at which line, and why.
    """
    if chapter not in states.CHAPTERS:
        known = ", ".join(states.CHAPTERS)
        raise ValueError(f"Chapter {chapter} has no lever: name one of {known}.")
    label, names = states.CHAPTERS[chapter]
    if {*yours} != {*names}:
        needed = " and ".join(names) or "no function"
        raise ValueError(
            f"Chapter {chapter} needs {needed}, and got {', '.join(yours) or 'none'}: "
            f"call it as apply({chapter!r}, {', '.join(f'{n}={names[n]}' for n in names)})."
        )
    order = [*states.CHAPTERS]
    earlier = order[: order.index(chapter)]
    functions = states.functions_before(chapter) | yours
    tokens = RAGGED if chapter not in order[: order.index("09")] else ROWS
    num_ranks = states.RANKS.get(chapter, 1)
    with told_in_a_sentence(yours):
        if num_ranks > 1:
            prove_on_ranks(chapter, yours, tokens)
        elif functions:  # up to chapter 08, sums keep their order
            prove(functions, tokens, bitwise="update" not in functions)
    if to:
        own = Path(to).exists()
        states.write(to, states.script(yours if own else functions, *[to] * own))
    with told_in_a_sentence(yours):
        bar = predicted(functions, num_ranks)
    gib = sum(bar["at_peak"].values()) / GIB
    print(f"{label}: {gib:.1f} GiB, {bar['TFLOP']:.1f} TFLOP, predicted")
    if device.has_gpu() and num_ranks == 1:
        measure(functions)
    known = json.loads(BARS.read_text(encoding="utf-8"))
    return draw({each: known[each] for each in earlier} | {chapter: bar})


if __name__ == "__main__":
    found = {
        chapter: predicted(states.functions_after(chapter), states.RANKS.get(chapter, 1))
        for chapter in states.CHAPTERS
    }
    BARS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
