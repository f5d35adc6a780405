"""Divide a recipe's model over ranks: DDP, ZeRO, FSDP2 or tensor parallelism."""

import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tutorial_lib.instruments import segments
from tutorial_lib.instruments.training.fields import COPYING, Shard

# By the class of a model's blocks, in transformers: names of layers that are divided by outputs
# (wide) and by inputs (narrow); and embedding and output layer, where they may be two parameters.
_LAYERS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def sharded(model: nn.Module, num_ranks: int, shard: str) -> nn.Module:
    """Return one rank's part of a model: the model, changed in place, or DDP around it.

    Gradients are brought together after every micro-batch, without `no_sync`. This process must be
    one of so many ranks.

    Raises:
        ValueError: When this process is none of so many ranks, or the model cannot be divided.
    """
    size = dist.get_world_size() if dist.is_initialized() else 1
    if size != num_ranks:
        raise ValueError(
            f"The recipe is for one of {num_ranks} ranks, and this process is one of {size}: "
            f"build it inside `with ranks.pretend({num_ranks})`, or on that many real ranks."
        )
    if shard in COPYING:
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (num_ranks,))
    blocks = segments.find_blocks(model)
    if shard == Shard.TP:
        return _tensor_parallel(model, blocks, mesh)
    for part in (*blocks, model):  # the last call takes what no block has
        fully_shard(part, mesh=mesh, reshard_after_forward=False if shard == Shard.ZERO2 else None)
    return model


def _tensor_parallel(model: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh) -> nn.Module:
    layers = _LAYERS.get(type(blocks[0]).__name__)
    if layers is None:
        raise ValueError(
            f"shard='tp' needs the names of a block's layers, and those of a "
            f"{type(blocks[0]).__name__} are not known: try shard='fsdp', or one of "
            f"{', '.join(_LAYERS)}."
        )
    config: Any = model.config
    heads = config.num_attention_heads
    count = math.gcd(heads, getattr(config, "num_key_value_heads", heads))
    if count % mesh.size():
        raise ValueError(
            f"{heads} heads cannot be divided by {mesh.size()} ranks: try a number of ranks that "
            f"divides {count}, or shard='fsdp'."
        )
    plan: dict[str, ParallelStyle] = dict.fromkeys(layers["wide"], ColwiseParallel())
    plan |= dict.fromkeys(layers["narrow"], RowwiseParallel())
    for block in blocks:
        if "attn.c_attn" in plan:
            _as_linear(block, plan, mesh.size())
        parallelize_module(block, mesh, plan)
    ends = [model.get_submodule(name) for name in layers.get("ends", ())]
    if ends and ends[0].weight is not ends[1].weight:
        embedding, head = layers["ends"]
        around: dict[str, ParallelStyle] = {
            embedding: RowwiseParallel(input_layouts=Replicate()),
            head: ColwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(model, mesh, around)
    return model


def _as_linear(block: nn.Module, names: Iterable[str], num_ranks: int) -> None:
    """Put an equal `nn.Linear` in place of each `Conv1D`, which PyTorch refuses to divide.

    The outputs of `c_attn` are all queries, then all keys, then all values. They are put in the
    order of the ranks, so that each rank has the three of its own heads.
    """
    for name in names:
        conv: Any = block.get_submodule(name)
        linear = nn.Linear(conv.nx, conv.nf, device="meta")
        weight, bias = conv.weight.detach().T, conv.bias.detach()
        if name == "attn.c_attn":
            weight, bias = (
                part.unflatten(0, (3, num_ranks, -1)).transpose(0, 1).flatten(0, 2)
                for part in (weight, bias)
            )
        linear.weight, linear.bias = nn.Parameter(weight.contiguous()), nn.Parameter(bias)
        block.set_submodule(name, linear)
    attention: Any = block.get_submodule("attn")
    attention.split_size //= num_ranks
