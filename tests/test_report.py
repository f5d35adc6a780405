import pytest
import torch
from test_meter import gpt_step
from torch import nn

from tutorial_lib import memory
from tutorial_lib.memory.report import MemoryReport, as_data
from tutorial_lib.units import Bytes, human_bytes


@pytest.fixture(scope="module")
def report():
    step, model, optimizer = gpt_step()
    return memory.measure(step, model=model, optimizer=optimizer, label="small GPT")


def test_json_keeps_everything(report, tmp_path):
    path = tmp_path / "report.json"
    report.save(path)
    assert MemoryReport.from_json(path.read_text()) == report


def test_sizes_print_themselves_and_are_saved_as_digits(report):
    read = MemoryReport.from_json(report.to_json())
    for one in (report, read):
        sizes = [one.peak_bytes, one.baseline_bytes, one.leaked_bytes, one.forward_backward_bytes]
        sizes += [*one.at_peak.values(), *one.phases.values()]
        assert {type(size) for size in sizes} == {Bytes}
    assert f"{report.peak_bytes}" == human_bytes(int(report.peak_bytes))
    assert {type(size) for size in as_data(report)["at_peak"].values()} == {int}
    assert f'"peak_bytes": {report.peak_bytes:d},' in report.to_json()
    assert report.counted_bytes is None


def test_text_says_what_how_and_where(report):
    text = str(report)
    assert text.startswith("small GPT: peak ")
    assert "(counted, CPU)" in text
    assert "optimizer state" in text
    assert "seconds" not in text  # a time is machine dependent: only when asked for


def test_text_and_html_show_the_same_rows(report):
    text = [line.split("  ") for line in str(report).splitlines()]
    for name, size, share in report.rows():
        assert [name, size, share] in [[w.strip() for w in words if w.strip()] for words in text]
        assert f"{name}</td><td>{size}</td><td>{share}</td>" in report._repr_html_()
    assert {name.replace(" ", "_") for name, _, _ in report.rows()} == {
        name for name, size in report.at_peak.items() if size
    }


def test_html_escapes_the_label():
    assert "<script>" not in MemoryReport(label="<script>", peak_bytes=1)._repr_html_()


def test_the_peak_by_module_and_by_line():
    """To the byte, for a model of two layers whose bytes are known by hand."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Sequential(nn.Linear(8, 8, bias=False)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    batch = torch.ones(32, 8)

    def step():
        out = model(batch)
        optimizer.zero_grad()
        out.sum().backward()
        optimizer.step()

    report = memory.measure(step, model=model, optimizer=optimizer, lines=True)
    modules = report.by("module")
    assert report.peak_phase == "backward"
    weight = 8 * 8 * 4
    # weight and momentum; what it made; and the batch, which it was the first to read
    assert modules["0"] == 2 * weight + 32 * 8 * 4 + batch.nbytes
    assert modules["1.0"] >= 2 * weight
    assert sum(modules.values()) == report.peak_bytes
    assert report.by("module", depth=1)["1"] == modules["1.0"]
    lines = report.by("line")
    assert sum(lines.values()) == report.peak_bytes
    assert {name.partition(":")[0] for name in lines} <= {"test_report.py", "(before the step)"}
    assert lines["(before the step)"] == 4 * weight + batch.nbytes
    assert MemoryReport.from_json(report.to_json()).by("line") == lines


def test_lines_that_were_not_noted_are_refused(report):
    with pytest.raises(ValueError, match="measure with lines=True"):
        report.by("line")
