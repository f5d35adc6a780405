"""Records of single storages: what was seen of each, and what it was in the step."""

from dataclasses import dataclass

Phase = str


@dataclass(slots=True)
class StorageRecord:
    """What was seen of one storage; `label` is empty until it is certain."""

    num_bytes: int
    born: int
    phase: Phase
    op: str
    module: str
    label: str = ""
    waits_for_backward: bool = False
    with_grad: bool = False
    recomputed: bool = False
    died: int | None = None
    line: str = ""

    def is_of_a_graph(self) -> bool:
        """Tell whether a later backward may need it: of forward, or of a backward with a graph."""
        differentiable = self.phase == "backward" and self.with_grad and not self.recomputed
        return self.phase == "forward" or differentiable

    def category(self) -> str:
        """Name what it was, one of `timeline.CATEGORIES`."""
        if self.label:
            return self.label
        if self.recomputed:
            return "recomputed"
        return "activations" if self.waits_for_backward and self.is_of_a_graph() else "temporary"
