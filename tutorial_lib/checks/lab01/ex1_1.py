"""The check of 1.1: the bytes of a model's parameters."""

from __future__ import annotations

import random

from tutorial_lib.checks import expect
from tutorial_lib.checks.core import Answer, Case, Check, Result
from tutorial_lib.checks.lab01 import models


def model_cases(seed: int) -> list[Case]:
    """Draw a model as it comes, and tied ones, in half precision and frozen in part."""
    draw = random.Random(seed)
    first, second, third = draw.sample(range(8, 40), 3)
    vocab = draw.randint(50, 90)
    plain = {"vocab": vocab, "widths": [first, second, third], "dtype": "float32"}
    plain |= {"tied": False, "frozen": [], "norm": False}
    tied = plain | {"widths": [first, second, third, first], "tied": True}
    # Tied, and with buffers: here a state_dict gives a number of its own.
    return [
        plain,
        tied | {"norm": True},
        tied | {"dtype": draw.choice(["bfloat16", "float16"]), "norm": True},
        tied | {"frozen": draw.sample(range(3), draw.randint(1, 2)), "dtype": "float64"},
    ]


def _run(answer: Answer, case: Case) -> Result:
    model = models.TiedEmbeddingModel(case)
    return {"bytes": answer(model)}


def _judge(case: Case, result: Result, sizes: models.Sizes) -> None:
    seen, name = result.get("bytes"), "parameter_bytes(model)"
    expect.number_of_bytes(seen, sizes["parameters"], name, _faults(case, sizes))


def _faults(case: Case, sizes: models.Sizes) -> expect.Faults:
    parameters, buffers = sizes["parameters"], sizes["buffers"]
    untied = models.at_rest({**case, "tied": False})["parameters"]
    single = models.at_rest({**case, "dtype": "float32"})["parameters"]
    trained = models.after_step({**case, "optimizer": "sgd"})["gradients"]
    yield from {
        "It is the number of elements: one element takes several bytes.": single // 4,
        "It is what four bytes for every element give: ask each tensor for its dtype.": single,
        "The tied matrix is in it twice: a weight that two modules share is stored once.": untied,
        "Buffers are in it: a BatchNorm's running averages are no parameters.": parameters
        + buffers,
        "It is the state_dict's size, which lists buffers, and a shared weight under each of its "
        "names.": untied + buffers,
        "Frozen parameters are missing: they get no gradient, and lie in memory all the "
        "same.": trained,
    }.items()


parameter_bytes = Check(
    "lab01.parameter_bytes",
    "1.1",
    "equal to the meter, with tied, frozen and half-precision weights",
    model_cases,
    _run,
    _judge,
    oracle=models.at_rest,
    forbidden=[models.NO_METER],
)
