"""The world of lab 09's answers: the causes to choose from, and the halves that run them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from tutorial_lib.checks.given import Answer, Case, Result, answered, exam, observe, run_half
from tutorial_lib.checks.given.half import Run
from tutorial_lib.checks.given.surroundings import SWITCHES, watched
from tutorial_lib.checks.given.values import CheckError
from tutorial_lib.models.lstm import LSTM, LSTMConfig
from tutorial_lib.models.vit import ViT, ViTConfig

from ...lab06.given import models
from ...lab06.given.steps import sit_on_tokens
from . import steps
from .steps import take_step

# Each cause, and what an instrument shows where it is the one.
CAUSES = {
    "late binding": "one module runs more often than all others",
    "changed state": "every module runs twice, and the second run reads a different Python value",
    "random state": "a recomputation starts from a different random state than its forward",
    "counted twice": "a buffer is updated twice in one step",
    "frozen input": "a checkpoint's input needs no gradient, and its parameters get none",
    "not checkpointed": "checkpointing is on, but modules run only once; all get gradients",
    "nested checkpoints": "modules run three times per step",
    "one segment": "everything is recomputed at once; the peak is as high as without checkpoints",
    "kept graphs": "the graphs of all batches stay in memory",
    "unequal weights": "a target in one micro-batch counts more than a target in another",
    "not divided": "the gradient is too large; the factor is the number of micro-batches",
    "optimizer states": "memory rises in the first update, however small the batch is",
    "more traffic": "gradients are exchanged after every micro-batch",
    "precision": "in float64 the difference disappears",
}


def make_validation(case: Case) -> tuple[LSTM, list[Tensor]]:
    """Make the model and the batches of case G."""
    torch.manual_seed(case["seed"])
    lstm = LSTM(LSTMConfig(vocab_size=32, d_model=16)).double()
    shapes = [(2, 20), (1, 12), (3, 16), (2, 9), *[(2, 20)] * (case["seed"] % 4)]
    return lstm, [torch.randint(32, shape) for shape in shapes]


def validate(mended: Answer, case: Case) -> Result:
    """Run the function of case G."""
    lstm, batches = make_validation(case)
    kept, modes = list[Any](), list[bool]()
    first = next(module for module in lstm.modules() if not list(module.children()))
    first.register_forward_pre_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    with watched(lstm, only=SWITCHES) as changed:
        peak, left = observe.peak_above(lambda: kept.append(mended(lstm, batches)), lstm)
    seen = {"returned": kept[0], "peak": peak, "left": left, "changed": changed}
    return {**seen, "has_graph": any(modes)}


def make_window(case: Case) -> list[models.MicroBatch]:
    """Make the window of case H."""
    sizes = [1, 4, 2 + case["seed"] % 2, *[4] * 6]
    window = models.token_window(sizes, torch.Generator().manual_seed(case["seed"]))
    if case.get("empty"):  # a micro-batch without a target
        window[3][1].fill_(-100)
    return window


def _accumulate(mended: Answer, case: Case) -> Result:
    model, window = models.tiny_gpt(case["seed"]), make_window(case)
    optimizer = SGD(model.parameters(), lr=0.1)
    observe.fill_gradients(model)
    return models.train(lambda: mended(model, optimizer, window), model, optimizer)


def make_head_training(case: Case) -> tuple[ViT, list[models.MicroBatch]]:
    """Make the model and the batches of case J."""
    torch.manual_seed(case["seed"])
    vit = ViT(ViTConfig(num_layers=2 + case["seed"] % 2, num_heads=2, d_model=64)).double()
    return vit, models.image_window([2] * 3, torch.Generator().manual_seed(case["seed"]))


def _train_head(mended: Answer, case: Case) -> Result:
    vit, batches = make_head_training(case)
    returned: list[Any] = []
    with watched(vit, only=("grad mode", "modes")) as changed:
        peak, _ = observe.peak_above(lambda: returned.append(mended(vit, batches)), vit)
    parameters = observe.parameter_vector(vit)
    return {"returned": returned[0], "parameters": parameters, "peak": peak, "changed": changed}


_RUN: dict[str, Callable[[Answer, Case], Result]]
_RUN = {"G": validate, "H": _accumulate, "J": _train_head}


def run_mended(mended: Answer, case: Case) -> Result:
    """Run a mended function on fresh data."""
    return _RUN.get(case["case"], take_step)(mended, case)


def _run(returned: Any, case: Case, letters: str) -> Result:
    """Run the function of one finding among those that an answer returned."""
    cause, reading, mended = _finding(returned, case["case"], letters)
    return {"cause": cause, "reading": reading, **run_mended(mended, case)}


_KEPT = "What does your step keep until backward?"


def _finding(returned: Any, letter: str, letters: str) -> list[Any]:
    names = "cause, reading, mended function"
    finding = answered.several(answered.fields(returned, list(letters))[letter], 3, names)
    if not callable(finding[2]):
        raise CheckError(f"case {letter}: the third value should be your function.")
    return finding


def _exam(letter: str, letters: str, make: Callable[[Case], tuple[Any, Sequence[Any]]]) -> Run:
    """Make the exam of one case: of a step of its mended function."""

    def train(answer: Answer, model: nn.Module, optimizer: Optimizer, batch: Sequence[Any]) -> None:
        _finding(answer(), letter, letters)[2](model, optimizer, *batch)

    return exam.of_update(train, make, f"Case {letter} does not fit without checkpoints. {_KEPT}")


def _each(*sits: Run) -> Run:
    """Make one exam of several, one after the other."""

    def sit_all(answer: Answer, case: Case) -> Result:
        sat = [sit(answer, case) for sit in sits]
        return {"gradients": [gradient for one in sat for gradient in one["gradients"]]}

    return sit_all


def _exams(**models: Callable[[Case], tuple[Any, Sequence[Any]]]) -> Run:
    """Make the exam of an exercise from the models of its cases."""
    return _each(*(_exam(letter, "".join(models), make) for letter, make in models.items()))


def _sit_on_a_window(answer: Answer, *handed: Any) -> None:
    sit_on_tokens(_finding(answer(), "H", "GH")[2], *handed)


@run_half("9.1", exam=_exams(A=exam.make_gpt, B=steps.sit_lstm))
def changed_in_between(answer: Answer, case: Case) -> Result:
    return _run(answer(), case, "AB")


@run_half("9.2", exam=_exams(C=steps.sit_unet, D=steps.sit_resnet))
def repeated_work(answer: Answer, case: Case) -> Result:
    return _run(answer(), case, "CD")


@run_half("9.3", exam=_exams(E=steps.sit_frozen_gpt, F=steps.sit_library_vit))
def untrained_parts(answer: Answer, case: Case) -> Result:
    return _run(answer(), case, "EF")


def _large_validation(answer: Answer, case: Case) -> Result:
    lstm, (tokens, _) = steps.sit_lstm(case)
    mean = _finding(answer(), "G", "GH")[2](lstm, [tokens, tokens[:99, :50]])
    return {"gradients": [torch.tensor(mean)]}


_GRAPH = "Nothing goes backward in case G, so no graph is needed. What do you keep of a batch?"
_EXAMS_OF_WINDOWS = _each(
    exam.of(_large_validation, _GRAPH), exam.of_update(_sit_on_a_window, exam.make_gpt)
)


@run_half("9.4", exam=_EXAMS_OF_WINDOWS)
def memory_and_windows(answer: Answer, case: Case) -> Result:
    return _run(answer(), case, "GH")


@run_half("9.5", exam=_exams(I=steps.sit_vit))
def died_in_backward(answer: Answer, case: Case) -> Result:
    return _run(answer(), case, "I")


def _large_head(answer: Answer, case: Case) -> Result:
    torch.manual_seed(case["seed"])
    vit = ViT(ViTConfig(num_layers=4, num_heads=2, d_model=exam.WIDTH))
    images, labels = torch.randn(3, 2, 1, 8, 8), torch.randint(10, (3, 2))
    _finding(answer(), "J", "J")[2](vit, list(zip(images, labels, strict=True)))
    return {"gradients": [p.detach() for p in vit.head.parameters()]}  # after three updates


_HELD = "The weights are a third of that. For which weights does AdamW make states?"


@run_half("9.6", exam=exam.of(_large_head, _HELD))
def died_in_update(answer: Answer, case: Case) -> Result:
    return _run(answer(), case, "J")
