"""Explorers on the kernel's side: no front end, and no ipywidgets where that is the question."""

import builtins
import re

import pytest

from tutorial_lib import plots
from tutorial_lib.instruments import figures, planning, recorded, widgets
from tutorial_lib.units import GIB

STATIC = {"text/html", "text/plain"}


@pytest.fixture
def no_ipywidgets(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "ipywidgets":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)


def batch_explorer(micro_batch=8, accumulation_steps=4, num_gpus=2):
    controls = {
        "micro_batch": widgets.Control("micro-batch", range(1, 17), micro_batch),
        "accumulation_steps": widgets.Control(
            "accumulation steps", range(1, 9), accumulation_steps
        ),
        "num_gpus": widgets.Control("GPUs", range(1, 5), num_gpus),
    }
    return widgets.Explorer(figures.batch_grid, controls)


def toy_ledger(num_parameters, precision, optimizer, *, micro_batch, seq_len, checkpointing):
    saved = num_parameters * micro_batch * seq_len // 1024
    return {
        "parameters": num_parameters * (4 if precision == "fp32" else 2),
        "optimizer_state": num_parameters * (0 if optimizer == "SGD" else 8),
        "activations": saved // 8 if checkpointing else saved,
    }


def calculator(ledger, **options):
    models = {"124M": 124 * 10**6, "7B": 7 * 10**9, "13B": 13 * 10**9}
    choices = {"precisions": ("fp32", "bf16 mixed", "bf16"), "optimizers": ("SGD", "AdamW")}
    first = {"precision": "bf16 mixed", "seq_len": 2048}
    return widgets.memory_calculator(ledger, **{"models": models, **choices, **first, **options})


def control(explorer, label):
    pytest.importorskip("ipywidgets")
    return next(each for each in explorer.box.children if each.description == label)


def picture(html):
    return re.search(r"base64,([\w+/=]+)", html).group(1)


@pytest.mark.parametrize(
    ("label", "value", "product"),
    [
        ("micro-batch", 3, "3 x 4 x 2 = 24"),
        ("accumulation steps", 1, "8 x 1 x 2 = 16"),
        ("GPUs", 4, "8 x 4 x 4 = 128"),
    ],
)
def test_a_moved_slider_moves_the_sentence_and_the_picture(label, value, product):
    explorer = batch_explorer()
    slider = control(explorer, label)
    shown = explorer.box.children[-1]
    before = shown.value
    slider.value = value
    assert f"{product} samples" in explorer.sentence
    assert f"{product} samples" in shown.value
    assert picture(shown.value) != picture(before)
    slider.value = {"micro-batch": 8, "accumulation steps": 4, "GPUs": 2}[label]
    assert shown.value == before


def test_every_control_of_the_calculator_reaches_the_ledger():
    asked = []

    def ledger(*args, **kwargs):
        asked.append((*args, *kwargs.values()))
        return toy_ledger(*args, **kwargs)

    explorer = calculator(ledger)
    control(explorer, "parameters").value = "13B"
    control(explorer, "precision").value = "fp32"
    control(explorer, "optimizer").value = "SGD"
    control(explorer, "micro-batch").value = 64
    control(explorer, "sequence length").value = 512
    control(explorer, "checkpointing").value = True
    assert asked[0] == (7 * 10**9, "bf16 mixed", "AdamW", 1, 2048, False)
    assert asked[-1] == (13 * 10**9, "fp32", "SGD", 64, 512, True)
    assert len(asked) == 7, "one drawing for the start, and one for each move"


@pytest.mark.parametrize(
    ("num_bytes", "verdict"),
    [
        (16 * GIB, "Large enough for these bytes: 16 GiB, 24 GiB, 80 GiB."),
        (16 * GIB + 1, "Large enough for these bytes: 24 GiB, 80 GiB."),
        (81 * GIB, "Large enough for these bytes: none."),
    ],
)
def test_the_sentence_names_the_cards_that_hold_the_bytes(num_bytes, verdict):
    def ledger(*_, **__):
        return {"activations": num_bytes}

    explorer = calculator(ledger)
    assert explorer.sentence.endswith(verdict)


def test_one_bundle_holds_the_view_and_the_static_figure():
    pytest.importorskip("ipywidgets")
    explorer = batch_explorer(2, 3, 1)
    bundle = explorer._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == STATIC | {widgets.VIEW}
    view = bundle[widgets.VIEW]
    assert (view["version_major"], view["version_minor"]) == (2, 0)
    assert view["model_id"] == explorer.box.model_id
    assert bundle["text/plain"] == figures.batch_grid(2, 3, 1).alt
    assert bundle["text/html"].startswith(plots.as_html(figures.batch_grid(2, 3, 1)))


@pytest.mark.usefixtures("no_ipywidgets")
def test_without_ipywidgets_the_figure_alone_is_shown_and_still_moves():
    explorer = calculator(toy_ledger)
    assert set(explorer._repr_mimebundle_()) == STATIC
    before = explorer.html
    explorer.set(model="124M")
    assert picture(explorer.html) != picture(before)
    assert "124M" in explorer.sentence


@pytest.mark.parametrize("wrong", [{"micro_batch": 0}, {"num_gpus": 5}, {"gpus": 1}])
def test_set_refuses_what_no_slider_reaches_and_moves_nothing(wrong):
    explorer = batch_explorer()
    before = (dict(explorer.values), explorer.html)
    with pytest.raises(ValueError, match=r"must be one of 1, 2|unknown \['gpus'\]: try micro_"):
        explorer.set(accumulation_steps=2, **wrong)
    assert (explorer.values, explorer.html) == before


@pytest.mark.parametrize(
    "answer",
    [None, 7, {"optimiser": 1}, {"parameters": "2"}, {"parameters": -1}, {"inputs": float("nan")}],
)
def test_an_answer_that_is_no_ledger_is_named(answer):
    with pytest.raises(ValueError, match=r"ledger gave .*: return a dict of bytes for parameters"):
        calculator(lambda *_, **__: answer)


@pytest.fixture(scope="module")
def published():
    return widgets.published_calculator(recorded.load("predicted").rows)


def test_the_published_calculator_shows_what_was_recorded(published):
    row = recorded.load("predicted").rows["gpt2-xl, batch 8, bf16-amp, adamw, per-block"]
    peak = row["report"]["peak_bytes"]
    published.set(model="gpt2-xl", micro_batch=8, precision="bf16-amp", checkpointing="per-block")
    for card_gib in (24, 40):
        published.set(card_gib=card_gib)
        verdict = "too little: it does not fit." if peak > card_gib * GIB else "to spare."
        assert published.sentence.endswith(verdict)
        assert f"per-block: {row['report']['peak_bytes'] / GIB:.1f} GiB" in published.sentence


STAGE = planning.Stage(forward_seconds=1, backward_seconds=2, input_bytes=1, saved_bytes=4)


@pytest.fixture(scope="module")
def planned():
    def solve(budget_bytes):
        return planning.solve([STAGE] * 6, budget_bytes=budget_bytes)

    return widgets.plan_explorer(solve, [4, 12, 18, 40])


def test_the_plan_explorer_shows_the_plan_for_each_budget(planned):
    assert planned.values == {"budget": "18 B"}  # the middle: something is recomputed there
    assert "Run again in backward: nothing" not in planned.sentence
    for budget, again in ((40, "nothing"), (12, "0, 1")):
        planned.set(budget=f"{budget} B")
        right = planning.solve([STAGE] * 6, budget_bytes=budget)
        assert f"Budget {budget} B: peak {right.peak_bytes} B, {right.overhead:+.1%}" in (
            planned.sentence
        )
        assert f"Run again in backward: {again}" in planned.sentence
    planned.set(budget="4 B")
    assert "is below the floor" in planned.sentence
    assert planned.error is None
    with pytest.raises(ValueError, match="none of the 1 budgets has a plan"):
        widgets.plan_explorer(lambda budget: planning.solve([STAGE], budget_bytes=budget), [1])


def event(action, addr, size=0, line=None):
    frames = [] if line is None else [{"filename": "train.py", "line": line, "name": "f"}]
    return {"action": action, "addr": addr, "size": size, "frames": frames}


TRACE = [
    event("alloc", 1, 100, line=3),
    event("alloc", 2, 50, line=4),
    event("free_completed", 1),
    event("free_completed", 9),  # was there before the recording
    event("alloc", 1, 10),
    event("oom", 0),
    event("alloc", 3, 999, line=9),
]


@pytest.fixture(scope="module")
def triage():
    return widgets.snapshot_triage({"toy": TRACE, "long": [*TRACE[:5]] * 1600})


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        (40, "event 2 of 5: 150 B held. train.py:3 100 B in 1 tensors; train.py:4 50 B in 1"),
        (60, "event 3 of 5: 50 B held. train.py:4 50 B in 1 tensors."),
        (100, "event 5 of 5: 60 B held. train.py:4 50 B in 1 tensors; (backward) 10 B in 1"),
    ],
)
def test_triage_names_who_holds_the_memory_at_a_moment(triage, moment, words):
    triage.set(name="toy", moment=moment)
    assert words in triage.sentence
