"""A bench of foreign models: measured, MemTracker's, predicted. The rest runs weekly."""

import csv
import itertools
import re
import warnings
from pathlib import Path

import pytest
import torch
from foreign import TABLE, compared
from foreign_models import KINDS, QUICK
from torch import nn

from tutorial_lib import memory
from tutorial_lib.device import seed_everything

ROOT = Path(__file__).resolve().parent.parent
# Each with the reason why no prediction can be equal. All others are equal to the byte.
DIFFER = {
    "wav2vec2, LayerDrop": "layers are dropped by chance",
    "LBFGS": "its history, and when its search ends, depend on the loss",
    "early exit": "the values decide how many layers run",
    "sparse gradients, SparseAdam": "how many entries fall on one place",
}
REFUSED = {"jagged tensors"}
OLD = {"Mixtral, float32"} if torch.__version__ < "2.11" else set()  # asked for addresses there
ONLY = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.weekly) for name in KINDS]


@pytest.mark.parametrize("name", ONLY)
def test_a_foreign_step_is_predicted_as_it_is_measured(name):
    row = compared(name, track=name not in QUICK)
    assert isinstance(row.measured, int), row.measured
    if name in REFUSED | OLD:
        assert re.search(r"\.py, line \d+.* with memory\.measure", row.predicted)
    elif name in DIFFER:
        assert isinstance(row.predicted, int), row.predicted
        assert row.verdict == "equal" or row.warned or name == "sparse gradients, SparseAdam"
    else:
        assert row.verdict == "equal", row


def test_the_table_has_every_kind_and_the_readme_its_score():
    with TABLE.open(encoding="utf-8") as file:
        verdicts = {row["name"]: row["verdict"] for row in csv.DictReader(file)}
    assert set(KINDS) <= set(verdicts)
    assert {name for name, verdict in verdicts.items() if verdict == "refused"} == REFUSED
    differ = {name for name, verdict in verdicts.items() if verdict not in ("equal", "refused")}
    assert differ <= set(DIFFER)
    equal = len(verdicts) - len(REFUSED) - len(differ)
    score = (
        f"| {len(verdicts)} models and steps that others wrote "
        f"(`python3 course/recorded/make/foreign.py`) | | right to the byte for {equal}, differs "
        f"for a known reason for {len(differ)}, refuses {len(REFUSED)} |"
    )
    assert score in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_steps_that_differ_are_said_to_and_several_show_the_spread():
    model, sizes = nn.Linear(16, 16), itertools.cycle([2, 40])

    def step():
        model.zero_grad()
        model(torch.zeros(next(sizes), 16)).square().mean().backward()

    with pytest.warns(memory.MeterWarning, match="steps differ: .* ran 1 modules, which returned"):
        memory.measure(step, model=model)
    report = memory.measure(step, model=model, steps=4)
    large, small, *again = report.step_peaks
    assert small < large == report.peak_bytes
    assert again == [large, small]
    assert "of 4 steps" in str(report)


def test_a_history_that_grows_is_said_to_until_it_is_full():
    seed_everything(0)
    model, x = nn.Linear(16, 1), torch.randn(8, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=1, history_size=6)

    def loss():
        optimizer.zero_grad()
        value = (model(x) - 9).square().mean()
        value.backward()
        return value

    def step():
        optimizer.step(loss)

    with pytest.warns(memory.MeterWarning, match="state grew by 144 B in this step"):
        memory.measure(step, model=model, optimizer=optimizer, warmup=2)
    first, *_, last = memory.measure(step, model=model, optimizer=optimizer, steps=3).step_peaks
    assert last > first
    with warnings.catch_warnings():
        warnings.simplefilter("error", memory.MeterWarning)
        memory.measure(step, model=model, optimizer=optimizer)


def test_sparse_tensors_are_counted_with_values_and_indices():
    crow, columns = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    matrices = {
        "coo": torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [0, 1, 1]]), torch.ones(3), (2, 2)),
        "csr": torch.sparse_csr_tensor(crow, columns, torch.ones(3), (2, 2)),
    }
    for matrix in matrices.values():
        weight = torch.ones(2, 4, requires_grad=True)
        report = memory.measure(lambda m=matrix, w=weight: (m @ w).sum().backward(), warmup=0)
        indices = 2 * 3 * 8 if matrix.layout is torch.sparse_coo else (3 + 3) * 8
        assert sum(life.num_bytes for life in report.timeline if not life.born) >= (
            indices + 3 * 4 + weight.nbytes
        )
