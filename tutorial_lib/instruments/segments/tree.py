"""Trees of segments: which stages of a model are kept, and which are recomputed together."""

from collections.abc import Iterator

# A number is a stage that is kept; a tuple is a segment, which is dropped and recomputed.
Tree = tuple["int | Tree", ...]


class Selective(int):
    """A stage of which the results of matmuls are kept; what lies between is recomputed."""

    def __repr__(self) -> str:
        return f"Selective({int(self)})"


def leaves(tree: Tree) -> Iterator[int]:
    """List the stages of a tree, in order."""
    for item in tree:
        if isinstance(item, int):
            yield item
        else:
            yield from leaves(item)
