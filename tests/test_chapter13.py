"""Chapter 13: its ways to train, against PyTorch's own trackers; its timetable and its line."""

import gc
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tutorial_lib import memory, ranks

NOTEBOOK = Path(__file__).resolve().parent.parent / "course" / "13_many_devices.ipynb"
CELLS = {
    "imports", "model", "my-lines", "training-step", "ways-zero", "tensor-plan", "tensor-parallel",
    "clock", "published-shapes", "published-step", "per-rank",
}  # fmt: skip


def run_cells():
    """Run the chapter's cells that define its ways; a rank does it for itself."""
    names = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["id"] in CELLS:
            exec("".join(cell["source"]), names)
    return SimpleNamespace(**names)


@pytest.fixture(scope="module")
def chapter():
    return run_cells()


def both_meters(way, *args):
    """Count one step's peak by the course's meter and by PyTorch's, in bytes."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    step, model, optimizer = getattr(run_cells(), way)(*args)
    peak = memory.measure(step, model=model, optimizer=optimizer, warmup=2).peak_bytes
    tracker = FSDPMemTracker(model, optimizer) if way == "fsdp" else MemTracker()
    if way != "fsdp":
        tracker.track_external(model, optimizer)
    gc.collect()
    gc.disable()  # as the meter does: sharded tensors are part of reference cycles
    with tracker:
        step()
    gc.enable()
    (tracked,) = tracker.get_tracker_snapshot("peak").values()
    return peak, tracked["Total"]


def peak_formulas(chapter):
    """Give the peaks of the chapter's formulas in bytes, for two ranks."""
    model = chapter.make_gpt()
    step, model, optimizer = chapter.training_step(model, chapter.adamw(model), chapter.lines[:4])
    block, size = sum(p.nbytes for p in model.blocks[0].parameters()), chapter.P
    own = memory.measure(step, model=model, optimizer=optimizer, warmup=2).peak_bytes - 3 * size
    return {2: size + 3 * size / 2 + own, 3: 3 * size / 2 + size - 8 * block + 2 * block + own}


@pytest.mark.slow
def test_peaks_follow_the_formula_and_are_those_of_pytorchs_tracker(chapter):
    batch = chapter.lines.nbytes  # PyTorch's tracker does not count it
    formulas = peak_formulas(chapter)
    with ranks.start(2) as two:  # two take half the time of the chapter's four
        for stage in (2, 3):
            for peak, tracked in two.run(both_meters, "fsdp", stage):
                assert abs(peak - tracked) <= batch
                assert abs(peak - formulas[stage]) <= 0.02 * formulas[stage]
        for sequence in (False, True):
            for peak, tracked in two.run(both_meters, "tensor_parallel", sequence):
                assert abs(peak - tracked) <= batch


def logs_of(num_ranks, num_micro, first_forwards):
    """Begin with so many forwards, by rank; then take backward and forward in turn."""
    logs = []
    for rank in range(num_ranks):
        first = first_forwards(rank)
        log = [("F", micro, rank) for micro in range(first)]
        for micro in range(num_micro):
            log.append(("B", micro, rank))
            if micro + first < num_micro:
                log.append(("F", micro + first, rank))
        logs.append(log)
    return logs


@pytest.mark.parametrize("first", [lambda rank: 8, lambda rank: 4 - rank], ids=["gpipe", "1f1b"])
def test_the_timetable_has_the_bubble_of_the_textbook(chapter, first):
    runs = chapter.clock(logs_of(4, 8, first))
    assert len(runs) == 4 * 8 * 2
    # two blocks a stage: 2 forward, 4 backward; N - 1 of m + N - 1 are bubble (Huang et al., 2019)
    assert max(start + duration for _, start, duration, *_ in runs) == (8 + 4 - 1) * 6
    for rank in range(4):
        mine = sorted((start, start + duration) for r, start, duration, *_ in runs if r == rank)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(mine))


@pytest.mark.weekly
@pytest.mark.parametrize("way", ["ddp", "fsdp", "tp"])
def test_the_line_through_two_depths_meets_the_whole_7b(chapter, way):
    with ranks.pretend(8):
        whole = memory.predict(chapter.one_of_eight("Llama-2-7B", way, 32).make_step).peak_bytes
    assert abs(chapter.per_rank("Llama-2-7B", way) - whole) <= 0.01 * whole
