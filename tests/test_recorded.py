"""Recording: rows, files that survive, and the GPU's part played by a CPU and a faked allocator."""

import json
import re
import statistics
from dataclasses import asdict, replace
from unittest import mock

import pytest
import torch

from tutorial_lib import memory
from tutorial_lib.instruments import published, recorded
from tutorial_lib.instruments.predicting import release
from tutorial_lib.instruments.recorded import published as published_peaks
from tutorial_lib.instruments.recorded import rows, run, store
from tutorial_lib.instruments.recorded.rows import SIZES, Row
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.school.commands.main import run as run_command

CPU = torch.device("cpu")
TINY = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 100, "n_positions": 32}
ROW = Row(Recipe("gpt2", 2, 16, overrides=TINY), ("A12",))


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "FOLDER", tmp_path / "recorded")
    return tmp_path / "recorded"


@pytest.fixture
def two_rows(monkeypatch):
    found = [ROW, replace(ROW, recipe=replace(ROW.recipe, checkpointing="per-block"))]
    monkeypatch.setattr(rows, "find_rows", lambda pattern: found)
    return [row.key for row in found]


def test_rows_have_names_of_their_own_and_known_models():
    rows = recorded.find_rows()
    assert len({row.key for row in rows}) == len(rows)
    assert set(SIZES) <= set(published.PUBLISHED)
    for row in rows:
        published.find(row.recipe.model)


@pytest.mark.parametrize("claim", ["A12", "A13", "E01", "E02", "E06", "E07", "E08", "E09", "E12"])
def test_every_claimed_table_has_rows(claim):
    assert all(claim in row.claims for row in recorded.find_rows(claim))


def test_a_row_is_measured_and_predicted():
    results = run.measured(ROW, CPU)
    assert results["status"] == "measured"
    assert len(results["samples_per_second"]) == run.REPEATS
    assert results["report"]["method"] == "counted"
    beside = run.predicted(ROW)
    assert beside["report"]["method"] == "predicted"
    assert beside["report"]["at_peak"]["parameters"] == results["report"]["at_peak"]["parameters"]
    assert beside["predicting_process_bytes"] > 2**20


def test_an_emulated_row_keeps_the_allocators_figures_alone(monkeypatch):
    seen = {"method": "emulated", "peak_phase": "backward", "requested_bytes": 3, "flops": None}
    seen |= {"peak_bytes": 4, "counted_bytes": 3, "reserved_bytes": 8, "step_seconds": []}
    whole = {"status": "measured", "report": seen, "samples_per_second": []}
    monkeypatch.setattr(run, "_step", lambda row, device: dict(whole))
    assert run.measured(ROW, CPU) == whole
    monkeypatch.setattr(run.devices, "is_emulated", lambda device: True)
    results = run.measured(ROW, CPU)
    assert results.keys() == {"status", "report"}
    assert results["status"] == "emulated"
    assert results["report"].keys() == seen.keys() - {"flops", "step_seconds"}
    assert memory.MemoryReport.from_json(json.dumps(results["report"])).peak_bytes == 4


def test_running_out_of_memory_is_a_result(monkeypatch):
    def make_step(recipe, device):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Recipe, "make_step", make_step)
    assert run.measured(ROW, CPU) == {"status": "out of memory"}


def test_a_strategy_that_a_model_has_not_is_a_result():
    row = Row(replace(ROW.recipe, model="lstm", checkpointing="attention-only", overrides={}))
    assert run.predicted(row)["status"] == "not possible"


@pytest.mark.parametrize("room", [1, 7, 8, 37])
def test_the_largest_batch_is_found(monkeypatch, room):
    tried = []

    def make_step(recipe, device):
        tried.append(recipe.micro_batch)
        if recipe.micro_batch > room:
            raise torch.OutOfMemoryError
        return (lambda: None), None, None

    monkeypatch.setattr(Recipe, "make_step", make_step)
    results = run.measured(replace(ROW, largest=True), CPU)
    assert results["micro_batch"] == room
    assert len(tried) == len(set(tried))


@pytest.fixture
def released(monkeypatch):
    """Calls that give cuBLAS's workspaces back, which a PyTorch without CUDA has not."""
    calls = mock.Mock()
    monkeypatch.setattr(run, "release_cublas_workspaces", calls)
    return calls


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_smaller_card_is_kept_to_and_undone(monkeypatch, memory_fractions, released, name):
    monkeypatch.setattr(run, "_step", lambda row, device: {"status": "measured"})
    results = run.measured(replace(ROW, card_gib=16), torch.device(name))
    assert results == {"status": "measured"}
    assert memory_fractions == [(0.2, 0), (1.0, 0)]
    released.assert_called_once()  # what stayed would be in the next row's reserved bytes


def test_a_stopped_run_goes_on_and_gives_one_file(folder, two_rows, capsys, monkeypatch):
    assert run_command(["record", "--predict", "--max-minutes", "-1"]) == 3
    assert "2 rows are left" in capsys.readouterr().out
    assert run_command(["record", "--predict"]) == 0
    text = (folder / "predicted.json").read_text()
    assert list(recorded.load("predicted").rows) == two_rows
    monkeypatch.setattr(run, "predicted", None)  # nothing is left to do
    assert run_command(["record", "--predict"]) == 0
    assert (folder / "predicted.json").read_text() == text
    assert recorded.load("predicted").rows[two_rows[0]]["claims"] == ["A12"]


@pytest.mark.parametrize("path", sorted(store.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_recording_has_one_row_a_line(path):
    text, recording = path.read_text(encoding="utf-8"), store.read(path)
    assert text == recording.to_json()
    assert json.loads(text) == asdict(recording)
    starts = [line.partition('": {')[0] for line in text.splitlines()[6:-2]]
    assert starts == [f"  {json.dumps(key)}".removesuffix('"') for key in recording.rows]


def test_rows_of_other_versions_are_refused_and_the_file_kept(folder, two_rows, capsys):
    assert run_command(["record", "--predict"]) == 0
    path = folder / "predicted.json"
    data = json.loads(path.read_text())
    data["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(data))
    assert run_command(["record", "--predict"]) == 2
    assert "1.0" in capsys.readouterr().err
    assert json.loads(path.read_text()) == data
    assert run_command(["record", "--predict", "--again"]) == 0
    assert recorded.load("predicted").versions["torch"] == torch.__version__


def test_without_a_gpu_one_sentence(folder, monkeypatch, capsys):
    monkeypatch.setattr("tutorial_lib.device.pick", lambda: CPU)
    assert run_command(["record"]) == 2
    assert "There is no GPU here" in capsys.readouterr().err
    assert not folder.exists()


def test_an_unknown_recording_names_those_that_are_there(folder):
    with pytest.raises(ValueError, match="no recording at all"):
        recorded.load("NVIDIA H200")
    folder.mkdir()
    (folder / "tesla-t4.json").write_text("[]")
    with pytest.raises(ValueError, match="there is tesla-t4"):
        recorded.load("NVIDIA H200")
    with pytest.raises(ValueError, match="is no recording"):
        recorded.load("Tesla T4, 14.6 GiB")


@pytest.fixture(scope="module")
def table():
    return recorded.load("predicted")


@pytest.mark.parametrize("checkpointing", ["none", "per-block"])
@pytest.mark.parametrize("model", SIZES)
def test_every_model_is_predicted_cheaply(table, model, checkpointing):
    """Peak by category, under 35 seconds and 2 GiB, in every precision of the grid."""
    found = [
        row
        for row in table.rows.values()
        if row["recipe"]["model"] == model and row["recipe"]["checkpointing"] == checkpointing
    ]
    assert {row["recipe"]["precision"] for row in found} >= set(precisions_of(model))
    for row in found:
        assert row["status"] == "predicted"
        assert sum(row["report"]["at_peak"].values()) == row["report"]["peak_bytes"]
        assert row["predicting_cpu_seconds"] < 35
        assert row["predicting_process_bytes"] < 2 * 2**30


def test_every_row_says_its_recipe_in_the_same_words(table):
    """Else chapters that pair rows by their recipes leave some out: record all of them anew."""
    assert len({frozenset(row["recipe"]) for row in table.rows.values()}) == 1


def precisions_of(model):
    own = SIZES[model].get("precision")
    return [own] if own else ["fp32", "bf16-amp"]


@pytest.mark.parametrize(
    "pattern", ["gpt2, batch 8, bf16-amp, adamw", "vit-b-16, *fp32, adamw, per-block"]
)
def test_the_file_is_what_predict_gives(table, pattern):
    (row,) = recorded.find_rows(pattern)
    stored = table.rows[row.key]["report"]
    with release.following(table.versions["torch"]):
        fresh = json.loads(json.dumps(run.predicted(row)["report"]))
    assert fresh["phases"] == stored["phases"]
    assert fresh["at_peak"] == stored["at_peak"]


# ---- what GPUs and emulated cards gave, as committed ----

FILES = sorted(path.stem for path in store.FOLDER.glob("*.json") if path.stem != store.PREDICTED)


@pytest.mark.parametrize("name", FILES)
def test_a_recording_has_its_form_and_can_be(table, name):
    assert recorded.faults(recorded.load(name), table) == []


def contributed(table, **changes):
    key, predicted = next((k, r) for k, r in table.rows.items() if k.startswith("gpt2, batch 8"))
    peak = predicted["report"]["peak_bytes"]
    report = {"requested_bytes": peak, "peak_bytes": peak, "reserved_bytes": peak}
    row = {"status": "measured", "date": "2026-11-22", "report": report | changes.pop("report", {})}
    rows = {changes.pop("key", key): row | changes.pop("row", {})}
    file = {"device": "NVIDIA A100, 79.3 GiB", "versions": table.versions, "rows": rows}
    return store.Recording(**{**file, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"device": "my GPU"}, "must be as in 'Tesla T4, 14.6 GiB'"),
        ({"versions": {}}, "versions must name torch"),
        ({"rows": {}}, "rows are missing"),
        ({"key": "gpt5, batch 8"}, "is no row of this course"),
        ({"row": {"status": "ok"}}, "status and date must be there"),
        ({"row": {"date": ""}, "key": "vit-l-16, largest batch, bf16-amp, adamw"}, "micro_batch"),
        ({"report": {"requested_bytes": None}}, "must be there, in bytes"),
        ({"report": {"reserved_bytes": 1}}, "must rise"),
        ({"report": {"reserved_bytes": 2**37}}, "must rise, up to the NVIDIA A100"),
        ({"report": {"requested_bytes": 2**20}}, "1.00 MiB, where"),
    ],
)
def test_a_contributed_file_is_looked_over(table, changes, message):
    found = "; ".join(recorded.faults(contributed(table, **changes), table))
    assert message in found if message else not found


# ---- published measurements ----


@pytest.fixture(scope="module")
def peaks():
    return published_peaks.published_peaks()


def test_published_peaks_are_whole_and_their_misses_have_a_reason(peaks):
    assert len({peak.id for peak in peaks}) == len(peaks) >= 60
    for peak in peaks:
        assert peak.kind in published_peaks.KINDS
        assert peak.source
        assert peak.why or abs(peak.then / peak.published - 1) < 0.01, peak.id


def test_an_allocators_figure_is_met_and_nvidia_smis_is_more(peaks):
    by_kind = {kind: [p for p in peaks if p.kind == kind] for kind in published_peaks.KINDS}
    off = [abs(miss) for miss in published_peaks.misses(by_kind["allocated"], "then")]
    assert statistics.median(off) < 0.001
    assert sum(miss < 0.05 for miss in off) > 0.8 * len(off)
    assert max(published_peaks.misses(by_kind["nvidia-smi"], "emulated")) < 0


def test_the_readme_says_how_published_peaks_agree(peaks, root):
    numbers = re.findall(r"[\d.]+%?(?=[ ,])", published_peaks.summary(peaks))
    rows = (root / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in rows if "peaks of GPU memory that others measured" in line)
    assert re.findall(r"[\d.]+%?(?=[ ,])", row.replace("](course", "")) == numbers
