"""A profiled model as data: the calls of its stages, and the chain that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tutorial_lib.instruments.planning.chain.stages import Skip, Stage
from tutorial_lib.instruments.private_torch import without_modes
from tutorial_lib.instruments.segments.structure import hidden, list_leaves, map_leaves
from tutorial_lib.units import human_bytes, human_seconds

Method = Literal["measured", "predicted"]
WHOLE = "(whole step)"  # the one stage of a step that no plan takes apart
# Between two calls of the model, and inside one call where the model needs a tensor's value.
BETWEEN, WITHIN = "(between)", "(value)"


@dataclass(frozen=True)
class Call:
    """One call of a stage, its module and the form of its output; or the work between runs."""

    name: str  # path of the module
    kind: tuple[str, int]  # class of the module, and how many parameters it has
    output: Any  # each tensor in it without memory
    matmuls: int = 0  # those before the last tensor that its backward needs
    # results that it leaves in attributes, by path and name: they come second in `output` then
    attributes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls, name: str, module: nn.Module, output: Any, left: Mapping[tuple[str, str], Tensor] = {}
    ) -> Call:
        """Note a call and the form of its output, with the results that it left in attributes.

        Raises:
            ValueError: When the output is an object of the user's own class with tensors in it.
        """
        if (holder := hidden(Tensor, output)) is not None:
            raise ValueError(
                f"The stage {name} returns a {holder} with tensors among its attributes, but a "
                "plan must know them: return a tensor, or a tuple, dict or dataclass of tensors."
            )
        output = (output, [*left.values()]) if left else output
        form = map_leaves(Tensor, _without_memory, output)
        return cls(name, kind_of(module), form, attributes=tuple(left))

    @classmethod
    def between(cls, name: str = BETWEEN) -> Call:
        """Return a call for the work between two runs: calls of the model, or parts of one."""
        return cls(name, ("nothing", 0), None)

    @property
    def is_between(self) -> bool:
        """Whether it is the work between two runs, not a stage of the model."""
        return self.name in (BETWEEN, WITHIN)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of the output, without their memory."""
        return list_leaves(Tensor, self.output)

    def between_samples(self, other: Call, samples: int) -> Call:
        """Continue the line through the shapes of one sample and of two, the other call's."""

        def continued(one: Tensor, two: Tensor) -> Tensor:
            pairs = zip(one.shape, two.shape, strict=True)
            shape = [max(0, first + (second - first) * (samples - 1)) for first, second in pairs]
            return one.new_empty(()).as_strided(shape, [0] * len(shape))

        tensors = map(continued, self.tensors, other.tensors)
        return replace(self, output=self.filled(list(tensors)))

    @property
    def constants(self) -> list[Any]:
        """The numbers and text in the output, which no recomputation may change."""
        return list_leaves((bool, int, float, str), self.output)

    def filled(self, results: Sequence[Any]) -> Any:
        """Return an output of this form with other values in place of its tensors."""
        rest = iter(results)
        return map_leaves(Tensor, lambda _: next(rest), self.output)

    def given(self, module: nn.Module, output: Any) -> Any:
        """Return what a module's call gave, results in its attributes included, in this form."""
        held = [getattr(module.get_submodule(path), name) for path, name in self.attributes]
        return (output, held) if held else output

    def handed_out(self, module: nn.Module, results: Sequence[Any]) -> Any:
        """Return an output with these tensors; those for attributes are put there."""
        if not self.attributes:
            return self.filled(results)
        output, left = self.filled(results)
        for (path, name), result in zip(self.attributes, left, strict=True):
            vars(module.get_submodule(path))[name] = result
        return output


def results_in(module: nn.Module) -> dict[tuple[str, str], Tensor]:
    """Return the results of operations that a module has in attributes, by path and name.

    A weight that `weight_norm` makes anew for each call is none.
    """
    return {
        (path, name): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor) and value.grad_fn is not None
        if not any(key.startswith(f"{name}_") for key, _ in part.named_parameters(recurse=False))
    }


def _without_memory(leaf: Tensor) -> Tensor:
    with without_modes():  # a fake tensor could not go to another process
        empty = torch.empty((), dtype=leaf.dtype, device="meta")
        return empty.as_strided(leaf.shape, [0] * leaf.dim())


def kind_of(module: nn.Module) -> tuple[str, int]:
    """Describe a module so that another model's is told from it."""
    return type(module).__name__, sum(parameter.numel() for parameter in module.parameters())


def check_same_model(model: nn.Module, calls: Sequence[Call]) -> None:
    """Refuse a model that a plan was not made for: a stage is missing, or another module."""
    modules = dict(model.named_modules())
    for call in (call for call in calls if not call.is_between):
        there = kind_of(modules[call.name]) if call.name in modules else None
        if there != call.kind:
            seen = "nothing" if there is None else f"{there[0]} with {there[1]} parameters"
            raise ValueError(
                f"The plan was made for another model: its stage {call.name} is {call.kind[0]} "
                f"with {call.kind[1]} parameters, and {type(model).__name__} has {seen} there. "
                "Profile this model and solve again."
            )


@dataclass(frozen=True)
class Profile:
    """A model as a chain, for `solve` and `apply`."""

    # what the model does before its first stage, its stages as it calls them, and what it does
    # after them, loss included. The first and the last are never recomputed
    stages: tuple[Stage, ...]
    skips: tuple[Skip, ...]  # what jumps over stages
    names: tuple[str, ...]
    # the stages without the first and the last. Where the loss calls its model several times, what
    # it does between two of these calls is among them, and never recomputed
    calls: tuple[Call, ...]
    # `measured` where seconds come from this device, `predicted` where they are a roofline's, on
    # tensors without memory. Bytes are counted in both
    method: Method
    device: str
    # operations of a forward and a backward without recomputation, views left out
    launches: int = 0
    why_whole: str = ""  # why the step is one stage that is never recomputed, where it is
    replaced: str = ""  # what of the model's own a plan takes the place of, in words, where it does

    def __str__(self) -> str:
        head = f"{len(self.stages)} stages, {len(self.skips)} skips ({self.method}, {self.device})"
        columns = f"  {'':<28}{'input':>10}{'saved':>10}{'forward':>10}{'backward':>10}"
        rows = [
            f"  {name[-28:]:<28}{human_bytes(s.input_bytes):>10}{human_bytes(s.saved_bytes):>10}"
            f"{human_seconds(s.forward_seconds):>10}{human_seconds(s.backward_seconds):>10}"
            for name, s in zip(self.names, self.stages, strict=True)
        ]
        return "\n".join([head, columns, *rows])

    __repr__ = __str__
