"""What the chapters say, tested at settings that they do not use."""

import importlib
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from test_chapter13 import DIVIDED, run_cells
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from tutorial_lib import data, memory
from tutorial_lib.instruments import ranks
from tutorial_lib.instruments.recorded.published import published_peaks
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.school import authoring
from tutorial_lib.units import GIB


def held_for_backward(report):
    curve = pd.DataFrame(report.curve())
    return int(curve[["activations", "recomputed", "temporary"]].sum(axis=1).max())


def test_06_one_checkpoint_around_all_saves_only_what_the_loop_held():
    model, tokens = GPT(GPTConfig(num_layers=4, vocab_size=4096)), torch.zeros(2, 128).long()

    def whole(tokens):
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        return SimpleNamespace(loss=loss, logits=logits)

    def usual():
        out = whole(tokens)
        out.loss.backward()

    def loss_alone():
        whole(tokens).loss.backward()

    def in_one_checkpoint():
        checkpoint(lambda tokens: whole(tokens).loss, tokens, use_reentrant=False).backward()

    usual, loss_alone, checkpointed = (
        held_for_backward(memory.measure(step, model=model))
        for step in (usual, loss_alone, in_one_checkpoint)
    )
    assert checkpointed == loss_alone
    assert 0.80 < checkpointed / usual < 0.86


@pytest.mark.parametrize(
    ("end", "reads_data", "per_block", "in_one"),
    [
        (nn.Identity, False, (0.16, 0.17), (0.31, 0.33)),  # early stop spares the last matmul
        (partial(nn.Dropout, 0.1), False, (0.33, 0.34), (0.33, 0.34)),
        (partial(nn.LayerNorm, 32), False, (0.33, 0.34), (0.33, 0.34)),
        (partial(nn.Dropout, 0.1), True, (0.34, 0.36), (0.34, 0.36)),  # beyond a third
    ],
)
def test_06_a_third_needs_an_input_with_a_gradient_and_early_stop_a_matmul_at_the_end(
    end, reads_data, per_block, in_one
):
    blocks = [
        nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), end()) for _ in range(8)
    ]
    x = torch.randn(4, 32, requires_grad=not reads_data)

    def flops(size, call):
        with memory.flop_counter() as counter:
            y = x
            for start in range(0, 8, size):
                y = call(nn.Sequential(*blocks[start : start + size]), y)
            y.sum().backward()
        return counter.get_total_flops()

    again = partial(checkpoint, use_reentrant=False)
    for size, (low, high) in {1: per_block, 8: in_one}.items():
        assert low < flops(size, again) / flops(size, lambda block, y: block(y)) - 1 < high


class Rotated(nn.Module):
    """A block that is called with two tensors, as with rotary embeddings."""

    def __init__(self, number, log):
        super().__init__()
        self.linear, self.number, self.log = nn.Linear(8, 8), number, log

    def forward(self, x, cos):
        self.log.append(f"[{self.number}]")
        return self.linear(x).tanh() * cos


def test_07d_all_inputs_of_a_block_come_back_one_block_early(root):
    chapter = authoring.load_definitions(root / "course/07d_offload.ipynb")
    moving = chapter.Prefetching("cpu")
    blocks = [Rotated(number, moving.log) for number in range(6)]
    x, cos = torch.randn(4, 8, requires_grad=True), torch.rand(4, 8)
    for block in blocks:
        x = moving(block, x, cos)
    begin = len(moving.log)
    x.sum().backward()
    assert all(block.linear.weight.grad is not None for block in blocks)
    assert moving.log[begin:] == (
        ["in 5", "in 4", "[5]", "in 3", "[4]", "in 2", "[3]", "in 1", "[2]", "in 0", "[1]", "[0]"]
    )
    assert not any(moving.on_host)


class SmallGRU(nn.Module):
    """A language model of 32 tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 32), nn.Linear(32, 32)
        self.gru = nn.GRU(32, 32, batch_first=True)

    def forward(self, tokens):
        return self.head(self.gru(self.embed(tokens))[0])


def losses_by_token(optimizer, *, mean_of_means, updates=(2, 100)):
    """Train on rows of which the short ones are hard; the mean loss of a token, after updates."""
    short = [torch.tensor([0, 0, last]) for last in range(0, 32, 2)]  # whose end nobody can guess
    lengthy = [torch.arange(32) * step % 32 for step in range(1, 5)]
    rows = nn.utils.rnn.pad_sequence([*short, *lengthy], batch_first=True, padding_value=-100)
    counts = (rows[:, 1:] != -100).sum(1)
    # as in micro-batches of one row: each mean counts the same, or each token
    weights = 1 / (counts * len(rows)) if mean_of_means else 1 / counts.sum().expand(len(rows))
    torch.manual_seed(0)
    model, found = SmallGRU(), []
    optimizer = optimizer(model.parameters())
    for update in range(1, max(updates) + 1):
        logits = model(rows.clamp(min=0))[:, :-1].transpose(1, 2)
        losses = F.cross_entropy(logits, rows[:, 1:], reduction="none").sum(1)
        optimizer.zero_grad()
        (losses * weights).sum().backward()
        optimizer.step()
        if update in updates:
            found.append((losses.sum() / counts.sum()).item())
    return found


@pytest.mark.parametrize(
    "optimizer", [partial(torch.optim.SGD, lr=1.0), partial(torch.optim.AdamW, lr=3e-3)]
)
def test_08_after_training_the_loss_shows_the_mean_of_means(optimizer):
    begins, ends = (
        wrong / right - 1
        for wrong, right in zip(
            losses_by_token(optimizer, mean_of_means=True),
            losses_by_token(optimizer, mean_of_means=False),
            strict=True,
        )
    )
    assert begins < 0.05
    assert ends > 0.5


def batch_norms_error(model, images, labels):
    """How far gradients of 16 x 4 are from those of 64 at once: the mean of four batches."""

    def gradient(rows, size):
        model.zero_grad()
        for part in rows.split(size):
            (F.cross_entropy(model(images[part]), labels[part]) * size / 64).backward()
        return parameters_to_vector(p.grad for p in model.parameters()).clone()

    batches = torch.arange(256).split(64)
    pairs = [(gradient(rows, 16), gradient(rows, 64)) for rows in batches]
    return sum(float((seen - whole).norm() / whole.norm()) for seen, whole in pairs) / 4


def small_network():
    first = nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64)
    return nn.Sequential(*first, nn.ReLU(), nn.Linear(64, 10))


def small_resnet():
    return ResNet(ResNetConfig(in_channels=1, stage_depths=(1, 1, 1), base_channels=4))


@pytest.mark.parametrize("make", [small_network, small_resnet])
def test_09_after_training_batch_norm_is_off_by_more(make):
    torch.manual_seed(0)
    images, labels = data.digits()
    model, images = make().double(), images.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    untrained = batch_norms_error(model, images, labels)
    for update in range(200):
        rows = torch.arange(64 * update, 64 * update + 64) % len(images)
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    assert 0.2 < untrained < batch_norms_error(model, images, labels) / 1.2


def test_10d_the_usual_loop_keeps_the_logits_of_its_out():
    config = LlamaConfig(
        **{"vocab_size": 8192, "hidden_size": 32, "intermediate_size": 64},
        **{"num_hidden_layers": 1, "num_attention_heads": 2, "use_cache": False},
    )
    model, tokens = LlamaForCausalLM(config).bfloat16(), torch.zeros(1, 256).long()

    def usual():
        out = model(input_ids=tokens, labels=tokens)
        out.loss.backward()

    def loss_alone():
        model(input_ids=tokens, labels=tokens).loss.backward()

    more, less = (memory.measure(step, model=model) for step in (usual, loss_alone))
    assert more.peak_bytes - less.peak_bytes == 2 * 256 * 8192
    assert 12 < held_for_backward(less) / (256 * 8192) < 12.5


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("row", "below"),
    [("fms_santa_full_b8", 0.014), ("fms_mistral_lora_b4", 0.005), ("fms_mistral_lora_b8", 0.007)],
)
def test_10b_open_misses_are_one_copy_of_the_logits(monkeypatch, row, below):
    published_steps = importlib.import_module("published_steps")
    plain = published_steps.old_loss

    def holds_a_copy(logits, ids):
        copy, loss = logits.detach().bfloat16(), plain(logits, ids)
        loss.copy = copy  # until backward has ended
        return loss

    (peak,) = (peak for peak in published_peaks() if peak.id == row)
    monkeypatch.setattr(published_steps, "old_loss", holds_a_copy)
    seen = memory.predict(published_steps.step_of(row)).peak_bytes / GIB
    assert 1 - below < seen / peak.published < 1


@pytest.fixture(scope="module")
def chapter12(root):
    return authoring.load_definitions(root / "course/12_deep_and_recurrent.ipynb")


def around_a_compiled_block(block, *args, **options):
    """Checkpoint a compiled block in eager mode."""
    return checkpoint(torch.compile(block, backend="aot_eager"), *args, use_reentrant=False)


@pytest.mark.parametrize(
    ("momentum", "cured", "twice"),
    [(0.1, "equal", "off by 24%"), (1 - 0.9**0.5, "off by 18%", "equal to rounding")],
)
def test_12_statistics_move_once_in_a_compiled_checkpoint(chapter12, momentum, cured, twice):
    once = chapter12.statistics_after(chapter12.plainly)
    for run, said, batches in (
        (chapter12.compiled, cured, 5),
        (chapter12.checkpoint, twice, 10),
        (around_a_compiled_block, twice, 10),
    ):
        torch.compiler.reset()
        seen = chapter12.statistics_after(run, momentum)
        assert (chapter12.compared(seen, once), seen["norm_1.num_batches_tracked"]) == (
            said,
            batches,
        )


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize(("sync", "times"), [(True, 2 * 3), (False, 2 * 2 + 1)])
def test_14_fsdp2_sends_all_weights_in_each_micro_batch(recomputed, sync, times):
    chapter = run_cells("13_many_devices", DIVIDED["13_many_devices"], {"N": 4})
    with ranks.pretend(4):
        _, model, _ = chapter.fsdp(True, recomputed)
        for _ in range(2):  # the first time FSDP2 sets itself up
            with ranks.traffic() as traffic:
                for is_last in (False, True):
                    model.set_requires_gradient_sync(sync or is_last)
                    chapter.loss_of(model(chapter.lines), chapter.lines).backward()
    assert traffic.ring_bytes(4) / chapter.P == pytest.approx(times * 3 / 4, rel=0.01)
