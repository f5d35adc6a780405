"""Plans as files: found in one process, applied in another."""

import json
from dataclasses import replace

import pytest
import torch
from plan_models import profiled

from tutorial_lib.instruments import planning
from tutorial_lib.instruments.planning.chain.profiled import Call
from tutorial_lib.school.commands.main import run

MODEL = """
import torch
from torch import nn

def make_loss(micro_batch=2):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(8)]
    model = nn.Sequential(*blocks)
    samples = torch.randn(micro_batch, 128, 64)

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            return model(samples).square().mean()

    return loss, model
"""
TRAINING = """
import json
import train
from tutorial_lib import memory
from tutorial_lib.instruments import planning

def step():
    loss().backward()

def gradients():
    model.zero_grad()
    step()
    return [parameter.grad.clone() for parameter in model.parameters()]

loss, model = train.make_loss(8)
plain, plain_peak = gradients(), memory.measure(step, model=model).peak_bytes
planning.apply(model, planning.Plan.load("plan.json"))
same = all((a == b).all() for a, b in zip(plain, gradients()))
peak = memory.measure(step, model=model).peak_bytes
print(json.dumps({"same": bool(same), "plain": plain_peak, "peak": peak}))
"""


@pytest.mark.parametrize("name", ["gpt", "unet", "hf-unet", "hf-gpt2", "hf-llama"])
def test_a_plan_comes_back_from_its_file_as_it_was(name, tmp_path):
    torch.manual_seed(0)
    model, loss, profile, floor, whole = profiled(name)
    found = planning.solve(profile, budget_bytes=(floor + whole) // 2)
    found.save(tmp_path / "plan.json")
    again = planning.Plan.load(tmp_path / "plan.json")
    for field in ("stages", "tree", "skips", "names", "budget_bytes"):
        assert getattr(again, field) == getattr(found, field), field
    assert again.simulation == found.simulation
    for ours, theirs in zip(again.calls, found.calls, strict=True):
        assert (ours.name, ours.kind, ours.matmuls) == (theirs.name, theirs.kind, theirs.matmuls)
        assert [(t.shape, t.dtype) for t in ours.tensors] == [
            (t.shape, t.dtype) for t in theirs.tensors
        ]
    planning.apply(model, again)
    loss().backward()


@pytest.mark.weekly
def test_a_plan_that_the_shell_found_trains_in_a_script(tmp_path, run_python):
    (tmp_path / "train.py").write_text(MODEL)
    (tmp_path / "own.py").write_text(TRAINING)
    words = ["--budget", "72.7MiB", "--effective-batch", "8", "--save", "plan.json", "--json"]
    tried = ["--precision", "bf16-amp", "--optimizer", "adamw-fused"]
    asked = ["plan", "train.py:make_loss", *tried, *words]
    found = run_python("-m", "tutorial_lib", *asked, cwd=tmp_path)
    best = json.loads(found.stdout)["best"]
    assert (best["micro_batch"], best["accumulation"]) == (8, 1)
    trained = run_python("own.py", cwd=tmp_path)
    seen = json.loads(trained.stdout or "{}")
    assert seen.get("same"), trained.stderr
    assert seen["peak"] < 0.9 * seen["plain"]


def test_what_cannot_be_written_or_read_is_said_and_no_file_is_lost(tmp_path, capsys):
    path = tmp_path / "plan.json"
    small = planning.Plan(
        (planning.Stage(forward_seconds=1, backward_seconds=2, input_bytes=3, saved_bytes=4),), (0,)
    )
    small.save(path)
    odd = replace(small, calls=(Call("block", ("Block", 1), slice(0, 1)),))
    with pytest.raises(ValueError, match="The stage block returns a slice, which a plan file"):
        odd.save(path)
    assert planning.Plan.load(path) == small
    for text in ("", "[]", '{"format": "another"}', path.read_text()[:-9]):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError, match="holds no plan: "):
            planning.Plan.load(tmp_path / "other.json")
    words = ["plan", "gpt2", "--budget", "1GiB", "--effective-batch", "2"]
    assert run([*words, "--save", str(tmp_path / "none" / "plan.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err
