"""Run a deferred run: stages that are kept run plainly, segments in PyTorch's own checkpoint."""

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint, noop_context_fn

from tutorial_lib.instruments.segments.deferred import DeferredRun, Operation
from tutorial_lib.instruments.segments.one_module import recomputed
from tutorial_lib.instruments.segments.tree import Selective, Tree, leaves

Values = dict[int, Any]
Observe = Callable[["Execution", int, Values], None]
Contexts = Callable[[int], Callable[[], Any]]
# What a selective checkpoint saves passes hooks by, as plans count it; since 2.14 that is asked.
_HAS_CHOICE = "respect_saved_tensors_hooks" in inspect.signature(checkpoint).parameters
_BYPASSING_HOOKS: dict[str, Any] = {"respect_saved_tensors_hooks": False} if _HAS_CHOICE else {}


class Execution:
    """A run with all that is known once all stages were called.

    A run with `execute` runs once, and lets go of what came from outside. `contexts` gives the
    `context_fn` of the checkpoint of a stage that is kept selectively.
    """

    def __init__(
        self, run: DeferredRun, contexts: Contexts = lambda piece: noop_context_fn
    ) -> None:
        self.first = run.first
        self.operations, self.wanted = run.operations, run.wanted
        self.touched, self.contexts = run.touched, contexts
        self.given, self._runs_once = run.given, run.execute is not None
        # of those values whose shapes the model asked for before they were there
        self.shapes = {n: run.shapes[n] for n in run.shapes_asked_for & run.shapes.keys()}
        self.last_use = [-1] * len(run.made_by)
        for index, operation in enumerate(self.operations):
            for number in operation.inputs():
                self.last_use[number] = index
        self.made_by = list(run.made_by)
        self.pieces = self._in_pieces(run)
        for piece, indices in enumerate(self.pieces):
            for number in [n for index in indices for n in self.operations[index].results]:
                self.made_by[number] = piece

    def _in_pieces(self, run: DeferredRun) -> list[list[int]]:
        """Divide the operations into pieces of one stage each.

        Work between two stages belongs to the later one. Only as much of its beginning goes to the
        earlier one as leaves the fewest bytes to hold between them: of `x = x + stage(x)` the sum
        is held, not both of its parts.
        """
        pieces: list[list[int]] = [[] for _ in range(run.piece)]
        for index, operation in enumerate(self.operations):
            pieces[operation.piece].append(index)
        for before, after in itertools.pairwise(pieces):
            made = {n for i in after for n in self.operations[i].results[:1]}
            if len(after) > 1 and made <= run.num_bytes.keys():
                held = [self._held_at(index, run) for index in after]
                # what is written in place is recomputed by who made it
                least = max((i + 1 for i, n in enumerate(after) if self._writes(n)), default=0)
                fewest = min(held[least:])
                early = max(i for i, n in enumerate(held) if i >= least and n == fewest)
                before += after[:early]
                del after[:early]
        return pieces

    def _writes(self, index: int) -> bool:
        kwargs = self.operations[index].kwargs
        return isinstance(kwargs, dict) and kwargs.get("inplace") is True

    def _held_at(self, index: int, run: DeferredRun) -> int:
        """Count the bytes of values made before an operation that are needed from it on."""
        made = [n for operation in self.operations[:index] for n in operation.results]
        needed = [n for n in made if self.last_use[n] >= index or n in self.wanted]
        return sum(run.num_bytes.get(number, 0) for number in needed)

    def all(self, tree: Tree, observe: Observe | None = None) -> Values:
        """Run a whole tree, and return the values that are wanted.

        `observe` is called before the first stage, as after stage -1, and after each item of the
        tree, with its last stage and the values.
        """
        values: Values = {**self.given}
        if self._runs_once:
            self.given.clear()  # each is held as long as stages need it
        self.given = {}
        if observe is not None:
            observe(self, -1, values)
        self.run(tree, values, observe)
        return values

    def run(self, tree: Tree, values: Values, observe: Observe | None = None) -> None:
        """Run the stages of a tree; values that are needed after it are left in `values`."""
        for item in tree:
            if isinstance(item, int) and not isinstance(item, Selective):
                self._run_piece(item, values)
            else:
                self._run_segment(item, values)
            last = list(leaves((item,)))[-1]
            if observe is not None:
                observe(self, last, values)
            self._forget(last, values)

    def uses(self) -> dict[int, set[int]]:
        """Pieces that use each value; the number of pieces stands for afterwards."""
        found: dict[int, set[int]] = {number: set() for number in range(len(self.made_by))}
        for piece, indices in enumerate(self.pieces):
            for number in [n for index in indices for n in self.operations[index].inputs()]:
                found[number].add(piece)
        for number in self.touched:
            found[number].add(len(self.pieces))
        return found

    def needed_after(self, number: int, piece: int) -> bool:
        """Tell whether a value is needed once a piece has run."""
        return self.last_use[number] > self.pieces[piece][-1] or number in self.wanted

    def _run_segment(self, item: int | Tree, values: Values) -> None:
        pieces = [int(leaf) for leaf in leaves((item,))]
        tree = item if isinstance(item, tuple) else (int(item),)
        contexts = noop_context_fn if item is tree else self.contexts(pieces[0])
        operations = [self.operations[index] for piece in pieces for index in self.pieces[piece]]
        used = {number for operation in operations for number in operation.inputs()}
        inputs = sorted(used & values.keys())
        made = [number for operation in operations for number in operation.results]
        outputs = [number for number in made if self.needed_after(number, pieces[-1])]

        # Values go in as arguments, never by closure: an outer segment can then let go of them,
        # and `checkpoint` looks at arguments for the devices whose random state it must keep.
        def segment(*tensors: Tensor) -> tuple[Any, ...]:
            inside = dict(zip(inputs, tensors, strict=True))
            del tensors
            self.run(tree, inside)
            return tuple(inside[number] for number in outputs)

        arguments = [values[number] for number in inputs]
        self._forget(pieces[-1], values)
        options: dict[str, Any] = {"context_fn": contexts, **_BYPASSING_HOOKS}
        results = recomputed(segment, *arguments, **options)
        values.update(zip(outputs, results, strict=True))

    def _run_piece(self, piece: int, values: Values) -> None:
        for index in self.pieces[piece]:
            operation = self.operations[index]
            args, kwargs = operation.arguments(values)
            for number in {*operation.inputs()}:
                if self.last_use[number] == index and number not in self.wanted:
                    values.pop(number, None)
            with operation.modes.restored():
                found = operation.read(operation.function(*args, **kwargs))
            del args, kwargs
            if len(found) != len(operation.results):
                raise RuntimeError(
                    f"{operation.name} gave {len(found)} tensors, and {len(operation.results)} "
                    "were expected: profile the model again with a batch like this one."
                )
            self._check_shapes(operation, found)
            values.update(zip(operation.results, found, strict=True))

    def _check_shapes(self, operation: Operation, found: Sequence[Any]) -> None:
        for number, value in zip(operation.results, found, strict=True):
            shape = self.shapes.get(number)
            if shape is not None and value.shape != shape:
                raise RuntimeError(
                    f"{operation.name} returned a tensor of shape {[*value.shape]}, but when "
                    f"profiled {[*shape]}, which the model asked for: profile it with a batch like "
                    "this one."
                )

    def _forget(self, piece: int, values: Values) -> None:
        for number in [n for n in values if not self.needed_after(n, piece)]:
            del values[number]
