"""What only a GPU's allocator can show: on a GPU, and on an emulated card (`test --emulated`).

Nothing here looks at a value that a kernel computes, or at a time.
"""

import contextlib
import gc
import pickle

import pytest
import torch

from tutorial_lib import device, memory
from tutorial_lib.instruments import recorded
from tutorial_lib.instruments.cap import memory_limit
from tutorial_lib.instruments.recorded import run
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.memory import private_torch
from tutorial_lib.units import MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
]
RECIPE = Recipe("gpt2", 1, 64, overrides={"n_layer": 1})


@pytest.fixture(autouse=True)
def empty_card():
    yield
    gc.collect()
    private_torch.release_cublas_workspaces()
    torch.cuda.empty_cache()


def test_the_allocators_peaks_are_in_order():
    step, model, optimizer = RECIPE.make_step("cuda")
    report = memory.measure(step, model=model, optimizer=optimizer)
    assert report.counted_bytes <= report.requested_bytes <= report.peak_bytes
    assert report.peak_bytes <= report.reserved_bytes
    assert report.method == ("emulated" if device.is_emulated() else "allocator")


def test_a_prediction_is_what_the_meter_counts_on_the_card():
    step, model, optimizer = RECIPE.make_step("cuda")
    counted = memory.measure(step, model=model, optimizer=optimizer).counted_bytes
    predicted = memory.predict(RECIPE.make_step).peak_bytes
    assert abs(predicted - counted) < 0.1 * MIB


def test_a_limit_is_the_allocators_and_ends_with_its_block():
    with memory_limit("cuda", 64 * MIB), pytest.raises(torch.OutOfMemoryError, match="allowed"):
        torch.empty(65 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.empty(65 * MIB, dtype=torch.uint8, device="cuda").is_cuda


@pytest.mark.parametrize("ready", [True, False])
def test_blocks_that_lie_ready_are_given_out_beyond_a_bare_limit(ready):
    """So `capped` gives them back first."""
    model = torch.nn.Linear(8, 8, device="cuda")
    torch.empty(65 * MIB, dtype=torch.uint8, device="cuda")  # freed at once, and kept ready
    limit = memory_limit("cuda", 64 * MIB) if ready else memory.capped(64 * MIB, model=model)
    refused = contextlib.nullcontext() if ready else pytest.raises(torch.OutOfMemoryError)
    with limit, refused:
        torch.empty(65 * MIB, dtype=torch.uint8, device="cuda")


def test_a_snapshot_holds_what_was_allocated(tmp_path):
    private_torch.record_allocations(max_entries=1000)
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    private_torch.write_snapshot(str(tmp_path / "snapshot.pickle"))
    private_torch.record_allocations(enabled=None)
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    (trace,) = [trace for trace in snapshot["device_traces"] if trace]
    assert kept.nbytes in {event["size"] for event in trace if event["action"] == "alloc"}


def test_a_sample_of_the_rows_is_as_recorded():
    """The bytes requested; the allocator's own rounding depends on the rows before."""
    if not device.is_emulated():
        pytest.skip("rows of an emulated card are compared")
    before = recorded.load(device.describe("cuda")).rows
    rows = [row for row in recorded.find_rows("*") if "report" in before.get(row.key, {})]
    for row in rows[::20]:
        report = run.measured(row, device.pick("cuda"))["report"]
        assert report["requested_bytes"] == before[row.key]["report"]["requested_bytes"], row.key
