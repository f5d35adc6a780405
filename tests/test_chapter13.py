"""Chapters 13, 13b and 13c: bytes against formulas and trackers; launchers; timetables."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from foreign import tracked_peak
from torch import nn

from tutorial_lib import memory
from tutorial_lib.instruments import ranks, recorded
from tutorial_lib.instruments.recorded import run

COURSE = Path(__file__).resolve().parent.parent / "course"
DIVIDED = {
    "13_many_devices": ("imports", "model", "my-lines", "measured", "training-step", "ways-one",
                        "ddp", "zero-picture", "ways-zero", "fsdp", "formulas", "zero-formula"),
    "13b_divide_the_model": ("imports", "model", "measured", "alone", "tensor-plan",
                             "tensor-parallel", "tensor-formula"),
}  # fmt: skip


def run_cells(notebook, cells, names):
    """Run those cells of a chapter that define things."""
    for cell in json.loads((COURSE / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["id"] in cells:
            exec("".join(cell["source"]), names)
    return SimpleNamespace(**names)


@pytest.fixture(scope="module")
def chapters():
    return {name: run_cells(name, cells, {"N": 4}) for name, cells in DIVIDED.items()}


@pytest.mark.parametrize(
    ("name", "way", "argument"),
    [
        ("DDP", "ddp", 1),
        ("FSDP2, kept", "fsdp", False),
        ("ZeRO 3", "fsdp", True),
        ("TP", "tensor_parallel", False),
        ("TP + sequence", "tensor_parallel", True),
    ],
)
def test_one_of_four_is_what_the_formula_and_pytorchs_tracker_say(chapters, name, way, argument):
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    chapter = chapters["13b_divide_the_model" if name[:2] == "TP" else "13_many_devices"]
    with ranks.pretend(4):
        step, model, optimizer = getattr(chapter, way)(argument)
        report = memory.measure(step, model=model, optimizer=optimizer, warmup=2)
        tracker = FSDPMemTracker(model, optimizer) if way == "fsdp" else None
        tracked = tracked_peak(step, model, optimizer, tracker=tracker)
        with ranks.traffic() as traffic:
            step()
    between, peak, sent = (part * chapter.P for part in chapter.formula[name])
    assert report.peak_bytes == tracked
    assert report.peak_bytes == pytest.approx(peak, rel=0.02)
    assert report.baseline_bytes == pytest.approx(between, rel=0.02)
    assert traffic.ring_bytes(4) == pytest.approx(sent, rel=0.02)


@pytest.fixture(scope="module")
def companion():
    launchers = run_cells("13c_launchers", ("imports", "torchrun", "launcher"), {})
    return run_cells("13b_divide_the_model", ("imports", "orders", "clock"), vars(launchers))


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "interleaved"])
def test_a_timetable_has_the_bubble_of_the_textbook(companion, name):
    runs = companion.clock(companion.SCHEDULES[name])
    # N - 1 of m + N - 1 are bubble (Huang et al., 2019); half of it with two stages a rank
    bubble = (4 - 1) * 6 / (2 if name == "interleaved" else 1)
    assert max(start + duration for _, start, duration, *_ in runs) == 8 * 6 + bubble
    for rank in range(4):
        mine = sorted((start, start + duration) for r, start, duration, *_ in runs if r == rank)
        assert len(mine) == 8 * 2 * (2 if name == "interleaved" else 1)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(mine))


def test_the_interleaved_order_is_pytorchs(companion):
    # a second to import
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    with ranks.pretend(4):
        stages = [PipelineStage(nn.Identity(), n, 8, torch.device("cpu")) for n in (0, 4)]
        theirs = ScheduleInterleaved1F1B(stages, 8, loss_fn=len).pipeline_order
    for rank, ours in enumerate(companion.SCHEDULES["interleaved"]):
        runs = [
            (run.computation_type.name, run.microbatch_index, run.stage_index)
            for run in filter(None, theirs[rank])
        ]
        kinds = {"FORWARD": "F", "FULL_BACKWARD": "B"}
        assert ours == [(kinds[kind], *where) for kind, *where in runs if kind in kinds]


@pytest.mark.weekly
@pytest.mark.parametrize("row", recorded.find_rows("C20"), ids=lambda row: row.key)
def test_a_recorded_rank_of_eight_is_what_predict_gives(row):
    report = recorded.load("predicted").rows[row.key]["report"]
    assert run.predicted(row)["report"]["at_peak"] == report["at_peak"]
