"""The training scripts: what the levers of the chapters make of train.py, and the plans of 14."""

import contextlib
import json
import linecache
import re
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import planned
import pytest
import states
import torch
import train
import your_run

from tutorial_lib.checks import CheckError
from tutorial_lib.units import GIB


def test_the_script_trains_its_twin(capsys):
    train.main(train.TWIN, updates=4, device="cpu")
    losses = [float(line.split("loss ")[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("chapter", [one for one in states.CHAPTERS if one not in ("02", "13")])
def test_the_script_after_a_chapter_trains_alike(tmp_path, capsys, chapter):
    losses = []
    states.write(tmp_path / "mine.py", states.script(states.functions_after(chapter)))
    for path in (tmp_path / "mine.py", Path(train.__file__)):
        script = runpy.run_path(str(path), run_name="script")
        script["main"](script["TWIN"], updates=3, device="cpu")
        losses.append([float(x.split()[-1]) for x in capsys.readouterr().out.splitlines()])
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)


@pytest.mark.weekly
def test_the_script_for_ranks_trains_alike_on_two_processes(tmp_path, capsys):
    path = tmp_path / "mine.py"
    states.write(path, states.script(states.functions_after("13")))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ran = subprocess.run([*launch, path, "--twin"], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    train.main(train.TWIN, updates=8, device="cpu")
    outputs = ran.stdout, capsys.readouterr().out  # the two may write into one line
    seen, wanted = (re.findall(r"update (\d+): loss (\d\.\d{4})", text) for text in outputs)
    assert len(seen) == 2 * len(wanted) == 16
    losses = dict(wanted)
    for number, loss in seen:
        assert float(loss) == pytest.approx(float(losses[number]), abs=2e-4)


def test_rows_that_end_in_padding_train_alike_from_chapter_09_on():
    assert (your_run.RAGGED == 0).any()
    for chapter, same in {"05": True, "08": False, "09": True, "14": True}.items():
        functions = states.functions_after(chapter)
        refused = pytest.raises(CheckError, match=r"loss|gradient")
        with contextlib.nullcontext() if same else refused:
            your_run.prove(functions, your_run.RAGGED)


# Daily as written, with checkpoints, and with every lever: of the others each has some of 14's.
DAILY = ("02", "05", "14")


@pytest.mark.parametrize(
    "chapter",
    [n if n in DAILY else pytest.param(n, marks=pytest.mark.weekly) for n in states.CHAPTERS],
)
def test_the_bars_are_those_that_are_predicted(chapter):
    bars = json.loads(your_run.BARS.read_text("utf-8"))
    assert list(bars) == list(states.CHAPTERS)
    found = your_run.predicted(states.functions_after(chapter), states.RANKS.get(chapter, 1))
    assert sum(found["at_peak"].values()) == pytest.approx(
        sum(bars[chapter]["at_peak"].values()), rel=0.01
    )
    assert found["TFLOP"] == pytest.approx(bars[chapter]["TFLOP"], rel=0.001)
    assert found["seconds"] == pytest.approx(bars[chapter]["seconds"], rel=0.02)


def test_the_plan_fills_its_card_with_what_costs_most_to_run_again():
    bars = json.loads(your_run.BARS.read_text("utf-8"))
    # a kernel of attention keeps a number for each head and token, which the units leave out
    assert your_run.peak_bytes("06c") / GIB == pytest.approx(15, abs=0.03)
    assert bars["06c"]["TFLOP"] < min(bars[other]["TFLOP"] for other in ("05", "07"))
    first, last = (sum(bars[name]["at_peak"].values()) / GIB for name in ("02", "14"))
    said = " ".join((Path(__file__).parents[1] / "README.md").read_text("utf-8").split())
    assert f"needs {last:.1f} GiB instead of {first:.0f}" in said


def test_a_lever_that_changes_the_training_is_refused_before_anything_is_predicted(monkeypatch):
    plain = train.hidden_of
    monkeypatch.setattr(your_run, "predicted", pytest.fail)
    with pytest.raises(CheckError, match="loss"):
        your_run.apply("05", hidden_of=lambda model, tokens: plain(model, tokens) / 2)


def test_a_lever_of_another_name_is_named():
    with pytest.raises(ValueError, match=r"needs hidden_of, and got update: .*hidden_of=hidden_of"):
        your_run.apply("05", update=train.update)
    with pytest.raises(ValueError, match="Chapter 06 has no lever: name one of 02, 05"):
        your_run.apply("06")


def test_a_learners_function_that_fails_shows_its_own_line():
    def lost(model, tokens):
        return {}["lost"]

    said = r"^lost stopped at KeyError: 'lost', in line \d+ of test_train.py: return {}"
    with pytest.raises(AssertionError, match=said) as stopped:
        your_run.apply("05", hidden_of=lost)
    assert isinstance(stopped.value.__cause__, KeyError)
    assert train.hidden_of is not lost


def test_a_learners_script_that_fails_is_told_in_a_sentence(tmp_path):
    path = tmp_path / "mine.py"
    text = Path(train.__file__).read_text()
    for wrong, said in (
        (text.replace("x = block(x)", "x = blok(x)"), "NameError: name 'blok' is not defined"),
        (text.replace("x = block(x)", "x = block(x"), "SyntaxError: '(' was never closed"),
    ):
        path.write_text(wrong)
        line = 1 + text[: text.index("x = block(x)")].count("\n")
        assert states.trial(path).startswith(f"{path} stopped in line {line} at {said}")
    path.write_text(text)
    assert states.trial(path) == "8 updates"


def test_a_script_written_anew_is_kept_aside(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("print('mine')\n")
    states.write(path, states.script(states.functions_after("05")))
    assert (tmp_path / "mine.before.py").read_text() == "print('mine')\n"
    assert "checkpoint(block, x" in path.read_text()
    states.write(path, "print('again')\n")
    assert "checkpoint(block, x" in (tmp_path / "mine.before2.py").read_text()
    assert (tmp_path / "mine.before.py").read_text() == "print('mine')\n"
    with pytest.raises(SystemExit, match="'06' has no lever: name one of 02, 05, 06c, 07, 08"):
        states.functions_after("06")


def test_a_lever_goes_into_the_learners_own_script(tmp_path, monkeypatch):
    monkeypatch.setattr(
        your_run, "predicted", lambda *_: {"at_peak": {}, "TFLOP": 1, "seconds": {}}
    )
    path, of = tmp_path / "mine.py", states.functions_after("10d")
    your_run.apply("08", to=str(path), update=of["update"])
    begun = path.read_text()
    assert "context_fn=contexts" in begun  # chapter 07's lever, since there was no file
    path.write_text(begun.replace("BATCH = 12", "BATCH = 24  # mine"))
    for _ in range(2):
        your_run.apply("10d", to=str(path), loss_of=of["loss_of"])
    text = path.read_text()
    assert "BATCH = 24  # mine" in text
    for name in ("checkpointed", "usual", "loss_of", "keep_attention", "update"):
        assert text.count(f"def {name}(") == 1
    path.write_text("def loss_of(:\n")
    with pytest.raises(SyntaxError, match=r"mine\.py, line 1"):
        your_run.apply("10d", to=str(path), loss_of=of["loss_of"])
    assert path.read_text() == "def loss_of(:\n"
    path.write_text("print()\n")
    with pytest.raises(ValueError, match="has no function loss_of to replace"):
        your_run.apply("10d", to=str(path), loss_of=of["loss_of"])
    assert path.read_text() == "print()\n"


OWN = """import enum, functools, math, torch, typing
from torch.nn import functional as G
from torch.utils.checkpoint import checkpoint as again
import train
SCALES = {3: (1.0, (2, 'two')), 24: (1.0, ())}
WIDE = torch.float16
WIDE = torch.float32
class Gate(typing.NamedTuple): factor: int = 1
class Kind(enum.Enum): ONE = WIDE
class Own(Gate):
    def of(self, x): return G.dropout(x, p=0.0) * self.factor * math.exp(0)
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n > 0 and even(n - 1)
@functools.cache
def own(x): return Own().of(x).to(Kind.ONE.value)
called = functools.partial(again, use_reentrant=False)
also = functools.partial(called, own)
def hidden_of(model, tokens):
    x = train.embedded(model, tokens) * SCALES[len(model.blocks)][0] * even(2)
    for block in model.blocks: x = called(block, also(x))
    return model.norm(x)
"""


def in_a_notebook(text, name="hidden_of"):
    """A function of a cell, of which inspect knows no file, as in IPython."""
    linecache.cache["<cell>"] = len(text), None, text.splitlines(True), "<cell>"
    cell = {"__name__": "__main__"}
    exec(compile(text, "<cell>", "exec"), cell)
    return cell[name]


def test_a_script_gets_what_the_learners_function_needs(tmp_path, capsys):
    path = tmp_path / "mine.py"
    for times in range(2):  # the second time, all of it is there
        states.write(path, states.script({"hidden_of": in_a_notebook(OWN)}, *[path] * times))
    script = runpy.run_path(str(path), run_name="script")
    script["main"](script["TWIN"], updates=2, device="cpu")
    assert capsys.readouterr().out.count("loss") == 2
    lines = path.read_text().splitlines()
    for line in OWN.splitlines():
        if line.startswith(("from torch.utils", "class", "def", "@", "SCALES", "also", "called")):
            assert lines.count(line) == 1, line


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("import torch\nbig = torch.ones(3)", "uses big, of type Tensor, which no script"),
        ("class own: pass\nbig = own()", "uses big, of type own"),
        ("import torch\nfor big in (torch.half,): pass", "uses big, of type dtype"),
        ("def main(): pass\ndef big(): main()", "uses main, and train.py has another main"),
    ],
)
def test_what_no_script_can_have_is_named_and_nothing_is_written(tmp_path, setting, said):
    mine = in_a_notebook(f"{setting}\ndef hidden_of(model, tokens):\n    return big\n")
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n" + Path(train.__file__).read_text())
    with pytest.raises(ValueError, match=said):
        states.write(path, states.script({"hidden_of": mine}, path))
    assert [file.read_text()[:5] for file in tmp_path.iterdir()] == ["x = 1"]


def test_where_a_gpu_is_the_update_is_measured_or_does_not_fit(monkeypatch, capsys):
    monkeypatch.setattr(train, "MEDIUM", train.TWIN)
    monkeypatch.setattr(your_run.device, "pick", lambda: torch.device("cpu"))
    your_run.measure({})

    def too_large(model, optimizer, tokens):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    your_run.measure({"update": too_large})
    measured, too_much = capsys.readouterr().out.splitlines()
    assert " GiB, " in measured
    assert too_much.endswith("the update does not fit.")


PLAN = {"batch": "packed", "block": "offloaded", "loss": "chunked", "model": "lora_on_4_bits"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n"batch": }', r"plan\.json is no JSON, in line 2: Expecting value\.$"),
        ("[1]", "is no plan, an object with batch, block, loss, model: "),
        (None, "is no plan, .*No such file"),
    ],
)
def test_a_plan_that_cannot_be_read_is_told_in_a_sentence(tmp_path, text, said):
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match=said):
        planned.read_plan(path)


def plan_file(tmp_path, **choices):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN | choices))
    return path


@pytest.mark.parametrize("choices", [{}, {"model": "whole"}, {"block": "checkpointed"}])
def test_a_plan_is_shown_to_be_the_same_training(tmp_path, capsys, choices):
    planned.main(plan_file(tmp_path, **choices))
    assert capsys.readouterr().out == "the same training, within rounding\n"


def shifted(rows):  # the last token of a text is asked for the next text's first
    ids, _, positions = planned.packed(rows)
    return ids, planned.next_tokens(ids[0])[None], positions


def mixed(rows):  # tokens look at the texts before theirs
    ids, targets, positions = planned.packed(rows)
    return ids, targets, torch.arange(positions.size(1))[None]


@pytest.mark.parametrize("batch", [shifted, mixed])
def test_a_plan_that_changes_the_training_is_refused(tmp_path, batch):
    with (
        patch.dict(planned.LEVERS, packed=batch),
        pytest.raises(CheckError, match=r"loss|gradient"),
    ):
        planned.main(plan_file(tmp_path))


@pytest.mark.parametrize(("part", "name"), [("block", "offload"), ("loss", None)])
def test_a_plan_with_an_unknown_choice_names_the_known_ones(tmp_path, part, name):
    with pytest.raises(SystemExit, match=f"{part} is {name!r}: name one of padded, plainly"):
        planned.main(plan_file(tmp_path, **{part: name}))
