"""The commands: what they print, and that a foreseen error is one sentence and status 2."""

import importlib
import json
import re
import shlex
import textwrap
from types import SimpleNamespace

import pytest
from small_models import UNET_TINY, publish_tiny

from tutorial_lib import memory
from tutorial_lib.instruments import published
from tutorial_lib.instruments.emulated import Room
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.instruments.training.user_function import SAMPLE
from tutorial_lib.school.commands import parser, plan, table
from tutorial_lib.school.commands.main import run
from tutorial_lib.units import human_bytes


@pytest.fixture
def tiny(monkeypatch):
    """A published model that is small enough for a test."""
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 32}
    return publish_tiny(monkeypatch, 16, **sizes)


def report_of(capsys, *words):
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *words):
    """The sentence of a command that ends with status 2."""
    assert run([*words]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_measured_and_predicted_agree_byte_for_byte(capsys, tiny):
    measured = report_of(capsys, "measure", tiny, "--batch", "2", "--device", "cpu")
    predicted = report_of(capsys, "predict", tiny, "--batch", "2", "--kernels", "cpu")
    assert measured["method"] == "counted"
    assert predicted["method"] == "predicted"
    assert measured["at_peak"] == predicted["at_peak"]
    assert measured["seconds"] > 0


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
    of_newer = report_of(capsys, "predict", tiny, *sizes, *words, "--torch", "2.15")
    assert of_newer["phases"] == memory.predict(recipe.make_step, release="2.15").phases
    measured = report_of(capsys, "measure", tiny, *sizes, *words, "--device", "cpu")
    assert measured["optimizer"] == "adamw-8bit"


def test_the_table_says_what_was_asked_how_it_is_known_and_both_peaks(capsys, tiny):
    assert run(["predict", tiny, "--seq", "2", "--torch", "2.13"]) == 0  # keeps cuBLAS's workspaces
    table = capsys.readouterr().out
    assert table.startswith("tiny, batch 1, seq 2, fp32, adamw: predicted, CUDA kernels\n")
    rows = {line.strip().split("  ")[0]: line.split()[-2:] for line in table.splitlines()}
    report = memory.predict(Recipe(tiny, 1, 2).make_step, release="2.13")
    shown = [line.split() for line in table.splitlines()]
    assert all(" ".join(row).split() in shown for row in report.rows())
    step, forward = rows["peak of the step, in the update"], rows["most in forward"]
    assert " ".join(step) == human_bytes(report.peak_bytes)
    assert " ".join(forward) == human_bytes(report.phases["forward"])
    assert not [row for row in rows if row.startswith("most in") and rows[row] == step]
    assert "The update is the peak" in table
    assert run(["predict", tiny, "--seq", "2", "--torch", "2.15"]) == 0
    assert "peak of the step, in backward" in capsys.readouterr().out  # a matmul with its workspace
    assert run(["predict", tiny, "--batch", "64"]) == 0
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
        (["predict", "tiny", "--shard", "fsdp"], "ranks (=1) and shard (=fsdp) go together"),
        (["measure", "tiny", "--ranks", "2", "--shard", "ddp"], "measure on real ranks"),
        (
            ["plan", "tiny", "--budget", "1GiB", "--effective-batch", "2", "--ranks", "8"],
            "ranks (=8) and shard (=None) go together",
        ),
        (["build", "--check", "--force"], "give it alone"),
        (["build", "--tag", "v1"], "--tag v1 needs --stamp"),
        (["build", "--solutions"], "give --zip beside it"),
        (["build", "lab77"], "lab77"),
    ],
)
def test_a_foreseen_error_is_a_sentence_and_status_2(capsys, tiny, words, sentence):
    assert sentence in refusal(capsys, *words)
    with pytest.raises(ValueError):
        run([*words, "--debug"])


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "gpt2", "--batch", "many"],
        ["predict", "gpt2", "--precision", "fp8"],
        ["predict", "gpt2", "--kernels", "tpu"],
        ["grade"],
    ],
)
def test_a_wrong_call_is_status_2(capsys, words):
    assert "usage: python -m tutorial_lib" in refusal(capsys, *words)


def test_grade_passes_its_options_on(capsys, monkeypatch, tmp_path):
    import pandas as pd

    from solutions.grader import run as grading

    asked = {}

    def grade(lab, submissions, out, **options):
        asked.update(options, lab=lab)
        statuses = ["graded", "graded", "unreadable"]
        table = pd.DataFrame({"name": list("abc"), "status": statuses, "review": ["", "1.1", ""]})
        table.attrs["said"] = ["isolation: none."]
        return table

    monkeypatch.setattr(grading, "grade", grade)
    words = ["grade", "lab01", str(tmp_path), "--out", "report", "--workers", "2", "--only", "ann"]
    assert run([*words, "--seed", "7"]) == 0  # of an appeal
    assert (asked["lab"], asked["workers"], asked["only"]) == ("lab01", 2, ["ann"])
    assert asked["seed"] == 7
    said = capsys.readouterr().out
    assert "2 graded, 1 unreadable" in said
    assert "a person should read (column review): b\n" in said


def test_a_lab_whose_self_test_finds_a_fault_ends_with_1(capsys, monkeypatch):
    import pandas as pd

    from tutorial_lib.school.commands import grade

    for faults, code in (([], 0), (["1.1 doubles: the message lacks 'twice'"], 1)):
        found = (pd.DataFrame({"wrong": ["3 of 3"]}, index=["1.1"]), faults)
        loaded = SimpleNamespace(selftest=lambda *_, f=found, **__: f)
        monkeypatch.setattr(grade, "import_module", lambda _, loaded=loaded: loaded)
        assert run(["grade", "--selftest", "lab01"]) == code
        said = capsys.readouterr().out
        assert "3 of 3" in said
        assert (faults or ["No fault."])[0] in said


@pytest.mark.parametrize("words", ["", "class", "class other --out r", "--selftest class"])
def test_grade_says_what_it_needs(capsys, words):
    said = refusal(capsys, "grade", "lab01", *words.split())
    assert "one folder of submissions and --out" in said


LLAMA = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16},
}
OWN = """
import torch
from torch import nn

def make_loss(micro_batch, layers=2):
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(layers)])
    batch = torch.ones(micro_batch, 64)
    return (lambda: model(batch).square().mean()), model

def make_step():
    loss, model = make_loss(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step, model, optimizer

def make_net():
    return nn.Linear(2, 2)

def make_pair():
    step, model, optimizer = make_step()
    return step, model, [optimizer, optimizer]

def make_nothing(): return 3
def make_sized(batch_size, *rest): return make_loss(batch_size)
class Own(nn.Linear): pass
def make_on_gpu(): return make_loss(1)[0], nn.Linear(2, 2).cuda()

def make_broken():
    model = nn.Linear(4, 4)
    def step(): model(torch.ones(2, 3)).sum().backward()
    return step, model, torch.optim.SGD(model.parameters())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that an engineer may name: configurations, some of them broken, and a script."""
    from diffusers import UNet2DConditionModel
    from transformers import LlamaConfig

    home = tmp_path_factory.mktemp("own")
    LlamaConfig(**LLAMA).save_pretrained(home / "llama")
    text = (home / "llama" / "config.json").read_text(encoding="utf-8")
    foreign = {"model_type": "mine", "auto_map": {"AutoModel": "mine.Mine"}}
    classifier = {**json.loads(text), "architectures": ["LlamaForSequenceClassification"]}
    files = {
        "train.py": OWN,
        "model.py": "raise SystemExit('it trains')\nclass Net:\n    pass\n",
        "broken.py": "def make_loss(:",
        "torn.json": text[:40],
        "plain.json": "{}",
        "unknown.json": '{"model_type": "lama"}',
        "remote.json": json.dumps(foreign),
        "head.json": json.dumps(classifier),
        "diffusers.json": '{"_class_name": "PixArtTransformer2DModel"}',
    }
    for name, content in files.items():
        (home / name).write_text(content, encoding="utf-8")
    unet = UNet2DConditionModel(**UNET_TINY, layers_per_block=1, attention_head_dim=2)
    unet.save_config(home / "pipeline" / "unet")
    return home


@pytest.mark.parametrize(
    "words",
    [
        ["llama", "--batch", "2", "--set", "num_hidden_layers=3", "--checkpointing", "per-block"],
        ["llama/config.json", "--lora", "r=4", "--optimizer", "momentum", "--accumulate", "2"],
        ["pipeline", "--optimizer", "sgd"],
        ["train.py:make_loss", "--batch", "3", "--set", "layers=4", "--optimizer", "adafactor"],
        ["train.py:make_step", "--checkpointing", "per-block"],
        ["train.py:make_loss", "--stages", "0,2", "--set", "layers=4"],
    ],
)
def test_a_model_of_ones_own_is_measured_and_predicted_alike(capsys, folder, words):
    words = [str(folder / words[0]), *words[1:]]
    measured = report_of(capsys, "measure", *words, "--device", "cpu", "--by", "line")
    predicted = report_of(capsys, "predict", *words, "--kernels", "cpu", "--by", "module")
    assert measured["at_peak"] == predicted["at_peak"]
    assert sum(measured["by_line"].values()) == measured["peak_bytes"]
    assert sum(predicted["by_module"].values()) == measured["peak_bytes"]
    is_checkpointed = bool({"per-block", "--stages"} & {*words})
    assert ("segment" in measured.get("checkpointed", "")) == is_checkpointed


def test_fits_takes_the_largest_micro_batch_and_no_larger(capsys, folder):
    model = str(folder / "train.py:make_loss")
    words = ["--kernels", "cpu", "--optimizer", "sgd"]
    data = report_of(capsys, "predict", model, *words, "--fits", "67MiB")
    found = data["micro_batch"]
    assert data["verdict"]["needs_bytes"] == data["peak_bytes"]
    both = [[*words, "--batch", str(batch)] for batch in (found, found + 1)]
    peaks = [report_of(capsys, "predict", model, *each)["peak_bytes"] for each in both]
    assert peaks[0] <= Room.of("67MiB").sure < peaks[1]
    older = report_of(capsys, "predict", model, *words, "--fits", "67MiB", "--torch", "1.12")
    assert (older["micro_batch"] > found, older["verdict"]["fits"]) == (True, "yes")
    words = [*both[1], "--fits"]
    rooms = {"rtx-4090": "yes", f"{peaks[1]}B": "close", f"{peaks[1] // 2}B": "no"}
    for room, answer in rooms.items():
        verdict = report_of(capsys, "predict", model, *words, room)["verdict"]
        assert verdict["fits"] == answer
    assert run(["predict", model, *words, "rtx-4090"]) == 0
    said = capsys.readouterr().out
    assert "that the NVIDIA GeForce RTX 4090 leaves to PyTorch" in said
    assert "context  about 384 MiB of CUDA's own, already subtracted" in said
    listed = report_of(capsys, "predict", model, *words[:-1], "--cards")["cards"]
    assert {"card", "fits", "share"} <= set(listed[0])
    assert run(["predict", model, *words[:-1], "--cards", "--torch", "1.12"]) == 0
    said = capsys.readouterr().out
    assert "rtx-3090     yes" in said
    assert "List prices, which move: https://" in said
    for card, words_of_it in (("h200", "an A100 and an L40S"), ("l4", "none of them on this card")):
        seconds = report_of(capsys, "predict", model, *words[:-1], "--seconds", card)["seconds"]
        assert 0 < seconds["from"] < seconds["to"] < 1
        assert words_of_it in seconds["rests_on"]
    assert run(["predict", model, *words[:-1], "--seconds", "h200"]) == 0
    assert "for a step on the NVIDIA H200\n  rests on 118 steps" in capsys.readouterr().out
    half = [str(folder / "llama"), "--seq", "8", "--precision", "bf16-amp", "--fits"]
    fits = [report_of(capsys, "predict", *half, card)["verdict"]["fits"] for card in ("t4", "l4")]
    assert fits == ["close", "yes"]


def test_the_readmes_lines_for_an_engineer_run_as_they_stand(root, capsys, tiny):
    text = (root / "README.md").read_text(encoding="utf-8")
    section = text.partition("\n## For an engineer")[2].partition("\n## ")[0]
    (program, _), (shown,), (shell,) = (
        re.findall(rf"```{kind}\n(.*?)```", section, flags=re.S)
        for kind in ("python", "text", "bash")
    )
    step, model, optimizer = Recipe(tiny).make_step()
    exec(program, {"step": step, "model": model, "optimizer": optimizer})
    assert shown in capsys.readouterr().out
    commands = [shlex.split(line, comments=True)[3:] for line in shell.splitlines()]
    assert {words[0] for words in commands} == {"predict", "plan", "emulate"}
    for words in commands:
        if words[0] == "predict":  # `--fits` predicts six times, and is tried above
            place = words.index("--fits")
            assert run([*words[:place], *words[place + 2 :]]) == 0
            assert "by module" in capsys.readouterr().out
        elif words[0] == "plan":  # a minute: that its model is there, and its options are right
            assert published.find(words[1]).name == words[1]
            parser.parse("plan", plan, words[1:])


@pytest.mark.parametrize(
    ("model", "words", "sentence"),
    [
        ("train.py:make", [], "has no function make: it has make_loss, make_step"),
        ("train.py:make_net", [], "returns a Linear, and nothing says what it is trained on"),
        ("train.py:make_net", [], "    model = Linear()"),
        ("train.py:make_pair", [], "returns its optimizers in a list, but one is needed"),
        ("train.py:make_nothing", [], "returns int: return step, model and optimizer"),
        ("train.py:make_sized", [], "has a parameter batch_size without a default: call it mic"),
        ("train.py:Own", [], "is the class Own, and nothing says what it is trained on."),
        ("train.py", [], "/train.py:make_loss, "),
        ("model.py", [], "    model = Net()\n    images = torch.randn(micro_batch"),
        ("broken.py", [], "is not valid Python"),
        ("nowhere.py", [], "There is no file"),
        ("train.py:make_step", ["--batch", "2"], "takes no micro_batch"),
        ("train.py:make_step", ["--optimizer", "sgd"], "write it into the step"),
        ("nowhere.py:make_step", [], "There is no file"),
        ("nowhere.json", [], "There is no file"),
        ("", [], "has no config.json"),
        ("torn.json", [], "isn't complete JSON"),
        ("plain.json", [], "neither model_type (transformers) nor _class_name"),
        ("unknown.json", [], "does not know. Did you mean"),
        ("remote.json", [], "needs code from its own repository"),
        ("head.json", [], "is a LlamaForSequenceClassification; batches are known for"),
        ("diffusers.json", [], "is a PixArtTransformer2DModel of diffusers; batches are known"),
        ("llama", ["--set", "layers=3"], "isn't a field of the configuration"),
        ("llama", ["--set", "num_hidden_layers"], "has no value"),
        ("llama", ["--lora", "many"], "--lora r=8"),
        ("llama", ["--fits", "1KiB"], "One sample takes"),
        ("llama", ["--fits", "gtx"], "'gtx' isn't a memory size"),
    ],
)
def test_what_cannot_be_a_model_is_one_sentence(capsys, folder, model, words, sentence):
    assert sentence in refusal(capsys, "predict", str(folder / model), *words)


def test_a_name_on_the_hub_needs_a_network(capsys, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def refuse(*_, **__):
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    said = refusal(capsys, "predict", "someone/model")
    assert "without a network or access, fetch that file" in said
    with pytest.raises(ValueError, match="There is no module nowhere here"):
        Recipe("nowhere:make_step").make_step()


def test_what_a_value_decides_is_said_once(capfd, tmp_path):
    (tmp_path / "own.py").write_text(
        OWN
        + """

def make_capped(micro_batch=1):
    model, x = nn.Linear(8, 8), torch.randn(micro_batch, 8)

    def loss():
        out = model(x)
        return out.sum() if out.max() > 9 else out.mean()

    return loss, model
""",
        encoding="utf-8",
    )
    words = ["plan", str(tmp_path / "own.py:make_capped"), "--budget", "1GiB"]
    assert run([*words, "--effective-batch", "4"]) == 0
    said = capfd.readouterr().err
    assert said.count("decides by the value of a tensor") == 1
    assert "Warning: own.py, line" in said
    assert "tutorial_lib" not in said


@pytest.mark.parametrize("command", ["predict", "measure"])
def test_a_step_that_raises_shows_the_users_lines_alone(capsys, folder, command):
    words = [command, str(folder / "train.py:make_broken")]
    said = refusal(capsys, *words)
    assert "Your code raised RuntimeError: " in said
    assert "model(torch.ones(2, 3)).sum().backward()" in said
    assert "site-packages" not in said
    assert len(said.splitlines()) <= 8
    with pytest.raises(RuntimeError):
        run([*words, "--debug"])


def test_a_step_on_a_gpu_is_told_how_to_run_without(capsys, folder):
    said = refusal(capsys, "measure", str(folder / "train.py:make_on_gpu"), "--device", "cpu")
    assert "nn.Linear(2, 2).cuda()" in said
    assert "a parameter `device`" in said


@pytest.mark.parametrize("command", ["predict", "plan", "measure"])
def test_help_ends_with_examples_that_parse_and_the_lines_of_ones_own_function(capsys, command):
    module = importlib.import_module(f"tutorial_lib.school.commands.{command}")
    said = parser.make(command, module).format_help()
    examples = re.findall(f"^  .*tutorial_lib {command} (.*)$", said, flags=re.M)
    assert len(examples) == 3
    for words in examples:
        assert parser.parse(command, module, words.split()).model
    assert textwrap.indent(SAMPLE, "  ") in said


def test_long_work_says_its_parts_on_stderr_where_no_terminal_is(capsys, tiny):
    assert run(["predict", tiny, "--json", "--fits", "1GiB"]) == 0
    seen = capsys.readouterr()
    json.loads(seen.out)
    first, *tries = seen.err.splitlines()[:-3]
    assert first == "Predicting tiny ..."
    assert tries[:2] == [f"  the largest that fits: trying micro-batch {n}" for n in (1, 2)]
    assert re.findall(r"^  part (\d) of 2: ", seen.err, flags=re.M) == ["1", "2"]
    assert all(line.isprintable() for line in seen.err.splitlines())
    words = [*("plan", tiny, "--json", "--budget", "1GiB", "--effective-batch", "2")]
    assert run([*words, "--precision", "fp32"]) == 0
    parts = re.findall(r"^  part (\d of \d): ", capsys.readouterr().err, flags=re.M)
    assert parts == ["1 of 3", "2 of 3", "3 of 3"]


@pytest.mark.parametrize("command", table.COMMANDS)
def test_help_is_at_most_80_columns_wide(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([command, "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
