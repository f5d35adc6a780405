"""Does it fit: our answers against what training steps did on real GPUs, free and capped.

`python course/recorded/make/fits.py` made the answers to 47 loops that others ran, and says where
they come from.
"""

import csv
import datetime
import itertools
import statistics
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tutorial_lib.instruments import recorded
from tutorial_lib.instruments.emulated import (
    CARDS,
    Room,
    Verdict,
    find_card,
    needed,
    on_cards,
    verdict,
)
from tutorial_lib.instruments.emulated.verdict import CLOSE
from tutorial_lib.instruments.planning.run.roofline import LASTS, RESTS_ON, TIMED, Speed
from tutorial_lib.memory.report import MemoryReport
from tutorial_lib.memory.timeline import Life
from tutorial_lib.units import GIB, MIB

FOLDER = Path(__file__).parents[1] / "course/recorded"
DECISIONS, LADDER, CAUSES = (
    list(csv.DictReader((FOLDER / f"{name}.csv").read_text("utf-8").splitlines()))
    for name in ("fits", "ladder", "ladder_causes")
)


def answer(decision, of):
    room = Room(int(decision["cap"]))
    if of == "predicted":
        return Verdict(int(decision[of]), room).answer
    if decision["emulated_ran"] == "0":  # the program itself ran out there
        return "no"
    return Verdict(int(decision[of]), room, int(decision["reserved"])).answer


def is_wrong(decision, of):
    return answer(decision, of) == ("no" if decision["ran"] == "1" else "yes")


@pytest.mark.parametrize("answered", ["yes", "close", "no"])
@pytest.mark.parametrize("reserved", [None, GIB])
def test_a_verdict_has_three_answers(answered, reserved):
    sure = Room(GIB).sure if reserved is None else GIB / (1 + CLOSE)
    needs = {"yes": sure, "close": GIB, "no": GIB + 1}[answered]
    assert Verdict(int(needs), Room(GIB), reserved).answer == answered


@pytest.mark.parametrize(("needs", "told"), [(0.6, False), (0.8, True), (0.99, True), (2, False)])
def test_where_blocks_may_decide_the_verdict_says_what_to_set(needs, told):
    assert ("expandable_segments" in str(Verdict(int(needs * GIB), Room(GIB)))) is told


@pytest.mark.parametrize(
    ("release", "context", "joins"),
    [("1.12", 1687, False), ("1.13.1", 246, False), ("2.1", 246, True), (None, 246, True)],
)
def test_a_verdict_says_what_it_assumes_of_the_release(release, context, joins):
    room = Room.of("rtx-3090", release)
    said = Verdict(int(0.9 * room.free), room)
    assert room.card.context == context * MIB
    assert said.as_data()["torch"] == release
    assert ("PyTorch before 1.13 loads all kernels" in str(said)) is (context > 1000)
    assert ("expandable_segments" in str(said)) is joins
    assert ("PyTorch before 2.1 can't join free ones" in str(said)) is not joins


def test_every_card_is_listed_the_cheapest_first_and_a_price_says_where_it_is_from():
    rows = on_cards(20 * GIB)
    assert {row["card"] for row in rows} == set(CARDS)
    prices = [row["dollars_an_hour"] for row in rows if "read" in row]
    assert prices == sorted(prices)
    assert len(prices) > 10
    assert all("read" not in row for row in rows[len(prices) :])
    for row in rows[: len(prices)]:
        assert row["source"].startswith("https://")
        assert "2026-01-01" < row["read"] <= str(datetime.date.today())
    answers = {row["card"]: row["fits"] for row in rows}
    assert (answers["t4"], answers["rtx-3090"], answers["h100"]) == ("no", "yes", "yes")
    older = {row["card"]: row["fits"] for row in on_cards(20 * GIB, "1.12")}
    assert (older["rtx-3090"], older["h100"]) == ("close", "yes")


def test_a_price_is_of_a_card_that_is_known():
    path = Path(verdict.__file__).with_name("prices.toml")
    lists = tomllib.loads(path.read_text("utf-8"))["lists"]
    assert {key for one in lists for key in one["dollars"]} <= set(CARDS)


def test_of_an_older_allocator_large_tensors_take_whole_segments():
    def life(num_bytes, born, died):
        return Life(num_bytes, born, died, "activations", "forward", "", "")

    lives = [life(10 * MIB + 1, 1, 3), life(1000, 1, None), life(9 * MIB + 1, 4, 5)]
    report = MemoryReport(peak_bytes=10 * MIB + 1001, timeline=lives)
    assert needed(report, "1.12") == needed(report, "2.0.1") == 12 * MIB + 1024
    assert needed(report) == needed(report, "2.1") == 10 * MIB + 1001
    said = str(Verdict(needed(report, "1.12"), Room(GIB, release="1.12")))
    assert "12.0 MiB in segments of 2 MiB, of 1.00 GiB" in said
    assert "segments of 2 MiB" not in str(Verdict(12 * MIB, Room(GIB)))


def test_of_a_predictions_answers_one_was_wrong():
    """It ran without expandable segments."""
    wrong = [(d["model"], d["optimizer"]) for d in DECISIONS if is_wrong(d, "predicted")]
    assert wrong == [("T5-small", "SGD")]
    answers = Counter(answer(d, "predicted") for d in DECISIONS)
    assert answers["close"] < 0.25 * len(DECISIONS)


# ---- timm's ladder: each model's largest batch that ran on an RTX 3090, and the next, which failed

RTX_3090 = Room.of("rtx-3090", "1.12")


def key(row):
    return row["model"], row["layout"], row["batch"]


def size_of(row):
    return int(row["needed"] or row["predicted"])


def test_of_an_rtx_3090_six_answers_were_wrong():
    answers = [Verdict(size_of(row), RTX_3090).answer for row in LADDER]
    wrong = [
        key(row)[:2]
        for row, answer in zip(LADDER, answers, strict=True)
        if answer == ("no" if row["ran"] == "1" else "yes")
    ]
    assert sorted(wrong) == [
        *(("cs3darknet_l", "nchw"), ("dm_nfnet_f4", "nchw"), ("gluon_resnet152_v1s", "nchw")),
        *(("hrnet_w48", "nhwc"), ("sebotnet33ts_256", "nchw"), ("seresnet152d", "nchw")),
    ]
    assert answers.count("close") < 0.13 * len(LADDER)


def test_a_wrong_prediction_has_a_cause():
    runs = {key(row): row for row in LADDER}
    wrong = {k for k, r in runs.items() if (int(r["predicted"]) <= RTX_3090.free) != int(r["ran"])}
    assert {key(row) for row in CAUSES} == wrong
    for row in CAUSES:
        model, layout, batch = key(row)
        other = runs.get((model, "nhwc" if layout == "nchw" else "nchw", batch))
        assert row["cause"] in {"blocks", "layout", "open"}
        assert (row["cause"] == "blocks") is (row["cudnn_ran"] == "")
        if row["cause"] == "blocks":
            assert runs[model, layout, batch]["emulated_ran"] in {"0", ""}
        if row["cause"] == "layout":
            assert other is None or other["ran"] == "1"


def test_the_readme_says_how_many_are_right(root):
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    right = sum(d["emulated_ran"] == d["ran"] for d in DECISIONS)
    answers = Counter(answer(d, "predicted") for d in DECISIONS)
    assert f"| {len(DECISIONS)} training loops that others ran" in said
    assert f"| {right} end as they did there |" in said
    assert f"answers {answers['yes'] + answers['no']} with yes or no, one of them wrongly" in said
    assert f"calls {answers['close']} close" in said
    answers = Counter(Verdict(size_of(row), RTX_3090).answer for row in LADDER)
    asked = [row["emulated_ran"] == row["ran"] for row in LADDER if row["emulated_ran"]]
    assert f"| {len(LADDER)} decisions about {len({row['model'] for row in LADDER})} models" in said
    assert f"| {sum(asked)} of the {len(asked)} emulated end as there |" in said
    assert f"answers {answers['yes'] + answers['no']} with yes or no, six of them wrongly" in said
    assert f"calls {answers['close']} close |" in said


def test_the_readme_says_what_an_h200_measured(root):
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    measured, emulated, predicted = (
        recorded.load(name).rows for name in ("NVIDIA H200", "emulated NVIDIA H200", "predicted")
    )
    asked = {key: row["report"]["requested_bytes"] for key, row in measured.items()}
    same = sum(emulated[key]["report"]["requested_bytes"] == asked[key] for key in asked)
    off = [predicted[key]["report"]["peak_bytes"] / asked[key] - 1 for key in asked]
    assert f"| {len(asked)} training steps of this course, measured on an H200" in said
    assert f"| {same} match, to the byte, what the allocator was asked for" in said
    other = recorded.load("NVIDIA H100 80GB HBM3").rows
    assert all(row["report"]["requested_bytes"] == asked[key] for key, row in other.items())
    assert f"({len(other)} of them on an H100, too: the same bytes)" in said
    assert f"off by {statistics.median(map(abs, off)):.2%} in the median" in said


def test_the_readme_says_how_operations_and_whole_runs_agree(root):
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    operations, runs = (
        list(csv.DictReader((FOLDER / name).read_text("utf-8").splitlines()))
        for name in ("operations.csv", "whole_runs.csv")
    )
    runs = [r for r in runs if r["predicted"] and r["kind"] == "reserved" and not r["bound"]]

    def off(rows, *parts):
        ours = [sum(int(row[part] or 0) for part in parts) for row in rows]
        return [abs(o / int(r["published"]) - 1) for o, r in zip(ours, rows, strict=True)]

    each = off(operations, "predicted", "workspaces")
    assert f"| {len(each)} [single operations]" in said
    assert (
        f"off by {statistics.median(each):.2%} in the median; {sum(o < 0.01 for o in each)}" in said
    )
    predicted = off(runs, "predicted")
    assert f"| {len(runs)} whole runs of which others published" in said
    words = f"off by {statistics.median(predicted):.1%} in the median, by {max(predicted):.0%} at"
    assert words in said
    asked = off([run for run in runs if run["reserved"]], "reserved")
    words = f"off by {statistics.median(asked):.1%} in the median |"
    assert f"| {len(asked)} emulated, from two sources: {words}" in said


# ---- seconds: a step lasts as long as its roofline, or as its launches ----


OWN, WHOLE = (
    list(csv.DictReader((FOLDER / f"{name}.csv").read_text("utf-8").splitlines()))
    for name in ("own_times", "whole_runs")
)
WHOLE = [row for row in WHOLE if row["launches"]]


def price(row, of):
    return 1 + float(row[f"{of}_price"]) / 100


def test_of_the_timed_steps_nine_in_ten_are_in_the_range():
    speed, shares = Speed(), []
    for row in OWN:
        took, roofline = float(row["measured_ms"]) / 1000, float(row["roofline_ms"]) / 1000
        shares.append(took / speed.longer(roofline, int(row["launches"]), 0))
        took, roofline = took * price(row, "measured"), roofline * price(row, "roofline")
        counts = int(row["again_launches"]), int(row["hooks"])
        shares.append(took / speed.longer(roofline, *counts))
    for row in WHOLE:
        counts = int(row["launches"]), int(row["hooks"])
        shares.append(float(row["seconds"]) / speed.longer(float(row["roofline_seconds"]), *counts))
    cards = {row["card"] for row in OWN} | {find_card(row["card"]).name for row in WHOLE}
    assert f"{len(shares)} steps in bfloat16" in RESTS_ON
    assert cards == set(TIMED)
    inside = sum(LASTS[0] <= share <= LASTS[1] for share in shares)
    assert 0.88 * len(shares) < inside < 0.92 * len(shares)


@pytest.mark.parametrize("card", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_with_the_cpus_time_the_price_of_checkpoints_is_less_than_half_as_far_off(card):
    """The H100's rows took no part in `hook_seconds`."""
    rows = [row for row in OWN if row["card"] == card]
    off = {
        of: statistics.median(abs(price(row, of) / price(row, "measured") - 1) for row in rows)
        for of in ("roofline", "longer")
    }
    assert off["longer"] < 0.06
    assert off["longer"] < off["roofline"] / 2


def test_over_lengths_seconds_grow_as_they_did():
    """Within 15 % in the median: Qwen's LoRA, an A100."""
    by_model: dict[str, list[tuple[int, float, float]]] = {}
    for row in WHOLE:
        if row["id"].startswith("qwen"):
            model, _, length = row["id"].rpartition("_")
            counts = int(row["launches"]), int(row["hooks"])
            ours = Speed().longer(float(row["roofline_seconds"]), *counts)
            by_model.setdefault(model, []).append((int(length), float(row["seconds"]), ours))
    off = [
        abs((long[2] / short[2]) / (long[1] / short[1]) - 1)
        for steps in map(sorted, by_model.values())
        for short, long in itertools.pairwise(steps)
    ]
    assert len(off) == 7
    assert statistics.median(off) < 0.15
