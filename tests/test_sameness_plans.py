"""How plans and levers use the judgement: they keep stages and mark micro-batches."""

import pytest
import torch
from small_models import publish_tiny

from tutorial_lib import memory
from tutorial_lib.instruments import planning
from tutorial_lib.instruments.planning.fitting import judged
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import KIB, MIB

TODAY = """
  Recomputing changes no bit of a gradient.
  Accumulating changes last digits of a gradient.
"""
SIZES = {"n_layer": 3, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 64}
SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

def block(width, kind):
    first, second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    between = [nn.GELU()]
    if kind == "spectral":
        first = nn.utils.spectral_norm(first)
    if kind in ("batch", "dropout"):
        between = [{"batch": nn.BatchNorm1d, "dropout": lambda n: nn.Dropout(0.1)}[kind](4 * width)]
    return nn.Sequential(first, *between, second)

def make(kind, loss_of, micro_batch):
    model = nn.Sequential(*[block(32, kind) for _ in range(4)])
    x, target = torch.randn(micro_batch, 32), torch.randn(micro_batch, 32)
    return (lambda: loss_of(model(x), target)), model

def contrast(out, target):
    return F.cross_entropy(out @ target.T, torch.arange(len(out)))

def spectral(micro_batch=1): return make("spectral", F.mse_loss, micro_batch)
def batch(micro_batch=2): return make("batch", F.mse_loss, micro_batch)
def dropout(micro_batch=1): return make("dropout", F.mse_loss, micro_batch)
def per_sample(micro_batch=1):
    model = nn.Sequential(*[block(32, "") for _ in range(4)])
    x, slopes = torch.randn(micro_batch, 32), torch.func.grad(lambda row: model(row).sum())
    return (lambda: torch.func.vmap(slopes)(x).square().mean()), model

def pairs(micro_batch=1): return make("", contrast, micro_batch)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(SCRIPT)
    return path


def fitted(script, name, budget_bytes=100 * MIB, **choices):
    choices = {"effective_batch": 8, "precisions": ["fp32"], "optimizers": ["sgd"], **choices}
    return planning.fit(f"{script}:{name}", budget_bytes=budget_bytes, **choices)


def words(found):
    return " ".join(str(found).split())


def test_a_plain_model_gets_the_plain_sentence(monkeypatch):
    monkeypatch.setattr(judged, "_JUDGED", {})  # other tests publish other models by this name
    tiny = publish_tiny(monkeypatch, 64, **SIZES, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    found = planning.fit(tiny, budget_bytes=100 * MIB, effective_batch=4, precisions=["fp32"])
    assert TODAY in str(found)
    assert not any(
        candidate.changes
        for candidate in found.candidates
        if "8bit" not in str(candidate.optimizer)
    )


def test_stages_that_read_what_they_change_are_kept_by_every_plan(script):
    free = fitted(script, "spectral")
    assert "Recomputing 0, 1, 2 and 1 more would change gradients" in words(free)
    tight = fitted(script, "spectral", budget_bytes=10 * KIB)
    found = fitted(script, "spectral", budget_bytes=tight.smallest_bytes)
    assert found.best.is_another_batch == (found.best.micro_batch < 8)
    recipe = found.recipe_of(found.best)
    gradients = []
    for plan in (None, found.best.plan):
        torch.manual_seed(0)
        loss, model = Recipe(recipe.model, recipe.micro_batch).make_loss()
        if plan is not None:
            planning.apply(model, plan)
        loss().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_without_memory_such_a_stage_is_refused_by_name(script):
    with memory.predicting():
        loss, model = Recipe(f"{script}:spectral").make_loss()
        with pytest.raises(ValueError, match=r"The stage 0 .* computes something else .*weight_u"):
            planning.profile(model, loss)
        kept = planning.profile(model, loss, keep=list("0123"))
    assert not any(stage.recomputable for stage in kept.stages)


def test_a_smaller_micro_batch_is_marked_where_it_matters_and_taken_last(script):
    # BatchNorm refuses one sample, with which stages are profiled, in training
    script.write_text(script.read_text().replace("micro_batch, 32)", "2 * micro_batch, 32)"))
    found = fitted(script, "batch", effective_batch=256)
    marked = {c.micro_batch: c.changes for c in found.candidates}
    assert {n for n, changes in marked.items() if not changes} == {256}
    assert marked[128] == ("smaller micro-batch",)
    text = words(found)
    assert "A smaller micro-batch changes the training: BatchNorm takes its statistics from" in text
    assert "Accumulating changes last digits" not in text
    assert found.best.micro_batch == 256
    tight = fitted(script, "batch", budget_bytes=KIB, effective_batch=256)
    small = fitted(script, "batch", budget_bytes=tight.smallest_bytes, effective_batch=256)
    assert small.best.micro_batch < 256
    assert f"{small.best.micro_batch} x {small.best.accumulation}*" in words(small)
    assert "* changes the training: a smaller micro-batch, for the reason below" in words(small)
    data = found.as_data()
    assert (data["sameness"]["accumulated"], data["best"]["changes"]) == ("another", ())
    free = {"effective_batch": 256, "precisions": None, "optimizers": None}
    least = fitted(script, "batch", budget_bytes=KIB, **free).smallest_bytes
    found = fitted(script, "batch", budget_bytes=least - 1, **free)  # bf16 changes less
    assert {c.precision for c in found.candidates if c.fits} == {"bf16-amp", "bf16"}


def test_a_contrastive_loss_is_never_planned_in_single_samples(script):
    found = fitted(script, "pairs")
    assert sorted(c.micro_batch for c in found.candidates) == [2, 4, 8]
    assert "one alone has no gradient" in words(found)
    assert found.best.micro_batch == 8
    with pytest.raises(ValueError, match="raise effective_batch"):
        fitted(script, "pairs", effective_batch=1)


def test_levers_and_plans_use_one_judgement(script):
    trainings = {}
    for name in ("spectral", "dropout", "pairs", "per_sample"):
        levers, refused = planning.pull_levers(Recipe(f"{script}:{name}", 4))
        trainings[name] = {lever.name: lever.training for lever in levers}
        same = fitted(script, name).sameness
        if same.recomputed == "impossible":
            assert "checkpoint each block" not in trainings[name]
            assert any("runs the model under torch.func" in why for why in refused)
        else:
            assert trainings[name]["checkpoint each block"] == same.recomputed
        alone = trainings[name].get("one sample at a time")
        assert alone == (same.accumulated if same.alone else None)
        assert same.alone != any("one alone has no gradient" in why for why in refused)
    assert trainings["dropout"]["one sample at a time"] == "redrawn"
    assert trainings["spectral"]["checkpoint each block"] == "another"
