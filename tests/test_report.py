import json

import pytest
from test_meter import gpt_step

from tutorial_lib import memory, plots
from tutorial_lib.memory.report import MemoryReport, as_data
from tutorial_lib.timeline import CATEGORIES
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


def test_short_json_leaves_the_timeline_out(report):
    short = as_data(report)
    assert "timeline" not in short
    assert set(short["at_peak"]) == set(CATEGORIES)
    assert MemoryReport.from_json(json.dumps(short)).peak_bytes == report.peak_bytes


def test_text_says_what_how_and_where(report):
    text = str(report)
    assert text.startswith("small GPT: peak ")
    assert "(counted, CPU)" in text
    assert "optimizer state" in text
    assert "seconds" not in text  # a time is machine dependent: only when asked for


def test_html_escapes_the_label():
    assert "<script>" not in MemoryReport(label="<script>", peak_bytes=1)._repr_html_()


def test_an_empty_report_prints():
    assert "peak 0 B" in str(MemoryReport())


def test_figure_is_the_step_timeline(report):
    assert isinstance(report.figure(), plots.CourseFigure)
