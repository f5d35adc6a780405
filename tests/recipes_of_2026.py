"""Recipes that people run out of memory on in 2026, as a stranger would write them.

Each function takes `micro_batch`, and gives a loss and its model; those of several ranks expect a
process group.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "vocab_size": 256},
}


def log_probabilities(model, tokens):
    scores = model(tokens).logits[:, :-1].float().log_softmax(-1)
    return scores.gather(-1, tokens[:, 1:, None]).squeeze(-1)


def make_grpo(micro_batch):
    """An update of GRPO: clipped ratios of the policy, and the divergence from a reference."""
    policy = LlamaForCausalLM(LlamaConfig(**LLAMA))
    reference = copy.deepcopy(policy).requires_grad_(False)
    tokens = torch.randint(256, (micro_batch, 32))
    advantages = torch.randn(micro_batch, 1)

    def loss():
        with torch.no_grad():
            old = log_probabilities(reference, tokens)
        new = log_probabilities(policy, tokens)
        ratio = (new - new.detach()).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return ((old - new).exp() - (old - new) - 1 - gain).mean()

    return loss, policy


class Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mlp, x, *weights):
        ctx.mlp = mlp
        ctx.save_for_backward(x, *weights)
        return torch.cat([mlp(rows) for rows in x.split(16)])

    @staticmethod
    def backward(ctx, slope):
        x, *weights = ctx.saved_tensors
        copies = [weight.detach().requires_grad_() for weight in weights]
        names = [name for name, _ in ctx.mlp.named_parameters()]
        of_x = []
        for rows, theirs in zip(x.split(16), slope.split(16), strict=True):
            rows = rows.detach().requires_grad_()
            with torch.enable_grad():
                out = functional_call(ctx.mlp, dict(zip(names, copies, strict=True)), (rows,))
            out.backward(theirs)
            of_x.append(rows.grad)
        return None, torch.cat(of_x), *(weight.grad for weight in copies)


class TiledBlock(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        wide = nn.Linear(width, 4 * width)
        self.mlp = nn.Sequential(wide, nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        flat = self.norm(x).flatten(0, 1)
        return x + Tiles.apply(self.mlp, flat, *self.mlp.parameters()).view_as(x)


def make_tiles(micro_batch):
    """MLPs in tiles of tokens."""
    return squares(TiledBlock, micro_batch)


def squares(block, micro_batch, dtype=torch.float32):
    model = nn.Sequential(*[block() for _ in range(3)]).to(dtype)
    x = torch.randn(micro_batch, 64, 64, dtype=dtype)
    return (lambda: model(x).float().square().mean()), model


class Mixture(nn.Module):
    def __init__(self, width=64, experts=8):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / 8)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / 16)

    def forward(self, x):
        flat = x.flatten(0, 1)
        scores, chosen = self.gate(flat).softmax(-1).topk(2)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=len(self.up)).tolist()
        pairs = zip(flat[order // 2].split(counts), self.up, self.down, strict=True)
        made = torch.cat([F.silu(rows @ up) @ down for rows, up, down in pairs])
        made = made * scores.flatten()[order, None]
        return x + torch.zeros_like(flat).index_add(0, order // 2, made).view_as(x)


def make_mixture(micro_batch):
    """A mixture of experts: tokens are sorted by expert, and counted."""
    return squares(Mixture, micro_batch)


class Matmul8(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        eights = [*in_8_bits(x), *in_8_bits(weight)]
        ctx.save_for_backward(*eights)
        x8, of_x, weight8, of_weight = eights
        return torch._scaled_mm(x8, weight8.t(), of_x, of_weight, out_dtype=x.dtype)

    @staticmethod
    def backward(ctx, slope):
        x8, of_x, weight8, of_weight = ctx.saved_tensors
        slope8, of_slope = in_8_bits(slope)
        columns = weight8.t().contiguous().t()
        of_input = torch._scaled_mm(slope8, columns, of_slope, of_weight, out_dtype=slope.dtype)
        rows, columns = slope8.t().contiguous(), x8.t().contiguous().t()
        return of_input, torch._scaled_mm(rows, columns, of_slope, of_x, out_dtype=slope.dtype)


def in_8_bits(x):
    scale = 448 / x.abs().amax().float().clamp(min=1e-9)
    return (x.float() * scale).to(torch.float8_e4m3fn), 1 / scale


class Linear8(nn.Linear):
    def __init__(self):
        super().__init__(64, 64, bias=False)

    def forward(self, x):
        return F.gelu(Matmul8.apply(x.flatten(0, 1), self.weight).view_as(x))


def make_fp8(micro_batch):
    """Matmuls in 8 bits, scaled by what they get."""
    return squares(Linear8, micro_batch, torch.bfloat16)


class DelayedLinear8(Linear8):
    def __init__(self):
        super().__init__()
        self.register_buffer("history", torch.ones(4))

    def forward(self, x):
        scale = 448 / self.history.max()
        now = x.detach().abs().amax()[None]
        self.history.copy_(torch.cat([now, self.history[:-1]]))
        x8 = (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return F.gelu(F.linear(x8.to(x.dtype) / scale, self.weight))


def make_delayed_fp8(micro_batch):
    """Numbers of 8 bits, scaled by the largest of earlier steps."""
    return squares(DelayedLinear8, micro_batch, torch.bfloat16)


def make_video(micro_batch):
    """A small Wan: three frames, flow matching."""
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        **{"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4},
        **{"out_channels": 4, "text_dim": 16, "freq_dim": 16, "ffn_dim": 32},
        **{"num_layers": 3, "rope_max_seq_len": 32},
    )
    x, noise = torch.randn(2, micro_batch, 4, 3, 8, 8)
    text, times = torch.randn(micro_batch, 8, 16), torch.full((micro_batch,), 500)

    def loss():
        seen = model((x + noise) / 2, times, text, return_dict=False)[0]
        return F.mse_loss(seen, noise - x)

    return loss, model


def make_video_decoder(micro_batch):
    """The decoder of Wan's autoencoder, whose blocks write into lists that they are given."""
    from diffusers import AutoencoderKLWan

    sizes = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
    model = AutoencoderKLWan(**sizes, temperal_downsample=[False, True, True])
    latents = torch.randn(micro_batch, 4, 2, 4, 4)
    return (lambda: model.decode(latents, return_dict=False)[0].square().mean()), model


def make_fsdp2(micro_batch=2):
    """MLPs under FSDP2."""
    model = nn.Sequential(*[TiledBlock().mlp for _ in range(3)])
    place = torch.get_default_device().type
    mesh = init_device_mesh(place, (dist.get_world_size(),))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    x = torch.randn(micro_batch, 64)
    return (lambda: model(x).square().mean()), model


class Ring(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 3 * 64)

    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        query, found, size = parts[0], [parts[1:]], dist.get_world_size()
        for _ in range(size - 1):
            mine, theirs = found[-1].contiguous(), torch.empty_like(found[-1])
            place = dist.get_rank()
            both = [
                dist.P2POp(dist.isend, mine, (place + 1) % size),
                dist.P2POp(dist.irecv, theirs, (place - 1) % size),
            ]
            for work in dist.batch_isend_irecv(both):
                work.wait()
            found.append(theirs)
        key, value = torch.cat(found, 3)
        y = F.scaled_dot_product_attention(query, key, value)
        return x + y.transpose(1, 2).flatten(2)


def make_ring(micro_batch=2):
    """A part of each sequence on each rank: keys and values come around in a ring."""
    return squares(Ring, micro_batch)
