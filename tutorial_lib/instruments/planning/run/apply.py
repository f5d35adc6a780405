"""Let a model run by a plan, and give it back as it was."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tutorial_lib.instruments import segments
from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.planning.chain.profiled import Call, kind_of
from tutorial_lib.instruments.planning.run.find_stages import find_stages, replaced
from tutorial_lib.instruments.planning.run.matmuls import selective
from tutorial_lib.instruments.private_torch import CALL
from tutorial_lib.instruments.segments.deferred import DeferredRun, tensors_of, with_values
from tutorial_lib.instruments.segments.execution import Execution, Observe, Values
from tutorial_lib.instruments.segments.tree import Tree

_ADVICE = (
    "A plan's stages run later, together, and the model needs a value between two of them. Name "
    "stages that are called one after the other with `stages=`, or larger ones."
)
# The attribute of a model that puts it back: held by the model, it goes when the model goes.
_PUT_BACK = "_without_plan"


def apply(model: nn.Module, plan: Plan) -> nn.Module:
    """Let a model run by a plan from now on, in training.

    Gradients are the same, bit for bit, dropout included; a model of two towers, as T5, draws
    dropout in another order where it draws some between them. What a stage changes besides its
    output, it changes each time it runs: BatchNorm's running averages move with every
    recomputation. Its hooks run as often. Without gradients, as in evaluation, the model runs as
    before.

    Args:
        model: The one that was profiled, or one like it. Of a plan without a profile, a model with
            as many stages as `find_stages` sees, each called once and giving one tensor.
        plan: What to keep and what to recompute. It takes the place of one that was applied before.

    Returns:
        The model.

    Raises:
        ValueError: When the plan was made for another model, or recomputes what lies before or
            after the stages; the model is as before.
        RuntimeError: In a forward, when the model does not call the stages as it was profiled.
    """
    calls, tree = plan.calls, plan.tree
    if calls:
        last = len(calls) + 1
        if tree[0] != 0 or tree[-1] != last:
            raise ValueError(
                "The plan recomputes what the model does before its first stage or after its "
                f"last one: 0 and {last} must stand in the tree by themselves."
            )
        tree = _shifted(tree[1:-1])
        check_same_model(model, calls)
    else:
        found = find_stages(model)
        if len(found) != len(plan.stages):
            raise ValueError(
                f"The plan has {len(plan.stages)} stages, and {type(model).__name__} has "
                f"{len(found)}: solve for what planning.profile(model, loss) gives."
            )
        calls = tuple(Call.supposed(name, module) for name, module in found.items())
    install(model, calls, tree)
    return model


def _shifted(tree: Tree) -> Tree:
    return tuple(
        _shifted(item) if isinstance(item, tuple) else type(item)(item - 1) for item in tree
    )


def undo(model: nn.Module) -> nn.Module:
    """Give a model back as it was before `apply`; one without a plan is left alone."""
    vars(model).pop(_PUT_BACK, lambda: None)()
    return model


def install(
    model: nn.Module, calls: Sequence[Call], tree: Tree, observe: Observe | None = None
) -> None:
    """Let the stages of a model run by a tree, whose numbers are places in `calls`.

    `undo` puts back what was there; `observe` is called as `Execution.all` says.
    """
    undo(model)
    stages = {name: model.get_submodule(name) for name in dict.fromkeys(c.name for c in calls)}
    running = _Running(calls, tree, observe)
    changes = replaced(stages, running.stage)
    changes.enter_context(replaced({"": model}, running.whole, "forward"))
    segments.stop_caching(model, changes)  # every recomputation would store keys and values
    vars(model)[_PUT_BACK] = lambda: changes.close()  # a function: deepcopy takes it as it is


class _Running:
    """The calls that take the place of a model's own, and the deferred runs that they fill now."""

    def __init__(self, calls: Sequence[Call], tree: Tree, observe: Observe | None) -> None:
        self.calls, self.tree, self.observe = calls, tree, observe
        self.runs: list[DeferredRun] = []

    def stage(self, name: str, module: nn.Module) -> Callable[..., Any]:
        """Make a call that is only recorded."""
        function = getattr(module, CALL)

        def stage(*args: Any, **kwargs: Any) -> Any:
            if not self.runs or not torch.is_grad_enabled():
                return function(*args, **kwargs)
            run = self.runs[-1]
            call = None if run.is_complete else self.calls[run.piece]
            if call is None or call.name != name:
                expected = "no further one" if call is None else call.name
                raise RuntimeError(
                    f"The model calls the stage {name}, and the plan has {expected} as number "
                    f"{run.piece}: the plan was made for other inputs. Profile and solve again."
                )
            likes = [like if call.is_profiled else None for like in call.tensors]
            made = run.call(f"The stage {name}", function, args, kwargs, likes, tensors_of)
            return call.filled(made)

        return stage

    def whole(self, _: str, module: nn.Module) -> Callable[..., Any]:
        """Make a forward of the whole model that begins a deferred run and ends it."""
        forward = module.forward

        def whole(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            run = DeferredRun(len(self.calls), self._execute, _ADVICE)
            self.runs.append(run)
            try:
                output = forward(*args, **kwargs)
                if not run.is_complete:
                    raise RuntimeError(
                        f"The model called {run.piece} stages, and the plan has {len(self.calls)}: "
                        "it was made for other inputs. Profile and solve again."
                    )
                return with_values(output)
            finally:
                self.runs.remove(run)

        return whole

    def _execute(self, run: DeferredRun) -> Values:
        execution = Execution(run, lambda piece: selective(self.calls[piece].matmuls))
        return execution.all(self.tree, self.observe)


def check_same_model(model: nn.Module, calls: Sequence[Call]) -> None:
    """Refuse a model that a plan was not made for: a stage is missing, or another module."""
    modules = dict(model.named_modules())
    for call in calls:
        there = kind_of(modules[call.name]) if call.name in modules else None
        if there != call.kind:
            seen = "nothing" if there is None else f"{there[0]} with {there[1]} parameters"
            raise ValueError(
                f"The plan was made for another model: its stage {call.name} is {call.kind[0]} "
                f"with {call.kind[1]} parameters, and {type(model).__name__} has {seen} there. "
                "Profile this model and solve again."
            )
