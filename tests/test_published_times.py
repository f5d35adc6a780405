"""The table of times that others published, and the script that predicts them."""

import csv
import json
import re
import statistics

import published_times as times
import pytest

from tutorial_lib.instruments.training import Recipe

ROWS = times.read()
OWN = list(csv.DictReader(times.TABLE.with_name("own_times.csv").open(encoding="utf-8")))
ALWAYS = ("id", "source", "address", "where", "quote", "model", "checkpointed", "unit")
UNITS = {"s", "ms", "min", "samples/s", "steps/s", "updates/s", "tokens/s", "TFLOP/s", times.RATIO}


def test_there_are_forty_rows_of_one_setting_and_no_two_have_one_name():
    assert sum(not row["differs"] for row in ROWS) >= 40
    assert len({row["id"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_row_can_be_read_again_at_its_source(row):
    assert None not in (*row, *row.values())  # as many cells as columns
    assert all(row[name].strip() for name in ALWAYS)
    assert row["address"].startswith("https://")
    assert len(row["quote"].split()) < 20
    assert row["unit"] in UNITS
    assert times.published(row) > 0
    assert bool(row["memory_without"]) == bool(row["memory_with"]) == bool(row["memory_unit"])
    assert all(float(row[name]) > 0 for name in ("memory_without", "memory_with") if row[name])
    if row["unit"] != times.RATIO:  # one of the two figures stands in the quote
        said = {float(figure) for figure in re.findall(r"\d+(?:\.\d+)?", row["quote"])}
        ours = {float(row["without"]), float(row["with"])}
        assert said & (ours | {figure / 1000 for figure in ours})


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_row_says_what_its_prediction_needs_or_why_it_has_none(row):
    assert row["trains"] in times.FORWARDS
    assert 0 <= float(row["again_without"]) <= 1
    if not row["again"]:
        assert row["why"] or row["differs"]
        return
    assert 0 <= float(row["again"]) <= 1
    points = 100 * abs(times.by_rule(row) - times.published(row))
    assert points <= times.NEAR or row["why"] or row["differs"] or row["recipe"]
    if row["recipe"]:
        fields = json.loads(row["recipe"])
        assert len(fields.pop("depth", ("", 0))) == 2
        assert row["stand_in"]
        Recipe(**fields | fields.pop("with", {}))


def test_the_script_prints_the_rule_of_chapter_06(capsys):
    times.main(["nin-rerun", "flux2-*", "bert-long-*", "flux-dev-*", "moe-maxtext"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    printed = {words[0]: words[1:3] for words in lines if words and words[0] in BY_HAND}
    assert printed == BY_HAND


# Published, and predicted: no forward again, all of LoRA's two, of three, of LoRA's two and a half.
BY_HAND = {
    "nin-rerun": ["+1.0", "+0.0"],
    "flux2-klein-4b-lora": ["+29.2", "+50.0"],
    "bert-long-transformers": ["+32.4", "+33.3"],
    "flux-dev-lora-interval": ["+41.7", "+20.0"],
    "moe-maxtext": ["+2.3", "-"],
}


def test_launches_explain_the_measured_seconds_that_a_roofline_is_short_of():
    without, with_ = (
        statistics.median(abs(float(row[of]) / float(row["measured_ms"]) - 1) for row in OWN)
        for of in ("roofline_ms", "elapsed_ms")
    )
    assert with_ < 0.15 < without


@pytest.mark.weekly
def test_the_table_of_our_own_times_is_what_the_script_writes():
    assert list(times.own()) == OWN
