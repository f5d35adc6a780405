"""Run a model by a plan, and restore it."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.instruments import segments
from tutorial_lib.instruments.planning.chain.moves import Move
from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.planning.chain.profiled import WHOLE, WITHIN, Call, check_same_model
from tutorial_lib.instruments.planning.run.find_stages import CannotPlanError, replaced, run_stage
from tutorial_lib.instruments.planning.run.matmuls import selective
from tutorial_lib.instruments.planning.run.moving import Moving
from tutorial_lib.instruments.planning.run.recording import containers, has_own_weights
from tutorial_lib.instruments.private_torch import CALL
from tutorial_lib.instruments.segments.deferred import DeferredRun
from tutorial_lib.instruments.segments.execution import Execution, Observe, Values
from tutorial_lib.instruments.segments.placeholder import (
    DeferredTensor,
    deferring_functions,
    tensors_of,
    with_values,
)
from tutorial_lib.instruments.segments.tree import Tree, leaves
from tutorial_lib.memory.private_torch import in_backward

_ADVICE = (
    "A plan's stages run later, together, but the model needs a value between two of them. Name "
    "stages that are called one after the other with `stages=`, or larger ones."
)
# The attribute of a model that puts it back: held by the model, it goes when the model goes.
_PUT_BACK = "_without_plan"


def apply(model: nn.Module, plan: Plan) -> nn.Module:
    """Make a model run by a plan from now on, in training.

    Gradients are the same, bit for bit, dropout included, as long as no recomputed stage reads what
    it changes: `profile` refuses such a stage, and `fit` keeps it. A model of two towers, as T5,
    draws dropout in a different order if it draws some between them. What a stage changes besides
    its output, it changes each time it runs: BatchNorm's running averages move with every
    recomputation. Its hooks run as often. Without gradients, as in evaluation, the model runs as
    before.

    Args:
        model: The one that was profiled, or one like it.
        plan: Made from a profile. It replaces one that was applied before.

    Returns:
        The model.

    Raises:
        ValueError: When the plan was made for another model, or recomputes what lies before or
            after the stages; the model is as before.
        RuntimeError: In a forward, when the model does not call the stages as it was profiled.
    """
    calls, tree, moves = plan.calls, plan.tree, plan.moves
    if plan.names == (WHOLE,):
        return undo(model)
    if not calls:
        raise ValueError(
            "The plan is for a chain of numbers, and knows no stages of a model: solve for what "
            "planning.profile(model, loss) returns."
        )
    last = len(calls) + 1
    if tree[0] != 0 or tree[-1] != last:
        raise ValueError(
            "The plan recomputes what the model does before its first stage or after its "
            f"last one: 0 and {last} must be bare numbers in the tree."
        )
    tree = _shifted(tree[1:-1], 1)
    moves = tuple(Move(m.item - 1, m.leaves - 1, m.returns - 1) for m in moves)
    check_same_model(model, calls)
    if moves and any(call.is_between for call in calls):
        raise ValueError(
            "The plan moves tensors to the host, and its loss calls the model, or parts of it, "
            "several times: use planning.solve, which moves none."
        )
    install(model, calls, tree, moves=moves)
    return model


def _shifted(tree: Tree, by: int) -> Tree:
    return tuple(
        _shifted(item, by) if isinstance(item, tuple) else type(item)(item - by) for item in tree
    )


def undo(model: nn.Module) -> nn.Module:
    """Restore a model as it was before `apply`; one without a plan is left alone."""
    vars(model).pop(_PUT_BACK, lambda: None)()
    return model


def install(
    model: nn.Module,
    calls: Sequence[Call],
    tree: Tree,
    observe: Observe | None = None,
    moves: Sequence[Move] = (),
) -> None:
    """Make the stages of a model run by a tree, whose numbers are places in `calls`.

    `undo` puts back what was there; `observe` is called as `Execution.all` says. With moves there
    is one call of the model.
    """
    undo(model)
    names = dict.fromkeys(call.name for call in calls if not call.is_between)
    stages = {name: model.get_submodule(name) for name in names}
    running = _Running(calls, tree, observe)
    if moves:
        running.moving = functools.partial(Moving, moves, tree, model, [c.name for c in calls])
    changes = replaced(stages, running.stage)
    changes.enter_context(replaced(containers(model, stages), running.whole, "forward"))
    segments.stop_caching(model, changes)  # every recomputation would store keys and values
    vars(model)[_PUT_BACK] = lambda: changes.close()  # a function: deepcopy takes it as it is


@dataclass(frozen=True)
class _Part:
    """The part of a plan for one run: one call of the model by its loss."""

    first: int  # the place of its first stage in the calls
    continues: bool  # whether it goes on in the model's call that the part before ended in
    calls: Sequence[Call]
    tree: Tree


def _parts(calls: Sequence[Call], tree: Tree) -> list[_Part]:
    """Divide a plan at each new call of the model; refuse a segment that spans two calls."""
    borders = [-1, *(i for i, call in enumerate(calls) if call.is_between), len(calls)]
    alone = {int(item) for item in tree if isinstance(item, int)}
    for border in borders[1:-1]:
        if border not in alone:
            raise ValueError(
                f"The plan recomputes what the loss does between two calls of the model: "
                f"{border + 1} must be a bare number in the tree."
            )
    parts = []
    for before, after in itertools.pairwise(borders):
        first = before + 1
        mine = [item for item in tree if before < next(leaves((item,))) < after]
        continues = before >= 0 and calls[before].name == WITHIN
        parts.append(_Part(first, continues, calls[first:after], _shifted(tuple(mine), first)))
    return parts


def _read(call: Call, output: Any) -> list[Tensor]:
    """Return the tensors of a stage's output; its numbers and text must be as profiled."""
    found = replace(call, output=output).constants
    if found != call.constants:
        raise RuntimeError(
            f"The stage {call.name} returned {found} besides its tensors, but {call.constants} "
            "when it was profiled: profile the model again with a batch like this one."
        )
    return tensors_of(output)


class OtherStagesError(RuntimeError):
    """The model calls other stages than the plan has."""


class _Running:
    """The calls that take the place of a model's own, and the deferred run that they fill now."""

    def __init__(self, calls: Sequence[Call], tree: Tree, observe: Observe | None) -> None:
        self.parts, self.observe = _parts(calls, tree), observe
        self.moving: Callable[[], Moving] | None = None
        self.next = 0  # which part the next run takes
        self.part = self.parts[0]
        self.run: DeferredRun | None = None
        self.is_running = False
        self.left: list[tuple[nn.Module, str]] = []  # attributes that hold a placeholder now

    def stage(self, name: str, module: nn.Module) -> Callable[..., Any]:
        """Make a call that is only recorded."""
        function = getattr(module, CALL)

        def stage(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled() or not has_own_weights(module):
                return function(*args, **kwargs)
            if not self.is_running:  # the loss calls the stage itself
                return self._alone(stage, args, kwargs)
            run = self._current()
            call = None if run.is_complete else self.part.calls[run.piece]
            if call is None or call.name != name:
                expected = "no further one" if call is None else call.name
                raise OtherStagesError(
                    f"The model calls the stage {name}, but the plan has {expected} as number "
                    f"{run.piece}: the plan was made for other inputs. Profile and solve again."
                )
            read = functools.partial(_read, call)
            run_it = functools.partial(run_stage, module, function, call)
            made = run.call(f"The stage {name}", run_it, args, kwargs, call.tensors, read)
            self.left += [(module.get_submodule(path), key) for path, key in call.attributes]
            return call.handed_out(module, made)

        return stage

    def whole(self, _: str, module: nn.Module) -> Callable[..., Any]:
        """Return a forward that begins and ends a deferred run when the loss calls it."""
        forward = module.forward

        def whole(*args: Any, **kwargs: Any) -> Any:
            if self.is_running or not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            return self._alone(forward, args, kwargs)

        return whole

    def _alone(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run one call of the model, or of a part that holds stages, by its part of the plan."""
        if in_backward():
            raise CannotPlanError(
                "The model is called again in backward, so its loss checkpoints it as a whole. A "
                "plan already recomputes: remove torch.utils.checkpoint around the model."
            )
        self.is_running = True
        try:
            with deferring_functions():
                output = function(*args, **kwargs)
            run = self.run
            if run is not None and not (run.is_complete and not self._goes_on()):
                passed = self.parts[: self.parts.index(self.part)]
                called = run.piece + sum(len(part.calls) for part in passed)
                raise OtherStagesError(
                    f"The model called {called} stages, but the plan has "
                    f"{sum(len(part.calls) for part in self.parts)}: it was made for other "
                    "inputs. Profile and solve again."
                )
            output = with_values(output)
            if run is not None and len(self.parts) > 1:
                self._begin_anew_after(output)
            return output
        except BaseException:
            self.next = 0
            raise
        finally:
            self._take_back()
            self.run, self.is_running = None, False

    def _goes_on(self) -> bool:
        return self.parts[self.next].continues

    def _current(self) -> DeferredRun:
        if self.run is not None and self.run.is_complete and self._goes_on():
            self.run.finish()
            self.run = None
        if self.run is None:
            self.part = self.parts[self.next]
            self.next = (self.next + 1) % len(self.parts)
            execute = functools.partial(self._execute, self.part)
            self.run = DeferredRun(len(self.part.calls), execute, _ADVICE, self.part.first)
        return self.run

    def _begin_anew_after(self, output: Any) -> None:
        """Go back to the first part once a backward has begun, however many runs there were."""

        def begin(_: Tensor) -> None:
            self.next = 0

        tensor = next((t for t in tensors_of(output) if t.requires_grad), None)
        if tensor is not None:
            tensor.register_hook(begin)  # type: ignore[no-untyped-call]

    def _take_back(self) -> None:
        """Remove placeholders from attributes: a value that the model hasn't read isn't wanted."""
        for module, name in self.left:
            if isinstance(vars(module).get(name), DeferredTensor):
                del vars(module)[name]
        self.left.clear()

    def _execute(self, part: _Part, run: DeferredRun) -> Values:
        self._take_back()
        contexts = lambda piece: selective(part.calls[piece].matmuls)  # noqa: E731
        execution, moving = Execution(run, contexts), self.moving and self.moving()
        with moving.hooks() if moving else contextlib.nullcontext():
            return execution.all(part.tree, moving.observe if moving else self.observe)
