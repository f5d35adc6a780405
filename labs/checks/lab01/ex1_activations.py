"""The checks of 1.3 and 1.5: what autograd saves, and the peak of a training step."""

import itertools
from typing import Any

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .metered import OPTIMIZERS, make_optimizer

_PASSED_1_3 = "exactly the bytes that autograd saves"
_TOLERANCE = 0.02
_PASSED_1_5 = (
    f"five peaks predicted within {_TOLERANCE:.0%} of the meter, from one forward pass each"
)


def _cases_1_3(draw: Draw) -> Cases:
    a, b, c, d = draw.sample(range(6, 50), 4)
    rows, positions = draw.randint(3, 9), (3, 5, 6, 7)  # not 4, the bytes of an element
    free = [["relu"], ["gelu"], ["norm"], ["linear", b], ["linear", d]]
    chance = [["linear", a], *(draw.choice(free) for _ in range(7)), ["gelu"], ["linear", c]]
    for inner, end in (("relu", []), ("gelu", []), ("norm", [["relu"]])):
        yield {"layers": [["linear", b], [inner], ["linear", c], *end], "shape": [rows, a]}
    layers = [["linear", d], ["gelu"], ["linear", b]]
    yield {"layers": layers, "shape": [rows, draw.choice(positions), c]}
    yield {"layers": chance, "shape": [rows, draw.choice(positions), d]}


def saved_by(case: Case, *, weights: bool = False) -> int:
    """Count the bytes that autograd saves in a chain, with or without its weights."""
    chain, x = given.make_chain(case), torch.randn(case["shape"])
    return memory.saved(lambda: chain(x), params_of=None if weights else chain).num_bytes


def output_bytes(case: Case) -> list[int]:
    """Run a chain and give the size of each layer's output."""
    x = torch.randn(case["shape"])
    sizes = []
    for layer in given.make_chain(case):
        x = layer(x)
        sizes.append(x.nbytes)
    return sizes


@check(given.chain_saved_bytes, _PASSED_1_3, _cases_1_3, oracle=saved_by)
def chain_saved_bytes(case: Case, result: Result, saved: int) -> None:
    layers = ", ".join(" ".join(map(str, layer)) for layer in case["layers"])
    name = f"chain_saved_bytes for [{layers}] on {tuple(case['shape'])}"
    expect.number_of_bytes(result["bytes"], saved, name, _faults(case, saved))


def _faults(case: Case, saved: int) -> Faults:
    outputs, x = output_bytes(case), torch.empty(case["shape"]).nbytes
    all_of_it = x + sum(outputs)
    one_position = [case["shape"][0], case["shape"][-1]]

    def saved_with(old: str, new: str) -> int:
        swapped = [[new] if layer == [old] else layer for layer in case["layers"]]
        return saved_by({**case, "layers": swapped})

    no_number = saved_with("norm", "gelu")
    one_number = (saved + no_number) // 2
    rows, width, by_feature = torch.Size(case["shape"][:-1]).numel(), case["shape"][-1], saved
    for kind, *features in case["layers"]:
        width = features[0] if features else width
        by_feature += 4 * 2 * (width - rows) * (kind == "norm")

    yield from {
        "It is the number of elements: float32 takes four bytes.": saved // 4,
        "The input of the first layer is missing: its weight's gradient needs it.": saved - x,
        "Your number includes the weights: parameters are in memory whether autograd saves them or "
        "not.": saved_by(case, weights=True),
        "A ReLU costs nothing here: it keeps its output, not its input, and that output is the "
        "tensor that the next layer keeps. One storage counts once.": saved_with("relu", "gelu"),
        "A GELU isn't like a ReLU: its output doesn't determine its slope, so it keeps its "
        "input.": saved_with("gelu", "relu"),
        "LayerNorm keeps two numbers per row, and your sum has only one of them.": one_number,
        "LayerNorm keeps more than its input: what did it compute for each row?": no_number,
        "You counted LayerNorm's two numbers per feature: it normalises over a row's features, so "
        "there are two per row.": by_feature,
        "It is the sum of all outputs: autograd keeps what each backward needs, not what each "
        "layer returns.": sum(outputs),
        "It is the input and all outputs: who would need the output of the last layer?": all_of_it,
        "It is what one position of the sequence takes: every position of every sequence is a "
        "row.": saved_by({**case, "shape": one_position}),
    }.items()


def _cases_1_5(draw: Draw) -> Cases:
    gpt = {"vocab_size": draw.choice([768, 1024, 1280]), "seq_len": 64, "num_heads": 4}
    gpt |= {"num_layers": draw.randint(2, 3), "d_model": draw.choice([64, 96])}
    unet = {"base_channels": draw.choice([16, 24])}
    vgg = {"hidden": draw.choice([960, 1024, 1088])}
    mlp, rows = {"width": draw.choice([896, 1024, 1152])}, draw.randint(4, 6)
    # The update is the peak of the MLP, with AdamW's temporaries and without any: sums that take
    # everything fail there, whatever is drawn for the others.
    trainings: list[tuple[str, str, str, dict[str, Any], int]] = [
        ("mlp", "a wide MLP", "adamw", mlp, rows),
        ("mlp", "a wide MLP", draw.choice(["sgd", "momentum"]), mlp, rows),
        ("gpt", "a small GPT", draw.choice(OPTIMIZERS), gpt, draw.randint(4, 6)),
        ("unet", "a U-Net", draw.choice(OPTIMIZERS), unet, draw.randint(5, 8)),
        ("vgg", "a VGG", draw.choice(["sgd", "momentum"]), vgg, draw.randint(10, 16)),
    ]
    keys = ("kind", "title", "optimizer", "config", "batch")
    yield from (dict(zip(keys, training, strict=True)) for training in trainings)


def metered_step(case: Case) -> memory.MemoryReport:
    """Meter a steady training step of a case."""
    model, loss_fn = given.make_training(case)
    optimizer = make_optimizer(case["optimizer"], model.parameters())
    step = observe.training_step(loss_fn, optimizer)
    return memory.measure(step, model=model, optimizer=optimizer)


@check(given.predict_peak, _PASSED_1_5, _cases_1_5, oracle=metered_step)
def predict_peak(case: Case, result: Result, report: memory.MemoryReport) -> None:
    forwards = read.integer(result["forwards"], "calls of loss_fn")
    faults = {
        "gradients or new weights were left in the model: a backward or an update ran, and one "
        "forward pass is all that this exercise allows.": result["touched"] is not False,
        f"loss_fn was called {forwards} times: once is enough, inside memory.saved.": forwards > 1,
    }
    expect.no_fault(faults)
    seen = read.integer(result["peak"], f"the peak of {case['title']}")
    off = seen / report.peak_bytes - 1
    expect.close(
        seen,
        report.peak_bytes,
        _nearest_first(case, report, seen),
        otherwise=f"Within {_TOLERANCE:.0%} is needed. Its peak comes in the {report.peak_phase} "
        "phase: compare your terms with memory.measure's table, outside the function.",
        tolerance=_TOLERANCE,
        fault_tolerance=0.005,
        where=f"{case['title']} with {case['optimizer']}: off by {off:+.0%}. ",
    )


def _nearest_first(case: Case, report: memory.MemoryReport, seen: int) -> Faults:
    yield from sorted(_sums(case, report).items(), key=lambda fault: abs(fault[1] - seen))


def _sums(case: Case, report: memory.MemoryReport) -> dict[str, int]:
    """Return the sums that forget a term or take one too many, by words for each."""
    model, loss_fn = given.make_training(case)
    saved, with_weights = memory.saved(loss_fn, params_of=model), memory.saved(loss_fn)
    left = report.curve()[-1]
    gradients, state = left["gradients"], left["optimizer_state"]
    fixed = left["parameters"] + left["buffers"] + state
    kept, largest = saved.num_bytes, max(row.num_bytes for row in saved.rows)
    sums = {
        "It is only what autograd saves: add the parameters and the optimizer's state.": kept,
        "The optimizer's state is missing: it stays in memory all the time.": report.peak_bytes
        - state,
        "The buffers are missing: they stay in memory all the time.": report.peak_bytes
        - left["buffers"],
    }
    if case["kind"] == "vgg":
        return sums | _walks(model, saved, fixed, gradients)
    if report.at_peak["gradients"] < 0.9 * gradients:
        return sums | {
            "You added all of the parameters' gradients to all that autograd saves: at this peak, "
            "hardly any gradient exists yet.": report.peak_bytes + gradients,
            "You left out the gradients that flow through backward.": fixed + kept,
            "It is one tensor short: an operation's backward holds the saved tensor and two "
            "gradients, of its output and of its input.": fixed + kept + largest,
            "The largest gradients come late in backward: by then, part of what autograd saved has "
            "been freed.": fixed + kept + 2 * largest,
        }
    most = max(row.num_bytes for row in with_weights.rows)
    sums |= {
        "This model's peak isn't in backward: what is in memory during the update?": fixed
        + kept
        + largest,
        "The weights are counted twice, since autograd saves them too: pass params_of=model to "
        "memory.saved.": fixed + with_weights.num_bytes + 2 * most,
    }
    if case["optimizer"] != "adamw":
        temporaries = "AdamW's update makes temporaries, but SGD's makes none."
        return sums | {temporaries: fixed + 2 * gradients}
    return sums | {
        "You added all gradients to all activations, but in this model they are never in memory at "
        "once: the last gradients come when no activation is left.": fixed + gradients + kept,
        "Your number has all gradients and the state: which temporary tensors does AdamW's update "
        "make?": fixed + gradients,
    }


def _walks(
    model: nn.Module, saved: memory.SavedTensors, fixed: int, gradients: int
) -> dict[str, int]:
    """Return the peaks of walks that forget gradients, by words for each."""
    sizes, of_leaves = [row.num_bytes for row in saved.rows], _gradients_left(model)
    pairs = zip(itertools.accumulate(sizes), sizes, strict=True)
    walk = [still + 2 * size for still, size in pairs]
    there = [of_leaves.get(row.module, 0) for row in saved.rows]
    of_leaves_alone = max(map(sum, zip(walk, there, strict=True)))
    return {
        "Gradients are missing where a module contains modules, and so has no entry in "
        "gradients_left: there, take the value of the entry before.": fixed
        + max(of_leaves_alone, gradients),
        "Gradients of weights are missing in backward: here the largest layer comes first, so its "
        "gradient is in memory together with most of what was "
        "saved.": fixed + max(*walk, gradients),
    }


def _gradients_left(model: nn.Module) -> dict[str, int]:
    """Count the bytes of gradients there when backward comes to a module without modules."""
    leaves = [(name, module) for name, module in model.named_modules() if not [*module.children()]]
    sizes = [sum(parameter.nbytes for parameter in module.parameters()) for _, module in leaves]
    return {name: sum(sizes[place:]) for place, (name, _) in enumerate(leaves)}
