"""What libraries do that chapters warn of: each test fails when the library has changed."""

import csv
import math
import shutil
import sys
import tempfile
import warnings
from contextlib import nullcontext
from functools import partial

import compiled
import habits
import pytest
import torch
import torch.distributed as dist
from functorch.compile import aot_module, make_boxed_func, min_cut_rematerialization_partition
from torch import nn
from torch._functorch import config as functorch_config
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tutorial_lib import memory


def attention_saves(**changed):
    """Return the largest tensor that attention saves, in numbers, and the number of scores."""
    heads, length = 2, 64
    q, k, v = torch.randn(3, 1, heads, length, 8, requires_grad=True).unbind()
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        F.scaled_dot_product_attention(q, k, v, **changed)
    return max(sizes), heads * length**2


def test_a_trained_bias_and_dropout_bring_back_attentions_scores():
    assert attention_saves()[0] < attention_saves()[1]
    bias = torch.zeros(1, 2, 64, 64, requires_grad=True)
    for changed in ({"attn_mask": bias}, {"dropout_p": 0.1}):
        largest, scores = attention_saves(**changed)
        assert largest == scores, changed


@pytest.mark.skipif(
    not hasattr(nn, "LinearCrossEntropyOptions"), reason="this PyTorch has no fused loss"
)
def test_label_smoothing_brings_back_the_logits_of_the_fused_loss():
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=16)
    x, head = torch.randn(64, 8, requires_grad=True), torch.randn(512, 8, requires_grad=True)
    targets = torch.randint(512, (64,))
    saved = []
    for smoothing in (0.0, 0.1):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            kept = memory.saved(
                lambda smoothing=smoothing: F.linear_cross_entropy(
                    x, head, targets, options=options, label_smoothing=smoothing
                )
            )
        saved.append(kept.num_bytes)
        assert any("ignored" in str(one.message) for one in said) == bool(smoothing)
    assert saved[0] < 64 * 512 * 4 <= saved[1]


@pytest.fixture
def one_rank(tmp_path):
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif("2.14" <= torch.__version__ < "2.15", reason="was not tried")
def test_without_a_reduce_type_waiting_gradients_changed_their_type(one_rank):
    model = nn.Linear(8, 8, bias=False)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
    model.set_requires_gradient_sync(False)
    model(torch.randn(2, 8)).sum().backward()
    (held,) = model._get_fsdp_state()._fsdp_param_group.fsdp_params
    gradient = held.unsharded_accumulated_grad
    gradient = held._unsharded_param.grad if gradient is None else gradient
    assert gradient.dtype == (torch.float32 if torch.__version__ >= "2.15" else torch.bfloat16)


@pytest.mark.parametrize(("scale", "expected"), [(True, 1.25), (False, 2.0)])
def test_a_pipeline_divides_earlier_gradients_again(one_rank, scale, expected):
    torch.manual_seed(0)
    part = nn.Linear(4, 1)
    stage = PipelineStage(part, 0, 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=F.mse_loss, scale_grads=scale)
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    schedule.step(x, target=y)
    once = part.weight.grad.clone()
    schedule.step(x, target=y)
    torch.testing.assert_close(part.weight.grad, expected * once)


class Stage(nn.Module):
    """A layer that counts how often it runs, in a checkpoint where one is asked for."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.layer, self.runs, self.reentrant = nn.Linear(4, 4), 0, reentrant

    def forward(self, x):
        if self.reentrant is None:
            return self._run(x)
        return checkpoint(self._run, x, use_reentrant=self.reentrant)

    def _run(self, x):
        self.runs += 1
        return self.layer(x).tanh()


@pytest.mark.parametrize("schedule", [ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_checkpoints_in_a_pipeline(one_rank, schedule, reentrant, monkeypatch):
    learns_backward = hasattr(PipelineStage, "_warmup_forward_vote")  # newer than 2.11
    if reentrant and schedule is ScheduleInterleavedZeroBubble and not learns_backward:
        pytest.skip("up to PyTorch 2.11 a reentrant checkpoint raises in this schedule")
    # Up to 2.11 neighbours greet each other, which one process cannot.
    monkeypatch.setattr(PipelineStage, "_get_init_p2p_neighbors_ops", lambda _: [])
    parts = [Stage(reentrant) for _ in range(2)]
    stages = [PipelineStage(part, i, 2, torch.device("cpu")) for i, part in enumerate(parts)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inputs that need no gradient
        schedule(stages, 4, loss_fn=F.mse_loss).step(torch.randn(8, 4), target=torch.randn(8, 4))
    lost = [part.layer.weight.grad is None for part in parts]
    assert lost == [reentrant is True, reentrant is True and learns_backward]
    once = 5  # four micro-batches, and one more to learn the shapes
    again = (4 if schedule is ScheduleInterleaved1F1B else 8) + learns_backward
    assert parts[1].runs == once + (0 if reentrant is None or lost[1] else again)


NEWER = pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "node_creation_hook"), reason="new in PyTorch 2.15"
)


@pytest.mark.parametrize("respected", [None, pytest.param(True, marks=NEWER)])
def test_hooks_around_selective_checkpointing_see_nothing_of_what_it_saves(respected):
    x, weight = torch.randn(2, 64, 64, requires_grad=True).unbind()
    asked = {} if respected is None else {"respect_saved_tensors_hooks": respected}
    asked["context_fn"] = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    seen = []

    def pack(tensor):
        seen.extend([tensor.untyped_storage().data_ptr()] if tensor.numel() else [])
        return tensor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = checkpoint(lambda x: (x @ weight).cos() @ weight, x, use_reentrant=False, **asked)
    assert (len(set(seen)) > 1) == bool(respected)
    y.sum().backward()


@NEWER
def test_checkpoint_is_a_decorator():
    runs = []

    @checkpoint(use_reentrant=False)
    def region(x):
        runs.append(1)
        return x.cos().cos()

    region(torch.ones(3, requires_grad=True)).sum().backward()
    assert len(runs) == 2


def test_a_hook_inside_a_checkpoint_fires_twice_but_the_last_modules():
    region, fired = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), []
    for place, module in enumerate(region):
        module.register_forward_hook(lambda *_, place=place: fired.append(place))
    checkpoint(region, torch.ones(2, 4), use_reentrant=False).sum().backward()
    assert fired == [0, 1, 2, 0, 1]


@pytest.mark.skipif("2.14" <= torch.__version__ < "2.15", reason="was not tried")
@pytest.mark.skipif(not hasattr(torch.library, "EffectType"), reason="older than 2.13")
@pytest.mark.parametrize("selective", [False, True])
def test_an_ordered_effect_runs_once_under_a_policy_from_2_15_on(selective):
    runs = []

    @torch.library.custom_op(f"surprises::effect_{selective}", mutates_args=())
    def effect(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x.clone()

    effect.register_autograd(lambda _, gradient: gradient)
    effect.register_effect(torch.library.EffectType.ORDERED)
    how = {"context_fn": partial(create_selective_checkpoint_contexts, [])} if selective else {}
    x = torch.ones(3, requires_grad=True)
    checkpoint(lambda x: effect(x).exp().sin(), x, use_reentrant=False, **how).sum().backward()
    assert len(runs) == (1 if selective and torch.__version__ >= "2.15" else 2)


class Blocks(nn.Module):
    """Four MLPs; the last ones, or all of them, with a budget of their own."""

    def __init__(self, budget=None, last=4, breaks=False):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
            for _ in range(4)
        )
        self.budget, self.last, self.breaks = budget, last, breaks

    def forward(self, x):
        for layer in self.layers[: 4 - self.last]:
            x = x + layer(x)
        if self.budget is None:
            return self._rest(x)
        if self.breaks:
            torch._dynamo.graph_break()
        with torch.autograd.graph.region_activation_memory_budget(self.budget):
            return self._rest(x)

    def _rest(self, x):
        for layer in self.layers[4 - self.last :]:
            x = x + layer(x)
        return x


def waiting_bytes(model, **config):
    """Return what the compiled model keeps for backward besides weights."""
    torch._dynamo.reset()
    with functorch_config.patch(**config):
        compiled = torch.compile(model, backend="aot_eager_decomp_partition")
        x = torch.randn(128, 16)
        compiled(x).sum().backward()
        return memory.saved(lambda: compiled(x), params_of=model).num_bytes


REGIONS = pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "region_activation_memory_budget"),
    reason="this PyTorch has no budget for a region",
)


@REGIONS
@pytest.mark.weekly
def test_a_budget_of_a_region_wins_and_covers_a_graph():
    half = waiting_bytes(Blocks(), activation_memory_budget=0.5)
    assert waiting_bytes(Blocks(0.5), activation_memory_budget=0.0) == half
    with pytest.raises(Exception, match="must cover the entire forward"):
        waiting_bytes(Blocks(0.5, last=2))
    assert waiting_bytes(Blocks(0.0, last=2, breaks=True)) > half  # of the first two, all


@REGIONS
@NEWER
@pytest.mark.weekly
def test_without_full_coverage_a_regions_budget_is_the_graphs():
    least = waiting_bytes(Blocks(), activation_memory_budget=0.0)
    without = {"activation_memory_budget_require_full_coverage": False}
    assert waiting_bytes(Blocks(0.0, last=2), **without) == least


def test_the_smallest_budget_of_the_compiler_has_not_the_smallest_peak():
    def peak(budget):
        model, x = Blocks(), torch.randn(128, 16)
        as_it_is = lambda graph, _: make_boxed_func(graph.forward)  # noqa: E731
        with functorch_config.patch(activation_memory_budget=budget):
            step = aot_module(
                model, as_it_is, as_it_is, partition_fn=min_cut_rematerialization_partition
            )
            step(x).sum().backward()
            return memory.measure(lambda: step(x).sum().backward(), model=model).peak_bytes

    all_kept, few_kept, none_kept = map(peak, (1, 0.1, 0))
    assert few_kept < all_kept
    assert few_kept < none_kept


@pytest.mark.weekly
@pytest.mark.skipif(not shutil.which("g++"), reason="compiling on a CPU needs a C++ compiler")
def test_a_compiled_step_recomputes_several_blocks_at_once_where_each_runs_twice():
    with (habits.OUT.parent / "compiled.csv").open(encoding="utf-8") as file:
        kept = [list(row.values()) for row in csv.DictReader(file)]
    settings = [("two", "nothing"), ("two", "step"), ("two, graph break between", "step")]
    seen = {one: compiled.row(3, one[0], True, one[1])[0] for one in settings}
    alone = seen["two", "nothing"]
    assert str(alone) in [row[5] for row in kept if row[:4] == ["3", "two", "True", "nothing"]]
    assert seen["two", "step"] > 1.8 * alone
    assert seen["two, graph break between", "step"] < 1.15 * alone


@pytest.mark.weekly
@pytest.mark.parametrize(
    "trainer", ["Trainer, its model takes the count", "Trainer, its model doesn't", "Accelerate"]
)
def test_a_recorded_habit_is_still_the_librarys(trainer):
    with habits.OUT.open(encoding="utf-8", newline="") as file:
        (kept,) = (row for row in csv.DictReader(file) if row["trainer"] == trainer)
    asked = habits.ask(trainer, sys.executable)
    assert asked == kept | {"version": asked["version"]}  # a newer one may have it too


SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip


def logged_loss(model, steps):
    """Return the loss that a Trainer logs for one update on four rows of four tokens."""
    import transformers

    rows = torch.arange(4) + torch.arange(4)[:, None]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=4 // steps, gradient_accumulation_steps=steps,
            max_steps=1, learning_rate=0.0, logging_steps=1, save_strategy="no", report_to=[],
            disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
        )  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in rows]
        trainer = transformers.Trainer(model, arguments, train_dataset=data)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return trainer.state.log_history[0]["loss"]


@pytest.mark.weekly
def test_the_trainer_counts_first_labels_of_gpt2_and_not_of_llama():
    import transformers

    gpt2 = transformers.GPT2Config(
        vocab_size=32, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    llama = transformers.LlamaConfig(**SMALL)
    rows, found = torch.arange(4) + torch.arange(4)[:, None], []
    for model in (transformers.GPT2LMHeadModel(gpt2), transformers.LlamaForCausalLM(llama)):
        right = model(rows, labels=rows).loss.item()
        found.append(round(logged_loss(model, 1) / right, 2))
    assert found == [0.75, 1.0]


@pytest.mark.weekly
def test_the_trainer_counts_a_router_loss_once_a_micro_batch():
    import transformers

    def with_weight(weight, steps):
        torch.manual_seed(0)
        config = transformers.MixtralConfig(
            **SMALL, num_key_value_heads=2, num_local_experts=2, output_router_logits=True,
            router_aux_loss_coef=weight,
        )  # fmt: skip
        return logged_loss(transformers.MixtralForCausalLM(config), steps)

    added = [with_weight(10.0, steps) - with_weight(0.0, steps) for steps in (1, 2, 4)]
    assert [round(more / added[0], 1) for more in added] == [1.0, 2.0, 4.0]


@pytest.mark.weekly
@pytest.mark.parametrize("switch_first", [True, False])
def test_a_reentrant_vit_with_lora_depends_on_the_order_of_two_calls(switch_first):
    import peft
    import transformers

    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=16, **SMALL))
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "query"])
    how = {"use_reentrant": True}
    if switch_first:
        model.gradient_checkpointing_enable(how)
        model = peft.get_peft_model(model, lora)
    else:
        model = peft.get_peft_model(model, lora)
        model.gradient_checkpointing_enable(how)
    out = model.train()(torch.randn(1, 3, 32, 32)).last_hidden_state.sum()
    with nullcontext() if switch_first else pytest.raises(RuntimeError, match="require grad"):
        out.backward()


def test_kbit_training_of_a_bf16_model_doubles_it_and_checkpoints_nothing():
    from peft import prepare_model_for_kbit_training
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SMALL)).bfloat16()
    before = sum(weight.nbytes for weight in model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
    assert sum(weight.nbytes for weight in model.parameters()) == 2 * before
    assert not any(getattr(part, "gradient_checkpointing", False) for part in model.modules())


def test_one_infinite_gradient_in_multisteps_ends_the_training():
    optax = pytest.importorskip("optax")
    import jax.numpy as jnp

    def train(optimizer):
        weights = jnp.ones(1)
        state = optimizer.init(weights)
        for gradient in [1.0, float("inf"), *[1.0] * 10]:
            update, state = optimizer.update(jnp.array([gradient]), state, weights)
            weights = optax.apply_updates(weights, update)
        return round(float(weights[0]), 3)

    windows = optax.MultiSteps(optax.sgd(0.1), 4)
    inside = optax.MultiSteps(optax.apply_if_finite(optax.sgd(0.1), 5), 4)
    assert math.isnan(train(windows))
    assert train(optax.apply_if_finite(windows, 5)) == 0.8  # two updates; its next window is longer
    assert train(inside) == 1.0  # no update, since its sum stays lost


def test_jax_checkpoint_of_an_nnx_module_loses_its_state():
    nnx = pytest.importorskip("flax.nnx")
    import jax
    import jax.numpy as jnp

    class Block(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.dropout, self.norm = nnx.Dropout(0.5, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.norm(x))

    def of(wrapper):
        block, x = Block(), jnp.arange(32.0).reshape(8, 4)
        run = wrapper(lambda block, x: block(x))
        one, two = run(block, x), run(block, x)
        return bool((one == two).all()), bool((block.norm.mean[...] == 0).all())

    assert of(nnx.remat) == (False, False)
    assert of(jax.checkpoint) == (True, True)


def test_the_old_name_of_the_switch_refuses_the_new_options():
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    if not hasattr(model, "activation_checkpointing_enable"):
        pytest.skip("older than transformers 5.23")
    tokens = torch.arange(4)[None]
    model.activation_checkpointing_enable(every_n_layers=2)
    model.train()(tokens, labels=tokens).loss.backward()
    with pytest.warns(FutureWarning):
        model.gradient_checkpointing_enable({"every_n_layers": 2})
    with pytest.raises(ValueError, match="every_n_layers"):
        model(tokens, labels=tokens)


def test_recompute_grad_draws_another_dropout_mask():
    pytest.importorskip("tensorflow")
    from tutorial_lib.instruments import frameworks

    tf, masks = frameworks.import_tensorflow(), []

    def region(x):
        y = tf.nn.dropout(x, 0.5)
        masks.append(y.numpy() != 0)
        return y * y

    x = tf.Variable(tf.ones(256))
    with tf.GradientTape() as tape:
        y = tf.recompute_grad(region)(x)
    gradient = tape.gradient(y, x).numpy()
    assert len(masks) == 2
    assert ((gradient != 0) != masks[0]).mean() > 0.25
    assert ((gradient != 0) == masks[1]).all()


def test_multisteps_sums_in_float32():
    optax = pytest.importorskip("optax")
    import jax.numpy as jnp

    weights = jnp.ones(8, jnp.bfloat16)
    state = optax.MultiSteps(optax.sgd(0.1), 4).init(weights)
    assert state.acc_grads.nbytes == 2 * weights.nbytes


def test_a_policy_that_excepts_a_name_keeps_its_value():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    def loss(x):
        wide = checkpoint_name(jnp.sin(x @ jnp.ones((8, 64))), "wide")
        return jnp.sin(wide @ jnp.ones((64, 8))).sum()

    def keeps_wide(policy):
        _, backward = jax.vjp(jax.checkpoint(loss, policy=policy), jnp.ones((4, 8)))
        return any(getattr(leaf, "shape", 0) == (4, 64) for leaf in jax.tree.leaves(backward))

    policies = jax.checkpoint_policies
    assert keeps_wide(policies.save_anything_except_these_names("wide"))
    assert not keeps_wide(policies.save_any_names_but_these("wide"))


@pytest.mark.parametrize(("over", "dots"), [((None, 0), 1), ((0, 0), 0)])
def test_without_batch_dims_keeps_no_dot_under_vmap_over_weights(over, dots, capsys):
    jax = pytest.importorskip("jax")
    from jax.ad_checkpoint import print_saved_residuals

    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    layer = jax.checkpoint(lambda w, x: jax.numpy.sin(jax.numpy.sin(x) @ w), policy=policy)
    weights = jax.numpy.ones((3, 4, 4) if over == (0, 0) else (4, 4))
    stacked = jax.vmap(layer, over)
    print_saved_residuals(lambda w, x: stacked(w, x).sum(), weights, jax.numpy.ones((3, 8, 4)))
    assert capsys.readouterr().out.count("output of dot_general") == dots


def test_remat_around_a_scan_saves_nothing():
    nnx = pytest.importorskip("flax.nnx")
    import jax
    import jax.numpy as jnp

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(32, 128, rngs=rngs)
            self.down = nnx.Linear(128, 32, rngs=rngs)

    def run(x, block):
        return x + block.down(jnp.tanh(block.up(x)))

    stack = nnx.vmap(Block, in_axes=0, out_axes=0)
    layout, weights = nnx.split(nnx.split_rngs(splits=8)(stack)(nnx.Rngs(0)))
    axes = {"in_axes": (nnx.Carry, 0), "out_axes": nnx.Carry}

    def temporaries(way):
        loss = jax.grad(lambda weights, x: way(x, nnx.merge(layout, weights)).sum())
        program = jax.jit(loss).lower(weights, jnp.ones((128, 32))).compile()
        return program.memory_analysis().temp_size_in_bytes

    plain = temporaries(nnx.scan(run, **axes))
    assert temporaries(nnx.scan(nnx.remat(run), **axes)) < 0.5 * plain
    assert temporaries(nnx.remat(nnx.scan(run, **axes))) > 0.95 * plain
