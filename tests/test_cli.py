"""The commands: what they print, and that a foreseen error is one sentence and status 2."""

import json

import pytest

from tutorial_lib import memory
from tutorial_lib.models import published
from tutorial_lib.school import authoring, cli
from tutorial_lib.training import Recipe
from tutorial_lib.units import human_bytes

BOTH = "peak of forward and backward alone"


@pytest.fixture
def tiny(monkeypatch):
    """A published model that is small enough for a test."""
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 32}
    model = published.Published(
        "tiny",
        "causal-lm",
        0,
        "transformers.GPT2LMHeadModel",
        "made up",
        {**published.find("gpt2").config, **sizes},
        seq=16,
    )
    monkeypatch.setitem(published.PUBLISHED, "tiny", model)
    return "tiny"


def report_of(capsys, *words):
    assert cli.run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_doctor_knows_versions_and_device(capsys):
    import torch

    facts = report_of(capsys, "doctor")
    assert facts["torch"] == torch.__version__
    assert facts["tier"] in ("cpu", "small gpu", "large gpu")
    assert cli.run(["doctor"]) == 0
    assert "free disk" in capsys.readouterr().out


def test_measured_and_predicted_agree_byte_for_byte(capsys, tiny):
    measured = report_of(capsys, "measure", tiny, "--batch", "2", "--device", "cpu")
    predicted = report_of(capsys, "predict", tiny, "--batch", "2", "--kernels", "cpu")
    assert measured["method"] == "counted"
    assert predicted["method"] == "predicted"
    assert measured["at_peak"] == predicted["at_peak"]
    assert measured["seconds"] > 0


def test_batch_and_strategy_change_the_peak(capsys, tiny):
    small = report_of(capsys, "predict", tiny, "--batch", "2")
    large = report_of(capsys, "predict", tiny, "--batch", "8")
    frugal = report_of(capsys, "predict", tiny, "--batch", "8", "--checkpointing", "per-block")
    assert small["phases"]["forward"] < large["phases"]["forward"]
    assert frugal["phases"]["forward"] < large["phases"]["forward"]


def test_every_choice_reaches_the_recipe(capsys, tiny):
    choices = {
        "precision": "bf16-amp",
        "attention": "eager",
        "optimizer": "adamw-8bit",
        "checkpointing": "every-2",
    }
    words = [word for name, value in choices.items() for word in (f"--{name}", value)]
    sizes = ["--batch", "2", "--seq", "8"]
    asked = report_of(capsys, "predict", tiny, *sizes, *words)
    recipe = Recipe(tiny, 2, 8, **choices)
    assert asked.items() >= recipe.as_data().items()
    assert asked["phases"] == memory.predict(recipe.make_step).phases
    measured = report_of(capsys, "measure", tiny, *sizes, *words, "--device", "cpu")
    assert measured["optimizer"] == "adamw-8bit"


def test_the_table_says_what_was_asked_how_it_is_known_and_both_peaks(capsys, tiny):
    assert cli.run(["predict", tiny, "--seq", "2"]) == 0
    table = capsys.readouterr().out
    assert table.startswith("tiny, batch 1, seq 2, fp32, adamw: predicted, CUDA kernels\n")
    rows = {line.split("  ")[0].strip(): line.split()[-2:] for line in table.splitlines()}
    report = memory.predict(Recipe(tiny, 1, 2).make_step)
    step, both = rows["peak of the whole step, in optimizer"], rows[BOTH]
    assert " ".join(step) == human_bytes(report.peak_bytes)
    assert " ".join(both) == human_bytes(report.forward_backward_bytes)
    assert step != both
    assert "The update is the peak" in table
    assert cli.run(["predict", tiny, "--batch", "64"]) == 0
    assert "The update is the peak" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["predict", "gpt3"], "gpt2"),
        (["measure", "gpt2", "--device", "tpu"], "'tpu' was asked for"),
        (["predict", "tiny", "--batch", "0"], "micro_batch (=0) must be at least 1"),
        (["predict", "tiny", "--batch", str(10**16)], "smaller micro-batch"),
        (["predict", "tiny", "--seq", "33"], "at most 32"),
        (["predict", "tiny", "--size", "8"], "takes no size"),
        (["predict", "vit-b-16", "--size", "225"], "multiple of 16"),
        (["predict", "tiny", "--checkpointing", "per-blok"], "per-block"),
        (["grade", "lab77", "nowhere", "--out", "out"], "lab77"),
        (["build", "--check", "--force"], "give it alone"),
        (["build", "--tag", "v1"], "--tag v1 needs --stamp"),
        (["build", "lab77"], "lab77"),
    ],
)
def test_a_foreseen_error_is_a_sentence_and_status_2(capsys, tiny, words, sentence):
    assert cli.run(words) == 2
    seen = capsys.readouterr()
    assert sentence in seen.err
    assert "Traceback" not in seen.err
    with pytest.raises(ValueError):
        cli.run([*words, "--debug"])


@pytest.mark.parametrize(
    "words",
    [
        ["measure"],
        ["predict", "gpt2", "--batch", "many"],
        ["predict", "gpt2", "--precision", "fp8"],
        ["predict", "gpt2", "--kernels", "tpu"],
        ["grade"],
    ],
)
def test_a_wrong_call_is_status_2(capsys, words):
    assert cli.run(words) == 2
    assert "Usage: python -m tutorial_lib" in capsys.readouterr().err


def test_a_full_memory_says_what_to_try(capsys, monkeypatch, tiny):
    def burst(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 99 bytes.")

    monkeypatch.setattr(published, "build", burst)
    assert cli.run(["measure", tiny]) == 2
    assert "lower --batch" in capsys.readouterr().err


def test_an_unforeseen_error_shows_itself(monkeypatch, tiny):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(published, "build", fail)
    with pytest.raises(ZeroDivisionError):
        cli.run(["measure", tiny])


def test_build_check_lists_problems_and_fails(capsys, monkeypatch):
    monkeypatch.setattr(authoring, "check", lambda root: ["labs/lab01.ipynb differs."])
    assert cli.run(["build", "--check"]) == 1
    assert capsys.readouterr().out == "labs/lab01.ipynb differs.\n"
    monkeypatch.setattr(authoring, "check", lambda root: [])
    assert cli.run(["build", "--check"]) == 0


def test_build_stamps_builds_and_packs(capsys, monkeypatch, tmp_path):
    calls = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(authoring, "stamp", lambda *words: calls.append(words[1:]) or [])
    monkeypatch.setattr(authoring, "build", lambda _, names, force: calls.append(force) or [])
    monkeypatch.setattr(authoring, "make_zip", lambda _, out: out / "course.zip")
    assert cli.run(["build", "--stamp", "me/course", "--tag", "v2", "--zip", "--force"]) == 0
    assert calls == [("me/course", "v2"), True]
    assert str(tmp_path / "course.zip") in capsys.readouterr().out


def test_grade_passes_its_options_on(capsys, monkeypatch, tmp_path):
    import pandas as pd

    from tutorial_lib.school import grading

    asked = {}

    def grade(lab, submissions, out, **options):
        asked.update(options, lab=lab)
        statuses = ["graded", "graded", "unreadable"]
        return pd.DataFrame({"name": list("abc"), "status": statuses, "review": ["", "1.1", ""]})

    monkeypatch.setattr(grading, "grade", grade, raising=False)
    words = ["grade", "lab01", str(tmp_path), "--out", "report", "--jobs", "2", "--only", "ann"]
    assert cli.run(words) == 0
    assert (asked["lab"], asked["jobs"], asked["only"]) == ("lab01", 2, ["ann"])
    said = capsys.readouterr().out
    assert "2 graded, 1 unreadable" in said
    assert "a person should read (column review): b\n" in said
