"""Published steps with offload: the recorded predictions are today's, and how far off they are."""

import csv
import statistics

import published_offload as published
import pytest

ROWS = list(csv.DictReader(published.TABLE.open(encoding="utf-8")))
WAYS = {"deepspeed": published.deepspeed, "torchtitan": published.torchtitan}


@pytest.mark.parametrize(
    "setting",
    [
        "deepspeed 3328",
        *(
            pytest.param(name, marks=pytest.mark.weekly)
            for name in published.settings(ROWS)
            if name != "deepspeed 3328"
        ),
    ],
)
def test_what_is_recorded_is_predicted_today(setting, monkeypatch):
    counted = {row["model"]: float(row["saved_a_token"]) for row in ROWS}
    monkeypatch.setattr(published, "saved_a_token", counted.get)
    for row in published.settings(ROWS)[setting]:
        again = WAYS[row["source"]](row)
        assert again["fits"] == row["fits"]
        for column in ("seconds", "own", "own_moved_gb"):
            assert float(again[column]) == pytest.approx(float(row[column]), rel=0.01, abs=0.1)
    published.chain.cache_clear()


@pytest.mark.weekly
def test_what_a_compiled_block_saves_is_counted():
    for row in ROWS:
        assert published.saved_a_token(row["model"]) == float(row["saved_a_token"])


def test_the_best_way_is_predicted_in_every_setting():
    found = list(published.best_ways(ROWS))
    assert len(found) == 6
    assert all(ours in best for _, best, ours in found), found


def test_whether_nothing_moved_fits_is_predicted_in_every_row():
    for row in ROWS:
        if row["way"] == "none" and row["source"] == "deepspeed":
            assert (row["fits"] == "yes") == (row["outcome"] == "ran")


@pytest.mark.parametrize(("source", "far"), [("", 0.05), ("deepspeed", 0.12), ("torchtitan", 0.05)])
def test_ratios_are_near_in_the_median(source, far):
    pairs = [(b / a, row) for row, a, b in published.ratios(ROWS)]
    off = [abs(ratio - 1) for ratio, row in pairs if row["source"].startswith(source)]
    assert statistics.median(off) < far
