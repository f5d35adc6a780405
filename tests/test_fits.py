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
from ladder import answer_of, is_right

from tutorial_lib.instruments import emulated, recorded
from tutorial_lib.instruments.emulated import CARDS, Placed, Room, Verdict, on_cards, place
from tutorial_lib.instruments.emulated.verdict import CLOSE, IN_BLOCKS, TAKES_IN_BLOCKS
from tutorial_lib.instruments.planning.run.roofline import LASTS, RESTS_ON, TIMED, Speed, lasts
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.memory.timeline import Life
from tutorial_lib.units import GIB, KIB, MIB

FOLDER = Path(__file__).parents[1] / "course/recorded"


def read(name):
    return list(csv.DictReader((FOLDER / f"{name}.csv").read_text("utf-8").splitlines()))


DECISIONS, LADDER, CAUSES, LEAST = map(read, ("fits", "ladder", "ladder_causes", "least_room"))


def answer(decision):
    return Verdict(int(decision["predicted"]), Room(int(decision["cap"]))).answer


@pytest.mark.parametrize("answered", ["yes", "close", "no"])
@pytest.mark.parametrize("reserved", [None, GIB])
def test_a_verdict_has_three_answers(answered, reserved):
    sure = Room(GIB).sure if reserved is None else GIB / (1 + CLOSE)
    needs = {"yes": sure, "close": GIB, "no": GIB + 1}[answered]
    assert Verdict(int(needs), Room(GIB), reserved).answer == answered


@pytest.mark.parametrize(("placed", "told"), [(0.94, False), (0.96, True), (1.2, True)])
def test_where_blocks_may_decide_the_verdict_says_what_to_set(placed, told):
    said = Verdict(GIB // 2, Room(GIB), placed=Placed(int(placed * GIB), GIB))
    assert (said.answer, "expandable_segments" in str(said)) == ("yes", told)
    assert "set " not in f"{Verdict(9, Room(1), None, Placed(9, 9))} {Verdict(GIB, Room(2 * GIB))}"
    assert "take     --precision fp16-amp" in str(Verdict(GIB, Room(2 * GIB), unfused=True))


@pytest.mark.parametrize(
    ("release", "context", "joins"),
    [("1.12", 1687, False), ("1.13.1", 246, False), ("2.1", 246, True), (None, 246, True)],
)
def test_a_verdict_says_what_it_assumes_of_the_release(release, context, joins):
    room = Room.of("rtx-3090", release)
    needs = int(0.9 * room.free)
    said, unplaced = Verdict(needs, room, placed=Placed(needs, needs)), str(Verdict(needs, room))
    found = room.card.context, room.workspace, said.as_data()["torch"]
    assert found == (context * MIB, 8320 * KIB * joins, release)  # joins: 2.1, cuBLAS's is of 2.0
    assert ("PyTorch before 1.13 loads all kernels" in str(said)) is (context > 1000)
    assert ("PyTorch before 2.1 can't join them" in str(said)) is not joins
    assert ("expandable_segments" if joins else "  blocks   up to half more") in unplaced


def test_every_card_is_listed_the_cheapest_first_and_a_price_says_where_it_is_from():
    rows = on_cards(lambda room: Verdict(20 * GIB, room))
    answers = {row["card"]: row["fits"] for row in rows}
    assert answers.keys() == CARDS.keys()
    prices = [row["dollars_an_hour"] for row in rows if "read" in row]
    assert prices == sorted(prices)
    assert len(prices) > 10
    for row in rows[: len(prices)]:
        assert row["source"].startswith("https://")
        assert "2026-01-01" < row["read"] <= str(datetime.date.today())
    assert (answers["t4"], answers["rtx-3090"], answers["h100"]) == ("no", "yes", "yes")
    rows = on_cards(lambda room: Verdict(19 * GIB, room, placed=Placed(22 * GIB, 1)), "1.12")
    assert {("rtx-3090", "close"), ("h100", "yes")} < {(row["card"], row["fits"]) for row in rows}
    text = Path(emulated.__file__).with_name("prices.toml").read_text("utf-8")
    assert {key for one in tomllib.loads(text)["lists"] for key in one["dollars"]} <= set(CARDS)


def life(num_mib, born, died, category="activations", phase="forward", op=""):
    return Life(int(num_mib * MIB), born, died, category, phase, op, "")


def test_tensors_take_the_segments_that_the_allocator_takes():
    """One of 2 MiB for small tensors, one of 20 for those to 10 MiB, and whole ones from there."""
    joined = [(6, 1, 2), (6, 1, 3), (6, 1, 9), (9, 4, 9)]  # 9 MiB lie where two of 6 were
    lives = [(0.1, 1, 9), *joined, (25, 1, 3), (25, 5, 9), (29.1, 1, 2), (29.1, 3, None)]
    found = place([life(*each) for each in lives], 62 * MIB, 0)
    assert found == (pytest.approx(78 * MIB, abs=2 * MIB), (2 + 20 + 26 + 30) * MIB)
    # a segment that is free as a whole goes back where memory is out
    assert place([life(22, 1, 1), life(30, 2, 3)], 30 * MIB, 0).needs < 34 * MIB
    # not with what stays in it: backward's workspace, or the optimizer's state, made last of all
    product, state = life(1, 4, 4, "", "backward", "mm"), life(30, 0, None, "optimizer_state", "")
    kept = [product], [state], [state, life(80, 3, 3, phase="optimizer")], [life(1, 3, 3, op="mm")]
    older = Room.of("rtx-4090").workspace
    found = [place([life(100, 2, 2, op="mm"), *stays], 100 * MIB, older).reserves for stays in kept]
    assert [num_bytes // MIB for num_bytes in found] == [122, 220, 300, 122]
    assert place([], 0, older) == (0, 0)
    dropout = [life(mib, 2, 2, op="native_dropout") for mib in (24, 6)]  # its mask is made first
    assert place([life(26, 1, 1), *dropout], 30 * MIB, 0).reserves == (26 + 24) * MIB


def test_what_its_blocks_need_is_what_a_step_needed_on_an_h200():
    rows = [row for row in LEAST if row["allocator"] == "default"]
    more = [int(row["ran"]) / int(row["placed"]) - 1 for row in rows]
    assert statistics.median(map(abs, more)) < 0.01
    assert sum(share <= IN_BLOCKS for share in more) > 0.95 * len(more)
    for row in (row for row in LEAST if row["allocator"] != "default"):
        placed = Placed(int(row["placed"]), 0)
        assert Verdict(int(row["predicted"]), Room(1), placed=placed).enough >= int(row["ran"])
    low, high = TAKES_IN_BLOCKS
    shares = [int(row["reserved"]) / int(row["placed_reserves"]) for row in rows]
    assert sum(low <= share <= high for share in shares) > 0.9 * len(shares)


def test_of_a_small_run_nvidia_smi_shows_what_is_said():
    rows = [row for row in read("whole_runs") if row["kind"] == "driver" and row["placed"]]
    for row in (small := [row for row in rows if int(row["predicted"]) < GIB]):
        placed, room = Placed(1, int(row["placed"])), Room.of(row["card"])
        low, high = Verdict(int(row["predicted"]), room, placed=placed).takes
        assert low < int(row["published"]) < high
    assert len(small) == 10
    assert Room.of("t4").card.context == 40 * 1536 * 2 * KIB  # of 1024 threads each


def test_of_a_predictions_answers_one_was_wrong():
    wrong = [d for d in DECISIONS if answer(d) == ("no" if d["ran"] == "1" else "yes")]
    assert [(d["model"], d["optimizer"]) for d in wrong] == [("T5-small", "SGD")]
    assert [*map(answer, DECISIONS)].count("close") < 0.25 * len(DECISIONS)


# ---- timm's ladder: each model's largest batch that ran on an RTX 3090, and the next, which failed


def key(row):
    return row["model"], row["layout"], row["batch"]


def test_of_an_rtx_3090_five_answers_were_wrong():
    answers = [*map(answer_of, LADDER)]
    are = zip(LADDER, answers, strict=True)
    wrong = [key(row)[:2] for row, said in are if said == ("no" if row["ran"] == "1" else "yes")]
    assert sorted(wrong) == [
        *(("cs3darknet_l", "nchw"), ("cs3sedarknet_xdw", "nchw"), ("gluon_resnet152_v1s", "nchw")),
        *(("hrnet_w48", "nhwc"), ("seresnet152d", "nchw")),
    ]
    assert answers.count("close") < 0.12 * len(LADDER)


def test_a_wrong_prediction_has_a_cause():
    runs = {key(row): row for row in LADDER}
    ran = {k[:2]: int(row["predicted"]) for k, row in runs.items() if row["ran"] == "1"}
    wrong = {k for k, row in runs.items() if not is_right(row)}
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
        if row["beside"]:  # one of its kind that takes more, and ran
            assert ran[row["beside"], layout] >= int(runs[model, layout, batch]["predicted"])


def test_the_readme_says_how_many_are_right(root):
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    right = sum(d["emulated_ran"] == d["ran"] for d in DECISIONS)
    answers = Counter(map(answer, DECISIONS))
    assert f"| {len(DECISIONS)} training loops that others ran" in said
    assert f"| {right} end as they did there |" in said
    assert f"answers {answers['yes'] + answers['no']} with yes or no, one of them wrongly" in said
    assert f"calls {answers['close']} close" in said
    answers = Counter(map(answer_of, LADDER))
    asked = [row["emulated_ran"] == row["ran"] for row in LADDER if row["emulated_ran"]]
    assert f"| {len(LADDER)} decisions about {len({row['model'] for row in LADDER})} models" in said
    assert f"| {sum(asked)} of the {len(asked)} emulated end as they did there |" in said
    assert f"answers {answers['yes'] + answers['no']} with yes or no, five of them wrongly" in said
    assert f"calls {answers['close']} close |" in said


def test_the_readme_says_what_an_h200_measured(root):
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    measured, on_emulated, predicted = (
        recorded.load(name).rows for name in ("NVIDIA H200", "emulated NVIDIA H200", "predicted")
    )
    asked = {key: row["report"]["requested_bytes"] for key, row in measured.items()}
    same = sum(on_emulated[key]["report"]["requested_bytes"] == asked[key] for key in asked)
    off = [predicted[key]["report"]["peak_bytes"] / asked[key] - 1 for key in asked]
    assert f"| {len(asked)} training steps of this course, measured on an H200" in said
    assert f"| {same} match, to the byte, what the allocator was asked for" in said
    other = recorded.load("NVIDIA H100 80GB HBM3").rows
    assert all(row["report"]["requested_bytes"] == asked[key] for key, row in other.items())
    assert f"({len(other)} of them on an H100, too: the same bytes)" in said
    assert f"off by {statistics.median(map(abs, off)):.2%} in the median" in said


def test_the_readme_says_how_operations_and_whole_runs_agree(root):
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    operations, runs = read("operations"), read("whole_runs")
    runs = [r for r in runs if r["predicted"] and r["kind"] == "reserved" and not r["bound"]]

    def off(rows, *parts):
        return [abs(sum(int(r[p] or 0) for p in parts) / int(r["published"]) - 1) for r in rows]

    each = off(operations, "predicted", "workspaces")
    assert f"| {len(each)} [single operations]" in said
    words = f"off by {statistics.median(each):.2%} in the median; {sum(o < 0.01 for o in each)}"
    assert words in said
    placed = off(runs, "placed")
    assert f"| {len(runs)} whole runs of which others published" in said
    words = f"off by {statistics.median(placed):.1%} in the median, by {max(placed):.0%} at worst"
    assert f"with the tensors in blocks, {words}" in said
    asked = off([run for run in runs if run["reserved"]], "reserved")
    words = f"off by {statistics.median(asked):.1%} in the median |"
    assert f"| {len(asked)} emulated, from two sources: {words}" in said


# ---- seconds: a roofline whose operations wait for their launches ----


OWN, WHOLE = read("own_times"), [row for row in read("whole_runs") if row["elapsed_seconds"]]


def price(row, of):
    return 1 + float(row[f"{of}_price"]) / 100


def test_of_the_timed_steps_nine_in_ten_are_in_the_range():
    shares = [float(row["measured_ms"]) / float(row["elapsed_ms"]) for row in OWN]
    pairs = zip(shares, OWN, strict=True)
    shares += [share * price(row, "measured") / price(row, "elapsed") for share, row in pairs]
    shares += [float(row["seconds"]) / float(row["elapsed_seconds"]) for row in WHOLE]
    cards = {row["card"] for row in OWN} | {Room.of(row["card"]).card.name for row in WHOLE}
    assert f"{len(shares)} steps in bfloat16" in RESTS_ON
    assert cards == set(TIMED)
    inside = sum(LASTS[0] <= share <= LASTS[1] for share in shares)
    assert 0.88 * len(shares) < inside < 0.92 * len(shares)


def test_a_float32_step_that_was_timed_is_in_its_range():
    row = recorded.load("NVIDIA H200").rows["gpt2, batch 8, fp32, adamw"]
    low, high = lasts(Recipe(**row["recipe"]).make_step, Speed.of("NVIDIA H200"))
    assert low < row["report"]["seconds"] < high


@pytest.mark.parametrize("card", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_with_launches_the_price_of_checkpoints_is_within_five_percent(card):
    """In the median; the H100's rows took no part in `launch_seconds` and `hook_seconds`."""
    rows = [row for row in OWN if row["card"] == card]
    off = {
        of: statistics.median(abs(price(row, of) / price(row, "measured") - 1) for row in rows)
        for of in ("roofline", "elapsed")
    }
    assert off["elapsed"] < 0.05 < off["roofline"] / 2


def test_over_lengths_seconds_grow_as_they_did():
    """Within 15 % in the median: Qwen's LoRA and Q-LoRA, an A100."""
    by_model: dict[str, list[tuple[int, float, float]]] = {}
    for row in WHOLE:
        if row["id"].startswith("qwen"):
            model, _, length = row["id"].rpartition("_")
            took = int(length), float(row["seconds"]), float(row["elapsed_seconds"])
            by_model.setdefault(model, []).append(took)
    off = [
        abs((long[2] / short[2]) / (long[1] / short[1]) - 1)
        for steps in map(sorted, by_model.values())
        for short, long in itertools.pairwise(steps)
    ]
    assert len(off) == 18
    assert statistics.median(off) < 0.15
