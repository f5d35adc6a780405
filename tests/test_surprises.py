"""What libraries do that chapters warn of: each test fails when the library has changed."""

import csv
import math
import sys
import tempfile
import warnings
from contextlib import nullcontext
from functools import partial

import habits
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
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
        seen.append(tensor.untyped_storage().data_ptr())
        return tensor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = checkpoint(lambda x: (x @ weight).cos() @ weight, x, use_reentrant=False, **asked)
    assert (len(set(seen)) > 1) == bool(respected)
    y.sum().backward()


@pytest.mark.weekly
@pytest.mark.parametrize(
    "trainer", ["Trainer, its model takes the count", "Trainer, its model doesn't", "Accelerate"]
)
def test_a_recorded_habit_is_still_the_librarys(trainer):
    with habits.OUT.open(encoding="utf-8", newline="") as file:
        (kept,) = (row for row in csv.DictReader(file) if row["trainer"] == trainer)
    assert habits.ask(trainer, sys.executable) == kept


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
