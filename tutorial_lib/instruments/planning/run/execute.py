"""Run a tape: stages that are kept run plainly, segments in PyTorch's own checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from tutorial_lib.instruments.planning.chain.simulate import Selective, Tree, leaves
from tutorial_lib.instruments.planning.run.products import selective
from tutorial_lib.instruments.planning.run.tape import Note, Tape, filled_in, tensors_of
from tutorial_lib.instruments.private_torch import tree_leaves

Observe = Callable[["Execution", int, dict[int, Tensor]], None]


class Execution:
    """A tape with all that is known once it is complete.

    Args:
        tape: Complete: as many pieces as the tree has stages.
    """

    def __init__(self, tape: Tape) -> None:
        self.calls = tape.calls
        self.notes, self.wanted, self.made_by = tape.notes, tape.wanted, tape.made_by
        self.touched = tape.touched
        self.pieces: list[list[int]] = [[] for _ in range(tape.piece)]
        self.last_use = [-1] * len(tape.made_by)
        for index, note in enumerate(tape.notes):
            self.pieces[note.piece].append(index)
            for number in note.inputs():
                self.last_use[number] = index

    def run(self, tree: Tree, values: dict[int, Tensor], observe: Observe | None = None) -> None:
        """Run the stages of a tree.

        Args:
            tree: As in `Plan.tree`.
            values: By number; those that are needed after the tree are left in it at the end.
            observe: Called after each item of the tree, with its last stage and the values.
        """
        for item in tree:
            if isinstance(item, int) and not isinstance(item, Selective):
                self._run_piece(item, values)
            else:
                self._run_segment(item, values)
            last = list(leaves((item,)))[-1]
            if observe is not None:
                observe(self, last, values)
            self._forget(last, values)

    def given(self, piece: int) -> list[Tensor]:
        """List the tensors with a gradient that a piece gets from outside the stages."""
        notes = [self.notes[index] for index in self.pieces[piece]]
        leaves = [leaf for note in notes for leaf in tree_leaves((note.args, note.kwargs))]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        own = {id(t): t for t in tensors if not isinstance(t, nn.Parameter)}
        return list(own.values())

    def uses(self) -> dict[int, set[int]]:
        """Say in which pieces each value is used; the number of pieces stands for afterwards."""
        found: dict[int, set[int]] = {number: set() for number in range(len(self.made_by))}
        for note in self.notes:
            for number in note.inputs():
                found[number].add(note.piece)
        for number in self.touched:
            found[number].add(len(self.pieces))
        return found

    def needed_after(self, number: int, piece: int) -> bool:
        """Tell whether a value is used after a piece."""
        return self.last_use[number] > self.pieces[piece][-1] or number in self.wanted

    def _run_segment(self, item: int | Tree, values: dict[int, Tensor]) -> None:
        pieces = [int(leaf) for leaf in leaves((item,))]
        tree = item if isinstance(item, tuple) else (int(item),)
        contexts = (
            selective(self.calls[pieces[0]].products) if item is not tree else noop_context_fn
        )
        notes = [self.notes[index] for piece in pieces for index in self.pieces[piece]]
        used = {number for note in notes for number in note.inputs()}
        inputs = sorted(used & values.keys())
        made = [number for note in notes for number in note.results]
        outputs = [number for number in made if self.needed_after(number, pieces[-1])]

        # Values go in as arguments, never by closure: an outer segment can then let go of them.
        def segment(*tensors: Tensor) -> tuple[Tensor, ...]:
            inside = dict(zip(inputs, tensors, strict=True))
            del tensors
            self.run(tree, inside)
            return tuple(inside[number] for number in outputs)

        arguments = [values[number] for number in inputs]
        self._forget(pieces[-1], values)
        results = checkpoint(segment, *arguments, use_reentrant=False, context_fn=contexts)
        values.update(zip(outputs, results, strict=True))

    def _run_piece(self, piece: int, values: dict[int, Tensor]) -> None:
        for index in self.pieces[piece]:
            note = self.notes[index]
            args, kwargs = filled_in(note, values)
            for number in {*note.inputs()}:
                if self.last_use[number] == index and number not in self.wanted:
                    values.pop(number, None)
            found = tensors_of(note.function(*args, **kwargs))
            del args, kwargs
            if len(found) != len(note.results):
                raise RuntimeError(_unlike(note, len(found)))
            values.update(zip(note.results, found, strict=True))

    def _forget(self, piece: int, values: dict[int, Tensor]) -> None:
        for number in [n for n in values if not self.needed_after(n, piece)]:
            del values[number]


def _unlike(note: Note, count: int) -> str:
    what = f"The stage {note.call.name}" if note.call else "What the model does between two stages"
    return (
        f"{what} gave {count} tensors, and {len(note.results)} were expected: "
        "profile the model again with a batch like this one."
    )
