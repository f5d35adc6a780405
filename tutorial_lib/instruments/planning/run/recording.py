"""The first look at a loss: which stages it runs, in which calls of the model, and what they need.

A run is one call of the model by its loss, or of a part of the model that holds stages; a loss may
have several, as rollouts, recycling and siamese networks do. No segment reaches from one run into
the next, so that between two of them the chain has a stage of its own, which is never recomputed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib.device import seed_everything
from tutorial_lib.instruments.planning.chain.profiled import WHOLE, WITHIN, Call, results_in
from tutorial_lib.instruments.planning.run.find_stages import CannotPlanError, replaced
from tutorial_lib.instruments.private_torch import CALL, in_transform
from tutorial_lib.instruments.random_states import set_python_random_states
from tutorial_lib.instruments.segments.one_module import TRANSFORMED, refuses_hooks
from tutorial_lib.memory.private_torch import in_checkpoint
from tutorial_lib.memory.timeline import Life

Loss = Callable[[], Tensor]
BEFORE, AFTER = "(before)", "(after)"
_SEEDS = 16  # ten layers left out at 5%: all run in 60% of runs, and in 17 runs hardly ever


def containers(model: nn.Module, stages: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the modules with a forward that hold stages, by name; the model itself comes first."""
    names = dict.fromkeys(
        ".".join(parts[:count])
        for parts in (name.split(".") for name in stages)
        for count in range(len(parts))
    )
    if not stages:
        return {}
    found = {name: model.get_submodule(name) for name in ["", *names] if name not in stages}
    return {n: m for n, m in found.items() if type(m).forward is not nn.Module.forward}


def run_from(states: tuple[Any, ...], loss: Loss) -> Tensor:
    """Run a loss from these random states of Python and NumPy, and return its value."""
    set_python_random_states(states)
    return loss()


class Recorder:
    """Notes the calls of stages while a loss runs, and forgets what they save for backward."""

    def __init__(
        self, model: nn.Module, stages: dict[str, nn.Module], read: Callable[[], int] = lambda: 0
    ) -> None:
        self.model, self.stages, self.read = model, stages, read
        self.calls: list[Call] = []
        self.ends: list[int] = []  # what the clock shows before the first stage, and after each
        self.others = set[str]()  # stages that ran with other weights than their own
        self.own, self.has_hooks = "", False  # what of the model takes the tensors stages save
        self.draws = False  # random numbers of Python or NumPy
        self.lives: Sequence[Life] = ()  # of the storages meanwhile, where who runs it looks
        self._is_running = self._has_begun = False
        self._num_saved = 0
        # FSDP notes each forward with gradients, and waits for its backward
        self._is_sharded = any(hasattr(module, "reshard") for module in model.modules())
        self._weights = {name: _weights_of(module) for name, module in stages.items()}

    def run(self, loss: Loss) -> None:
        """Run a loss, and note what it does.

        Raises:
            CannotPlanError: When it differentiates inside, or runs no stage with gradients.
        """
        changes = replaced(self.stages, self._stage)
        changes.enter_context(replaced(containers(self.model, self.stages), self._whole, "forward"))
        if self._is_sharded:
            changes.enter_context(torch.no_grad())
        elif self.stages:  # `torch.func.grad` takes no hooks
            changes.enter_context(saved_tensors_hooks(self._save, _give_back))
        try:
            with changes:
                loss()
        except RuntimeError as error:
            if refuses_hooks(error):
                raise CannotPlanError(TRANSFORMED) from error
            raise
        self.ends.append(self.read())
        if not self.stages:
            return
        if not self.calls and self.others:
            raise CannotPlanError(
                f"The loss runs the stage {min(self.others)} with other tensors in place of its "
                "parameters (torch.func.functional_call), which a recomputation would not have. "
                "Put torch.utils.checkpoint around functional_call itself; or take smaller "
                "micro-batches."
            )
        if not self.calls:
            raise CannotPlanError(
                f"None of the stages {', '.join(list(self.stages)[:3])} ran with gradients. If the "
                "model checkpoints them with use_reentrant=True, pass False: a plan replaces "
                "checkpoints. If they are compiled (`block.compile()`), plan them uncompiled. If "
                "`loss` calls other modules, name them with stages=[...]."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stages, and of the parts before and after them."""
        if not self.stages:
            return (WHOLE,)
        return (BEFORE, *(call.name for call in self.calls), AFTER)

    def check_order(self, loss: Loss) -> None:
        """Refuse a loss in which random numbers of Python or NumPy decide which stages run."""
        for number in range(_SEEDS if self.stages else 0):
            seed_everything(number)
            other = Recorder(self.model, self.stages)
            other.run(loss)
            if other.names != self.names:
                raise CannotPlanError(
                    "Random numbers of Python or NumPy decide which stages the loss runs, but a "
                    f"plan needs the same ones each time ({len(self.calls)} in the first run). "
                    "Run every stage, and decide inside it, with torch, whether it adds something."
                )

    def divide(self, place: int) -> None:
        """End a run after so many calls, where the model needs the value of a tensor."""
        self.calls.insert(place, Call.between(WITHIN))
        self.ends.insert(place + 1, self.ends[place])

    def _save(self, tensor: Tensor) -> Any:
        self._num_saved += 1
        return None if self._is_running else tensor.detach()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        self._is_running, self._has_begun = True, False
        try:
            yield
        finally:
            self._is_running = False

    def _look_for_hooks(self, name: str) -> None:
        """Note a stage whose saved tensors go to the model's own checkpoint or hooks."""
        before = self._num_saved
        torch.empty(0, requires_grad=True).exp()
        if self._num_saved == before and not self._is_sharded and not self.own:
            self.has_hooks = not in_checkpoint(sys._getframe())
            self.own = (_HOOKS if self.has_hooks else _OWN).format(name)

    def _is_planned(self) -> bool:
        return self._is_sharded or torch.is_grad_enabled()

    def _whole(self, name: str, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def whole(*args: Any, **kwargs: Any) -> Any:
            is_noted = not self._is_running and self._is_planned()
            with self._running() if is_noted else contextlib.nullcontext():
                return forward(*args, **kwargs)

        return whole

    def _stage(self, name: str, module: nn.Module) -> Callable[..., Any]:
        function = getattr(module, CALL)

        def stage(*args: Any, **kwargs: Any) -> Any:
            is_other = not self._is_sharded and _weights_of(module) != self._weights[name]
            if is_other or not self._is_planned():
                self.others |= {name} if is_other else set()
                return function(*args, **kwargs)
            if in_transform():
                raise CannotPlanError(TRANSFORMED)
            with contextlib.nullcontext() if self._is_running else self._running():
                self._begin()
                before = {id(result) for result in results_in(module).values()}
                self._look_for_hooks(name)
                output = function(*args, **kwargs)
                self.ends.append(self.read())
                found = results_in(module).items()
                left = {at: result for at, result in found if id(result) not in before}
                self.calls.append(Call.of(name, module, output, left))
                return output

        return stage

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.calls += [Call.between()] if self.calls else []
            self.ends.append(self.read())


_OWN = (
    "The model checkpoints stages itself, as {}. A plan replaces these checkpoints: its recompute "
    "time is what it adds to a step without any."
)
_HOOKS = (
    "The model itself puts hooks on what stages save, as on {} (save_on_cpu, saved_tensors_hooks). "
    "A plan runs stages without them. Put them around the model's call in the loss: the plan "
    "keeps them there."
)
_INSIDE = (
    "This loss differentiates inside (torch.autograd.grad or backward through the model), as "
    "forces and gradient penalties do. No chain of stages describes what the inner derivative "
    "keeps, so no plan can price it. Checkpoint with segments.applied(model, 'per-block') around "
    "the step: memory.measure says whether it helps. Or take smaller micro-batches."
)


def _give_back(kept: Tensor | None) -> Tensor:
    if kept is None:
        raise CannotPlanError(_INSIDE)
    return kept


def has_own_weights(module: nn.Module) -> bool:
    """Tell whether all parameters are there, none replaced by a tensor (`functional_call`)."""
    return all(isinstance(weight, nn.Parameter) for weight in module.parameters())


def _weights_of(module: nn.Module) -> list[int]:
    return [id(parameter) for parameter in module.parameters()]
