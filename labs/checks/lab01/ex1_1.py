"""The check of 1.1: the bytes of a model's parameters."""

from tutorial_lib.checks.vocabulary import Case, Draw, Faults, Result, check, expect

from . import given
from .metered import Sizes, after_step, at_rest

_PASSED = "equal to the meter, with tied, frozen and half-precision weights"


def model_cases(draw: Draw) -> list[Case]:
    """Draw a model as it comes, and tied ones, in half precision and frozen in part."""
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


def _faults(case: Case, sizes: Sizes) -> Faults:
    parameters, buffers = sizes["parameters"], sizes["buffers"]
    untied = at_rest({**case, "tied": False})["parameters"]
    single = at_rest({**case, "dtype": "float32"})["parameters"]
    trained = after_step({**case, "optimizer": "sgd"})["gradients"]
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


@check(given.parameter_bytes, _PASSED, model_cases, oracle=at_rest)
def parameter_bytes(case: Case, result: Result, sizes: Sizes) -> None:
    name = "parameter_bytes(model)"
    expect.number_of_bytes(result["bytes"], sizes["parameters"], name, _faults(case, sizes))
