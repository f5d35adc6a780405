"""The machine of lab 02's measurements: read like `torch.cuda`, and the same everywhere.

A benchmark that takes `torch.cuda` and a clock as arguments can be given this instead. Its bytes
are real, its seconds are not: they pass as a script says, so that a check can know them.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence

from torch import nn

from tutorial_lib.checks.given import CheckError, forbid
from tutorial_lib.memory.storages import StorageLog

LAUNCH_SECONDS = 2e-5
_ADVICE = "Build the instrument from what PyTorch gives you."
NO_INSTRUMENTS = [forbid.meter(_ADVICE, forbid.METERS), forbid.saved(_ADVICE)]


def without_instruments() -> contextlib.AbstractContextManager[None]:
    """Refuse another PretendGPU while an answer runs: it would be a meter."""
    words = "another PretendGPU counts as the oracle does: read the one that is handed over."
    begun = forbid.Forbidden(words, (f"{forbid.LOG}.__init__",))
    return forbid.refused([begun], CheckError)


class PretendGPU(StorageLog):
    """A CPU that reads like `torch.cuda`: it counts bytes for real, and pretends its seconds.

    Memory: inside `with gpu:` every tensor's storage is counted from birth to death. Time: `launch`
    puts work into a queue and returns at once, `synchronize` waits until the queue is empty, and
    `now` is the clock. No operation of PyTorch takes any time on it, only what is launched.

    Args:
        model: Its parameters and buffers are on the device from the beginning.
        slowness: How many times as long as usual each launch takes, from the first on; the last
            one holds for all that follow.

    Source:
        The three readings of memory have the names and the meaning of `torch.cuda`'s, in bytes of
        storages: neither the allocator's rounding nor a kernel's workspace is in them.
    """

    def __init__(
        self, model: nn.Module | None = None, *, slowness: Sequence[float] = (1.0,)
    ) -> None:
        super().__init__("cpu")
        self._slowness = slowness
        self.num_launches = 0
        self._host_seconds = self._queue_empty_at = 0.0
        self._counted_from = 0
        if model is not None:
            self.label_module(model)

    def now(self) -> float:
        """Read the clock, in seconds."""
        return self._host_seconds

    def launch(self, seconds: float) -> None:
        """Queue work that usually takes so many seconds; the host goes on after 20 µs."""
        factor = self._slowness[min(self.num_launches, len(self._slowness) - 1)]
        self.num_launches += 1
        self._host_seconds += LAUNCH_SECONDS
        begins = max(self._queue_empty_at, self._host_seconds)
        self._queue_empty_at = begins + seconds * factor

    def synchronize(self) -> None:
        """Wait until all that was launched is done."""
        self._host_seconds = max(self._host_seconds, self._queue_empty_at)

    def memory_allocated(self) -> int:
        """Count the bytes of all tensors that are there now."""
        return self.alive_bytes()

    def max_memory_allocated(self) -> int:
        """Count the most bytes there were at once since the last reset."""
        changes: Counter[int] = Counter()
        for record in self.records:
            if record.died is None or record.died >= self._counted_from:
                changes[max(record.born, self._counted_from)] += record.num_bytes
                if record.died is not None:
                    changes[record.died + 1] -= record.num_bytes
        totals = itertools.accumulate(changes[tick] for tick in sorted(changes))
        return max(totals, default=0)

    def reset_peak_memory_stats(self) -> None:
        """Forget the peak: the next one begins with the bytes allocated now."""
        self.clock += 1  # what has died so far died before this tick
        self._counted_from = self.clock
