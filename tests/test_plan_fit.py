"""What fits a budget, and the command that says so."""

import contextlib
import functools
import json
import sys
from dataclasses import replace

import pytest
from small_models import publish_tiny

from tutorial_lib import memory
from tutorial_lib.instruments import planning, ranks
from tutorial_lib.instruments.planning.fitting import predictions
from tutorial_lib.instruments.predicting import release
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.school.commands.main import run
from tutorial_lib.units import GIB, KIB, MIB

SIZES = {"n_layer": 6, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 64}


@pytest.fixture
def tiny(monkeypatch):
    """A published model that is small enough for a test.

    Its matmuls' own workspaces, which PyTorch 2.15 gives back, would be most of each peak.
    """
    with release.following("2.13"):
        yield publish_tiny(monkeypatch, 64, **SIZES)


ONE = {"effective_batch": 2, "precisions": ["bf16"], "optimizers": ["adamw-8bit"]}


@pytest.fixture
def enough(tiny):
    """The smallest budget, as the answer says when nothing fits."""
    found = planning.fit(tiny, budget_bytes=100 * KIB, **ONE)
    assert found.best is None
    assert "nothing fits" in str(found)
    return found.smallest_bytes


def test_the_best_really_fits(tiny, enough):
    budget = int(1.2 * enough)
    found = planning.fit(tiny, budget_bytes=budget, **ONE)
    best = found.best
    assert best.is_verified
    assert enough <= best.peak_bytes <= budget
    assert best.micro_batch * best.accumulation == 2
    assert best.plan.overhead > 0
    assert all(best.seconds <= 1.02 * c.seconds for c in found.candidates if c.fits)

    # the same step, predicted by hand
    def make_step():
        step, model, optimizer = found.recipe_of(best).make_step()
        return step, planning.apply(model, best.plan), optimizer

    assert memory.predict(make_step).peak_bytes == best.peak_bytes
    assert "recompute" in str(found)
    faster = planning.fit(tiny, budget_bytes=4 * budget, **ONE).best
    assert faster.seconds < best.seconds


ASKED = (("bf16-amp", "adamw-fused"),)
PLAN = planning.Plan(
    (planning.Stage(forward_seconds=1, backward_seconds=2, input_bytes=4, saved_bytes=8),), (0,)
)


def candidate(micro_batch, seconds, gib, overhead=0.0, kind=ASKED[0], plan=PLAN):
    """Make a candidate of 8 samples an update."""
    sizes = {"micro_batch": micro_batch, "accumulation": 8 // micro_batch, "overhead": overhead}
    return planning.Candidate(*kind, seconds=seconds, peak_bytes=int(gib * GIB), plan=plan, **sizes)


def fitted(*candidates, asked=ASKED):
    """Make the answer of a search among these."""
    return planning.Fit(Recipe("gpt2"), 16 * GIB, 8, candidates, asked)


def test_the_largest_micro_batch_that_keeps_everything_comes_before_recomputation():
    small, large = candidate(1, 1.01, 4), candidate(4, 1.0, 12)
    recomputed = candidate(8, 1.0, 15, overhead=0.3)
    assert fitted(small, recomputed, large).best is large
    idle = candidate(1, 1.5, 4)  # a GPU that is not filled is a price too
    assert fitted(idle, recomputed).best is recomputed
    assert fitted(candidate(2, 1.01, 6), small).best.micro_batch == 2
    less, more = candidate(1, 1.01, 15, overhead=0.1), candidate(2, 1.0, 15, overhead=0.2)
    assert fitted(less, more).best is less


def test_another_training_is_taken_by_who_asks_for_it_and_not_where_less_will_do():
    kinds = [("bf16-amp", "adamw-fused"), ("bf16-amp", "adamw-8bit"), ("bf16", "adamw-8bit")]
    kept, eight_bit, rounded = (
        candidate(1, 3.0 - i, 15 - 5 * i, kind=k) for i, k in enumerate(kinds)
    )
    assert fitted(kept, eight_bit, rounded).best is kept
    too_large = replace(kept, plan=None, peak_bytes=20 * GIB, is_verified=True)
    found = fitted(too_large, eight_bit, rounded)
    assert (found.best, found.otherwise, found.smallest_bytes) == (None, eight_bit, 20 * GIB)
    assert "nothing fits with bf16-amp, adamw-fused" in str(found)
    assert "It fits where adamw-8bit may change the training" in str(found)
    assert found.as_data()["otherwise"]["changes"] == ("adamw-8bit",)
    assert fitted(too_large, eight_bit, rounded, asked=(*kinds,)).best is eight_bit
    assert fitted(too_large, eight_bit, rounded, asked=(kinds[2],)).best is rounded


def test_bfloat16_throughout_is_tried_only_where_nothing_else_fits(tiny):
    fit = functools.partial(planning.fit, tiny, effective_batch=2)
    plenty, none = fit(budget_bytes=GIB), fit(budget_bytes=KIB)
    assert plenty.as_data() == fit(budget_bytes=GIB, precisions=["bf16-amp"]).as_data()
    assert none.smallest_bytes == fit(budget_bytes=KIB, precisions=["bf16-amp"]).smallest_bytes
    bytes_of = [(c.peak_bytes, c.precision) for c in none.candidates]
    assert min(bytes_of)[1] == "bf16"
    between = fit(budget_bytes=min(size for size, name in bytes_of if name == "bf16-amp") - 1)
    assert (between.best, between.otherwise.precision) == (None, "bf16")
    assert between.otherwise.is_verified


def test_one_of_stages_that_are_alike_stands_for_all(tiny, monkeypatch):
    def numbers(found):
        forms = [form for stage in found.stages for form in (stage, stage.selective) if form]
        return [n for form in forms for n in vars(form).values() if isinstance(n, int | float)]

    def profiled():
        found = []
        with memory.predicting():
            for samples in (1, 2):
                loss, model = Recipe(tiny, samples, precision="bf16").make_loss()
                like = found[0] if found else None
                asked = {"gradients": "made", "selective": True, "like": like}
                found.append(planning.profile(model, loss, **asked))
        return found

    module = sys.modules[planning.profile.__module__]
    alike, firsts = module.first_alike, []
    monkeypatch.setattr(module, "first_alike", lambda *of: firsts.append(alike(*of)) or firsts[-1])
    once = profiled()
    assert len(firsts) == 3  # two samples are looked at with the stages of one as a guide
    assert all(len(set(first)) < len(first) for first in firsts)
    monkeypatch.setattr(module, "first_alike", lambda calls, stages: list(range(len(stages))))
    monkeypatch.setattr(module, "is_wrapper", lambda kind: True)  # priced above the log
    for found, full in zip(once, profiled(), strict=True):
        assert numbers(found) == pytest.approx(numbers(full), rel=1e-9)
        assert (found.skips, found.launches) == (full.skips, full.launches)
        assert [call.matmuls for call in found.calls] == [call.matmuls for call in full.calls]


@pytest.mark.weekly
def test_with_a_host_the_same_budget_takes_less_time(tiny, enough, capsys):
    budget = int(1.3 * enough)
    without = planning.fit(tiny, budget_bytes=budget, **ONE).best
    found = planning.fit(tiny, budget_bytes=budget, host=planning.Host(1e15), **ONE)
    best = found.best
    assert best.is_verified
    assert best.plan.moves
    assert best.host_bytes == best.plan.host_bytes > 0
    assert best.peak_bytes <= budget
    assert best.overhead < without.overhead
    assert "      host" in str(found)
    assert found.as_data()["best"]["host_bytes"] == best.host_bytes
    words = ["plan", tiny, "--budget", "1GiB", "--effective-batch", "2"]
    all_moved = ["--offload", "all"]
    for more in (["--link", "0GB/s"], ["--link", "pcie-9"], ["--host", "1GiB"], all_moved):
        assert run([*words, *more]) != 0
        assert "link" in capsys.readouterr().err
    seen = {}
    for way in ("auto", "none", "all"):
        assert run([*words, "--link", "pcie-3", "--offload", way, "--json"]) == 0
        seen[way] = json.loads(capsys.readouterr().out)["best"]["host_bytes"]
    assert seen["auto"] == seen["none"] == 0 < seen["all"]  # all fits


@pytest.mark.weekly
def test_where_nothing_fits_the_smallest_budget_knows_the_host(tiny, enough):
    host = planning.Host(1e15)
    with_host = planning.fit(tiny, budget_bytes=enough // 3, host=host, **ONE).smallest_bytes
    assert with_host <= enough
    assert planning.fit(tiny, budget_bytes=with_host, host=host, **ONE).best.fits


@pytest.mark.parametrize("precision", ["bf16", "bf16-amp"])
@pytest.mark.parametrize(("optimizer", "is_lean"), [("adamw-8bit", True), ("adamw", False)])
def test_a_step_in_whole_peaks_as_its_prediction_without_shortcuts(
    tiny, optimizer, is_lean, precision
):
    recipe = Recipe(tiny, precision=precision)
    parts = predictions.Parts.of(recipe, [optimizer], planning.Speed())
    update = parts.updates[optimizer]
    assert update.is_lean == is_lean
    recipe = replace(recipe, optimizer=optimizer)
    found = planning.solve(parts.one, budget_bytes=planning.floor_bytes(parts.one))
    for accumulation in (1, 2):
        chosen = replace(recipe, accumulation=accumulation)

        def make_step(chosen=chosen):
            step, model, made = chosen.make_step()
            return step, planning.apply(model, found), made

        seen = predictions.predicted_peak(chosen, found, update)
        assert seen == memory.predict(make_step).peak_bytes


@pytest.mark.parametrize(
    "more",
    [
        {"lora_rank": 2},
        pytest.param({"ranks": 2, "shard": "ddp"}, marks=pytest.mark.weekly),
        pytest.param({"ranks": 2, "shard": "zero2"}, marks=pytest.mark.weekly),
    ],
)
def test_lora_and_ranks_are_planned_for(tiny, more):
    recipe = Recipe(tiny, **more)
    samples = 2 * recipe.ranks
    only = {"precisions": ["bf16"], "optimizers": ["adamw-fused"]}
    found = planning.fit(recipe, budget_bytes=100 * MIB, effective_batch=samples, **only)
    best = found.best
    assert best.is_verified
    assert best.micro_batch * best.accumulation * recipe.ranks == samples
    with ranks.pretend(recipe.ranks) if recipe.shard else contextlib.nullcontext():
        plain = memory.predict(found.recipe_of(best).make_step)  # all is kept with such a budget
    assert best.peak_bytes == pytest.approx(plain.peak_bytes, rel=2e-3)


def test_what_cannot_be_planned_for_several_ranks_is_refused(tiny):
    of_two = {"budget_bytes": MIB, "effective_batch": 3}
    with pytest.raises(ValueError, match="a multiple of the ranks"):
        planning.fit(Recipe(tiny, ranks=2, shard="ddp"), **of_two)
    with pytest.raises(ValueError, match="try adamw-fused"):
        planning.fit(Recipe(tiny, ranks=3, shard="zero3"), **of_two, optimizers=["adamw-8bit"])


def test_the_command(tiny, capsys):
    words = ["plan", tiny, "--effective-batch", "2", "--precision", "bf16", "--optimizer", "sgd"]
    words.append("--budget")
    assert run([*words, "75MiB", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fits"]
    assert data["best"]["peak_bytes"] <= 8 * MIB  # what cuBLAS leaves
    assert data["best"]["plan"]["names"][0] == "(before)"
    assert run([*words, "200KiB", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"]["enough_bytes"] > data["smallest_bytes"]
    assert (data["best"], data["not_tried"]) == (None, {})
    assert run([*words, "much"]) == 2
    assert "'much' isn't a memory size" in capsys.readouterr().err


@pytest.mark.weekly
def test_a_plan_follows_the_kernels_of_a_named_release(capsys):
    """Up to 2.14, grouped heads in float32 have no kernel that keeps the scores away."""
    smaller = ["--set", "num_hidden_layers=1", "--set", "vocab_size=100", "--seq", "1024"]
    words = ["plan", "qwen3-0.6b", *smaller, "--budget", "24GiB", "--effective-batch", "1"]
    peaks = []
    for named in ("2.13", "2.15"):
        assert run([*words, "--precision", "fp32", "--json", "--torch", named]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["best"]["peak_bytes"])
    assert peaks[0] > 1.5 * peaks[1]
