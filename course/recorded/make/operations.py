"""Single operations that Liger-Kernel's authors measured on real GPUs, predicted.

    python course/recorded/make/operations.py OPS.csv     all rows, some minutes
    python course/recorded/make/operations.py --table     what is kept

OPS.csv holds `benchmark/data/all_benchmark_data*.csv` of linkedin/Liger-Kernel (BSD 2-clause).
Here are its memory rows of plain PyTorch and Hugging Face operations: the median of ten peaks, in
MiB, of `max_memory_allocated`. Each step follows `benchmark/scripts/benchmark_KERNEL.py`;
`operations.csv` beside this folder keeps the answers. `workspaces` are those that cuBLAS keeps for
each thread that multiplied (8.125 MiB, from a Hopper card on 32); `memory.predict` counts none.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama import modeling_llama
from transformers.models.llama4 import modeling_llama4

from tutorial_lib import memory
from tutorial_lib.units import MIB

TABLE = Path(__file__).resolve().parents[1] / "operations.csv"
FIELDS = ("kernel", "provider", "mode", "config", "x", "gpu", "date", "published", "predicted")
FIELDS = (*FIELDS, "workspaces", "why")
Row = dict[str, str]
VOCABULARY = {"llama_2_7b": 32000, "llama_3_8b": 128256, "qwen2.5_7b": 152064}
VOCABULARY |= {"qwen2.5_14b": 152064, "qwen2.5_72b": 152064, "deepseek_v2_lite": 102400}
VOCABULARY |= {"deepseek_v3": 129280}
# Threads that multiplied matrices before or while the peak was read: the caller's, and backward's
# (the scripts run forward and backward together first). A rotary embedding multiplies once, before.
THREADS = {"megatron": 0, "rope": 1} | dict.fromkeys(
    ["fused_linear", "fused_moe", "fused_neighborhood", "geglu", "swiglu", "distill", "kto"], 2
)
Forward = Callable[[], Any]


class Settings:
    """What a row says: its configuration, and x in the place that it names."""

    def __init__(self, row: Row) -> None:
        self.row, self.config = row, json.loads(row["config"])
        self.x = VOCABULARY.get(row["x"]) or int(row["x"])
        self.dtype = getattr(torch, self.config.get("dtype", "torch.float32").split(".")[1])

    def __getattr__(self, name: str) -> Any:
        return self.config[name]

    def leaf(self, *shape: int) -> Tensor:
        """Make a tensor that wants a gradient."""
        return torch.randn(shape, dtype=self.dtype, requires_grad=True)


def of_layer(make: Callable[[Settings], tuple[nn.Module, tuple[int, ...]]]):
    """Return the forward of a layer on one tensor."""

    def forward_of(s: Settings) -> tuple[Forward, list[Any]]:
        layer, shape = make(s)
        layer, x = layer.to(s.dtype), s.leaf(*shape)
        return lambda: layer(x), [layer, x]

    return forward_of


def mlp(s: Settings) -> tuple[nn.Module, tuple[int, ...]]:
    fields = {name: s.config[name] for name in ("hidden_size", "intermediate_size", "hidden_act")}
    config = transformers.LlamaConfig(**fields)
    return modeling_llama.LlamaMLP(config), (s.bsz, s.x, s.hidden_size)


def group_norm(s: Settings) -> tuple[nn.Module, tuple[int, ...]]:
    by_channels = s.row["x_name"] == "C"
    channels, batch = (s.x, s.M) if by_channels else (s.hidden_size, s.x // s.H)
    return nn.GroupNorm(channels // s.channels_per_group, channels), (batch, channels, s.H)


def old_group_norm(s: Settings) -> tuple[Forward, list[Any]]:
    """Run forward and backward in all modes, with one gradient: three modes gave equal peaks."""
    forward, (layer, x) = of_layer(group_norm)(s)
    gradient = torch.randn_like(x)

    def step() -> None:
        y = forward()
        y.backward(gradient, retain_graph=True)

    return step, [layer]


def layer_norm(s: Settings) -> tuple[nn.Module, tuple[int, ...]]:
    width, count = (s.x, s.M) if s.row["x_name"] == "N" else (s.hidden_size, s.x)
    return nn.LayerNorm(width), (count, width)


class AddRms(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.to(torch.float32) + residual.to(torch.float32)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * scaled.to(x.dtype), wide.to(x.dtype)


def add_rms(s: Settings) -> tuple[Forward, list[Any]]:
    shape = (s.M, s.x) if s.row["x_name"] == "H" else (s.x, s.hidden_size)
    layer, x, residual = AddRms(shape[1]), s.leaf(*shape), s.leaf(*shape)
    gradients = torch.randn_like(x), torch.randn_like(x)
    step = lambda: torch.autograd.backward(layer(x, residual), gradients)  # noqa: E731
    return step, []


class DyT(nn.Module):
    def __init__(self, width: int, beta: bool) -> None:
        super().__init__()
        self.alpha, self.gamma = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width)) if beta else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.gamma * torch.tanh(x * self.alpha)
        return y if self.beta is None else y + self.beta


def dyt(s: Settings) -> tuple[Forward, list[Any]]:
    layer, x = DyT(s.hidden_size, s.beta), s.leaf(s.x, s.hidden_size)  # the layer is float32
    return lambda: layer(x), [layer, x]


class PolyNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        powers = wide**3, wide**2, wide**1
        three, two, one = (p * torch.rsqrt(p.pow(2).mean(-1, keepdim=True) + 1e-6) for p in powers)
        out = self.weight[0] * three + self.weight[1] * two + self.weight[2] * one + self.bias
        return out.to(x.dtype)


def poly_norm(s: Settings) -> tuple[Forward, list[Any]]:
    layer, x = PolyNorm(), s.leaf(s.x, s.hidden_size)  # the layer is float32
    gradient = torch.randn_like(x)
    return lambda: layer(x).backward(gradient, retain_graph=True), []


def sparsemax(x: Tensor) -> Tensor:
    ordered, _ = torch.sort(x, dim=-1, descending=True)
    sums = torch.cumsum(ordered, dim=-1)
    places = torch.arange(1, x.size(-1) + 1, dtype=x.dtype).view(1, -1)
    support = 1 + places * ordered > sums
    count = support.sum(dim=-1, keepdim=True).clamp(min=1)
    edge = ((ordered * support).sum(dim=-1, keepdim=True) - 1) / count
    return torch.clamp(x - edge, min=0)


def on_rows(function: Callable[[Tensor], Tensor], ones: bool):
    """Return the step of a function on one matrix; its gradient is kept beside it."""

    def step_of(s: Settings) -> tuple[Forward, list[Any]]:
        if s.row["x_name"] == "BT":
            shape: tuple[int, ...] = (s.x, s.hidden_size)
        elif "T" in s.config:
            shape = (s.B * s.T, s.x)
        else:
            shape = (s.x,)  # what these rows measured: a matrix of M rows takes M times as much
        x = s.leaf(*shape)
        gradient = torch.randn_like(x)

        def step() -> None:
            y = function(x)
            y.backward(torch.ones_like(y) if ones else gradient, retain_graph=True)

        return step, [gradient]

    return step_of


def cross_entropy(s: Settings) -> tuple[Forward, list[Any]]:
    words, count = (s.x, 2048) if s.row["x_name"] == "model_config" else (s.vocab_size, s.x)
    x, target = s.leaf(count, words), torch.zeros(count, dtype=torch.long)
    return lambda: F.cross_entropy(x, target).backward(), []


def jsd_of(q: Tensor, p: Tensor) -> Tensor:
    kl = nn.KLDivLoss(reduction="none", log_target=True)
    p, q = p.to(torch.float), q.to(torch.float)
    mean = torch.lerp(torch.exp(q), torch.exp(p), 0.5)
    loss = 0.5 * kl(torch.log(mean), p).sum(-1) + 0.5 * kl(torch.log(mean), q).sum(-1)
    return (loss / q.shape[0]).sum()


def two_distributions(kind: str):
    """Return the step of a loss between two distributions that are made before."""

    def step_of(s: Settings) -> tuple[Forward, list[Any]]:
        shape = (s.x, s.vocab_size) if "vocab_size" in s.config else (s.B * s.T, s.x)
        x, target = torch.randn(shape, requires_grad=True), torch.randn(shape)
        x = x.softmax(-1) if kind == "tvd" else x.log_softmax(-1)
        target = target.log_softmax(-1) if kind == "jsd" else target.softmax(-1)

        def loss() -> Tensor:
            if kind == "jsd":
                return jsd_of(x, target)
            if kind == "kl":
                return F.kl_div(x, target, reduction="batchmean")
            return torch.sum(torch.abs(x - target) / 2.0) / x.size(0)

        return lambda: loss().backward(retain_graph=True), []

    return step_of


def linear_jsd(s: Settings) -> tuple[Forward, list[Any]]:
    student, teacher = (
        nn.Linear(s.hidden_size, s.vocab_size, bias=False, dtype=s.dtype) for _ in range(2)
    )
    x, other = s.leaf(s.x, s.hidden_size), torch.rand(s.x, s.hidden_size, dtype=s.dtype)

    def step() -> None:
        mine, theirs = student(x), teacher(other)
        mine, theirs = (torch.log_softmax(one / 1.0, dim=-1) for one in (mine, theirs))
        jsd_of(mine, theirs).to(s.dtype).backward()

    return step, []


def cosine(s: Settings) -> tuple[Forward, list[Any]]:
    student = nn.Linear(s.H // 2, s.V, bias=False, dtype=s.dtype)
    teacher = nn.Linear(s.H, s.V, bias=False, dtype=s.dtype)
    x, other = s.leaf(s.x, s.H // 2), torch.rand(s.x, s.H, dtype=s.dtype)
    target = torch.zeros(s.x, dtype=torch.long)

    def loss() -> Tensor:
        outputs = x @ student.weight.t()
        with torch.no_grad():
            others = other @ teacher.weight.t()
        mine, theirs = outputs.float(), others.float()
        hard = F.cross_entropy(mine, target)
        mine /= 1.0
        theirs /= 1.0
        both = (F.normalize(one, p=2, dim=-1) for one in (mine, theirs))
        return 0.5 * hard + 0.5 * (1 - F.cosine_similarity(*both, dim=-1)).mean()

    return lambda: loss().backward(), []


def grpo(s: Settings) -> tuple[Forward, list[Any]]:
    width, words = s.config.get("H", s.config.get("hidden_size")), s.config.get("V")
    words = words or s.vocab_size
    heads = [nn.Linear(width, words, bias=False, dtype=s.dtype) for _ in range(4)]  # Liger's too
    x, other = s.leaf(s.x, s.T, width), torch.randn(s.x, s.T, width, dtype=s.dtype)
    chosen = torch.zeros(s.x, s.T, 1, dtype=torch.long)
    mask, advantages = torch.ones(s.x, s.T), torch.randn(s.x, dtype=s.dtype)

    def loss() -> Tensor:
        logits = x @ heads[0].weight.t()
        logs = F.log_softmax(logits.float(), dim=-1)
        mine = logs.gather(-1, chosen).squeeze(-1)
        with torch.no_grad():
            theirs = other @ heads[1].weight.t()
            reference = F.log_softmax(theirs.float(), dim=-1).gather(-1, chosen).squeeze(-1)
        ratio = torch.exp(mine - mine.detach())
        gain = torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        far = torch.exp(reference - mine) - (reference - mine) - 1.0
        return ((0.1 * far - gain) * mask).sum() / mask.sum()

    return lambda: loss().backward(), heads[2:]


def kto(s: Settings) -> tuple[Forward, list[Any]]:
    head, old = (nn.Linear(s.H, s.V, dtype=s.dtype) for _ in range(2))
    x, other = (torch.randn(s.x, s.T, s.H, dtype=s.dtype) for _ in range(2))
    target = torch.zeros(s.x, s.T, 1, dtype=torch.long)
    halves = torch.arange(s.x // 2), torch.arange(s.x // 2)  # as if half were preferred
    mask = torch.ones(s.x, s.T)

    def logs(logits: Tensor) -> Tensor:
        chosen = torch.gather(logits.log_softmax(-1), 2, target).squeeze(2)
        return (chosen * mask).sum(-1) / mask.sum(-1)

    def loss() -> Tensor:
        outputs = x @ head.weight.t()
        outputs = outputs + head.bias
        wide = outputs.float()
        mine = logs(wide)
        parts = [wide[half] for half in halves]
        with torch.no_grad():
            theirs = other @ old.weight.t()
            theirs = theirs + old.bias
            reference = logs(theirs)
        losses = [1 - F.sigmoid(0.1 * (mine[half] - reference[half])) for half in halves]
        found = torch.cat(losses).mean()
        sums = [part.detach().sum() for part in parts]
        return found + 0 * sum(sums)

    return lambda: loss().backward(), []


def moe(s: Settings) -> tuple[Forward, list[Any]]:
    by_tokens = s.sweep_dim == "T"
    count, experts = (s.x, s.E) if by_tokens else (s.T, s.x)
    x = s.leaf(count, s.H)
    up = s.leaf(experts, 2 * s.intermediate_dim, s.H) * 0.02
    down = s.leaf(experts, s.H, s.intermediate_dim) * 0.02
    places = torch.zeros(count, s.K, dtype=torch.int32)
    weights = s.leaf(count, s.K)
    share = count * s.K // experts  # as if the tokens were spread evenly

    def forward() -> Tensor:
        out = torch.zeros_like(x)
        with torch.no_grad():
            mask = F.one_hot(places.long(), num_classes=experts).permute(2, 1, 0)
        for number in range(experts):
            at, token = (torch.zeros(share, dtype=torch.long) for _ in range(2))
            here = x[token]
            gate, wide = F.linear(here, up[number]).chunk(2, dim=-1)
            here = F.silu(gate) * wide
            here = F.linear(here, down[number])
            here = here * weights[token, at, None]
            out.index_add_(0, token, here.to(out.dtype))
        del mask
        return out

    return forward, [places]


class Neighbourhood(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        projected = self.q(x), self.k(x), self.v(x)
        query, key, value = (
            one.view(batch, seq, self.heads, -1).transpose(1, 2) for one in projected
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) * 0.125
        mask = torch.zeros(seq, seq, dtype=torch.bool)
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(weights, value)
        mixed = mixed.transpose(1, 2).contiguous().view(batch, seq, width)
        return self.out(mixed)


def neighbourhood(s: Settings) -> tuple[Forward, list[Any]]:
    layer, other = (Neighbourhood(s.hidden_size, s.num_heads) for _ in range(2))  # Liger's too
    x = s.leaf(s.batch_size, s.x, s.hidden_size)
    gradient = torch.randn_like(x)
    return lambda: layer(x).backward(gradient, retain_graph=True), [other]


def turn_in_sections(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: list[int]):
    """Turn queries and keys as Qwen 2 VL does: a section of them by each of three places."""
    twice = sections * 2
    cos, sin = (
        torch.cat([m[i % 3] for i, m in enumerate(one.split(twice, dim=-1))], dim=-1)[:, None]
        for one in (cos, sin)
    )
    half = modeling_llama.rotate_half
    return (q * cos) + (half(q) * sin), (k * cos) + (half(k) * sin)


def rotary(kind: str):
    """Return the step of a rotary embedding of queries and keys."""

    def step_of(s: Settings) -> tuple[Forward, list[Any]]:
        by_width = s.row["x_name"] == "H"
        width, seq = (s.x, s.seq_len) if by_width else (s.hidden_size, s.x)
        heads = s.config.get("num_q_heads", s.config.get("num_attention_heads"))
        few = s.config.get("num_kv_heads", s.config.get("num_key_value_heads"))
        size = width // heads
        q, k = s.leaf(1, seq, heads, size), s.leaf(1, seq, few, size)
        at = torch.arange(seq)[None]
        if kind == "llama4":
            turns = torch.zeros(1, seq, size // 2, dtype=torch.complex64)
            apply = lambda: modeling_llama4.apply_rotary_emb(q, k, turns)  # noqa: E731
        else:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
            three = (3,) if kind == "qwen2vl" else ()
            cos, sin = (torch.zeros(*three, 1, seq, size, dtype=s.dtype) for _ in range(2))
            part = size * 3 // 16
            sections = [size // 2 - 2 * part, part, part]
            if kind == "qwen2vl":
                apply = lambda: turn_in_sections(q, k, cos, sin, sections)  # noqa: E731
            else:
                apply = lambda: modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)  # noqa: E731
        gradients = torch.randn_like(q), torch.randn_like(k)

        def step() -> None:
            torch.autograd.grad(apply(), (q, k), gradients, allow_unused=True, retain_graph=True)

        return step, [at]

    return step_of


def multi_token(sparse: bool):
    """Return the step of an attention that convolves its scores."""

    def step_of(s: Settings) -> tuple[Forward, list[Any]]:
        weight, bias = s.leaf(s.C_out, s.C_in, s.K, s.K), s.leaf(s.C_out)
        x = s.leaf(s.B, s.C_in, s.x, s.x)
        gradient = torch.randn_like(x)
        infinite, zero = (torch.tensor(v, dtype=s.dtype) for v in (-1e9, 0.0))

        def forward() -> Tensor:
            mask = torch.tril(torch.ones(s.x, s.x, dtype=torch.bool)).view(1, 1, s.x, s.x)
            scores = x.masked_fill(~mask, infinite)
            if sparse:
                ordered, _ = torch.sort(scores, dim=-1, descending=True)
                sums = torch.cumsum(ordered, dim=-1)
                at = torch.arange(1, s.x + 1, dtype=x.dtype).view(1, 1, 1, s.x)
                positive = ordered > -1e8
                condition = (1 + at * ordered > sums) & positive
                count = torch.sum(condition, dim=-1, keepdim=True)
                safe = torch.max(count, torch.ones_like(count))
                edge = torch.gather(sums, -1, safe.long() - 1)
                tau = (edge - 1) / safe.to(x.dtype)
                tau = torch.where(count == 0, torch.full_like(tau, float("inf")), tau)
                weights = torch.clamp(scores - tau, min=0)
            else:
                weights = F.softmax(scores, dim=-1)
            out = F.conv2d(weights, weight, bias, stride=1, padding=s.K // 2)
            return out.masked_fill(~mask, zero)

        return lambda: forward().backward(gradient, retain_graph=True), []

    return step_of


def megatron_rms(s: Settings) -> tuple[Forward, list[Any]]:
    layer = nn.RMSNorm(s.x, eps=1e-6).to(torch.bfloat16)
    x = torch.randn(s.S, s.B, s.x, dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        y = layer(x)
        y.sum().backward()

    return step, []


def megatron_swiglu(s: Settings) -> tuple[Forward, list[Any]]:
    x = torch.randn(s.S, s.B, 2 * s.x, dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        x.grad = None
        first, second = torch.chunk(x, 2, -1)
        y = F.silu(first) * second
        y.sum().backward()

    return step, []


def _relu_squared(x: Tensor) -> Tensor:
    return torch.square(F.relu(x))


KERNELS: dict[str, Callable[[Settings], tuple[Forward, list[Any]]]] = {
    "cross_entropy": cross_entropy,
    "distill_cosine_loss": cosine,
    "dyt": dyt,
    "fused_add_rms_norm": add_rms,
    "fused_linear_grpo_loss_sequence": grpo,
    "fused_linear_grpo_loss_token": grpo,
    "fused_linear_jsd": linear_jsd,
    "fused_moe": moe,
    "fused_neighborhood_attention": neighbourhood,
    **dict.fromkeys(("geglu", "swiglu", "tiled_geglu", "tiled_swiglu"), of_layer(mlp)),
    "group_norm": of_layer(group_norm),
    "jsd": two_distributions("jsd"),
    "kl_div": two_distributions("kl"),
    "kto_loss": kto,
    "layer_norm": of_layer(layer_norm),
    "llama4_rope": rotary("llama4"),
    "megatron_rms_norm": megatron_rms,
    "megatron_swiglu": megatron_swiglu,
    "multi_token_attention": multi_token(sparse=False),
    "poly_norm": poly_norm,
    "qwen2vl_mrope": rotary("qwen2vl"),
    "relu_squared": on_rows(_relu_squared, ones=True),
    "rope": rotary("llama"),
    "softmax": on_rows(nn.Softmax(dim=-1), ones=True),
    "sparse_multi_token_attention": multi_token(sparse=True),
    "sparsemax": on_rows(sparsemax, ones=False),
    "tvd": two_distributions("tvd"),
}
WHOLE = {"fused_moe", "geglu", "swiglu", "tiled_geglu", "tiled_swiglu", "group_norm", "dyt"}
WHOLE |= {"layer_norm"}  # those whose forward alone is described: their backward follows


def make_step(row: Row) -> tuple[Callable[[], None], nn.Module, None]:
    """Build a row's step as its script does."""
    old = row["kernel"] == "group_norm" and row["x_name"] == "C"
    forward, beside = (old_group_norm if old else KERNELS[row["kernel"]])(Settings(row))
    kept: list[Any] = [beside]  # what is in memory besides
    if old or row["kernel"] not in WHOLE:

        def step() -> None:
            forward()

    elif row["mode"] == "backward":
        y = forward()
        gradient = torch.randn_like(y)

        def step() -> None:
            y.backward(gradient, retain_graph=True)

    else:

        def step() -> None:
            y = forward()
            if row["mode"] == "full":
                y.backward(torch.randn_like(y), retain_graph=True)

    step.kept = kept  # type: ignore[attr-defined]
    return step, nn.Identity(), None


def read(path: Path) -> list[Row]:
    """Read a table."""
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def predict(path: Path) -> None:
    """Predict all rows; the same operation on two cards is predicted once."""
    rows, peaks, kept = read(path), {}, []
    rows = [
        r for r in rows if r["metric"] == "memory" and r["provider"] in ("torch", "huggingface")
    ]
    for number, row in enumerate(rows, 1):
        key = tuple(row[name] for name in ("kernel", "mode", "x_name", "x", "config"))
        found: Row = {name: row[name] for name in FIELDS[:7]}
        found["published"] = str(round(float(row["median"]) * MIB))
        try:
            if key not in peaks:
                peaks[key] = int(memory.predict(lambda row=row: make_step(row)).peak_bytes)
            found["predicted"] = str(peaks[key])
            threads = next((n for word, n in THREADS.items() if word in row["kernel"]), 0)
            if threads:
                each = 32 if any(name in row["gpu"] for name in ("H100", "B200")) else 8.125
                found["workspaces"] = str(round(threads * each * MIB))
        except Exception as error:
            found["why"] = str(error).splitlines()[0][:90]
        kept.append(found)
        print(number, *key[:4], found.get("predicted", found.get("why")), file=sys.stderr)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)


def off_by(row: Row) -> float:
    """Return how far a prediction is from the published peak, as a share of that."""
    ours = int(row["predicted"]) + int(row["workspaces"] or 0)
    return ours / int(row["published"]) - 1


def print_table() -> None:
    """Print the errors of each kernel, and of all."""
    rows = read(TABLE)
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["predicted"]:
            groups[row["kernel"]].append(off_by(row))
    for name, off in sorted(groups.items(), key=lambda item: statistics.median(map(abs, item[1]))):
        low, high = min(off), max(off)
        print(f"{name:34} {len(off):3} {statistics.median(off):+7.2%} {low:+7.1%} to {high:+7.1%}")
    every = sorted(abs(one) for off in groups.values() for one in off)
    print(
        f"{len(rows)} rows, {len(every)} predicted: off by {statistics.median(every):.2%} in the "
        f"median, nine in ten at most {every[int(0.9 * (len(every) - 1))]:.1%}, "
        f"worst {every[-1]:.0%}; {sum(one < 0.01 for one in every)} within 1 %"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    match sys.argv[1:]:
        case ["--table"]:
            print_table()
        case [path]:
            predict(Path(path))
        case _:
            raise SystemExit(__doc__)
