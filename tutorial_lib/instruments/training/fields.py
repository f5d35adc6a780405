"""The fields of a recipe, checked by name; loads no torch."""

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


class Precision(enum.StrEnum):
    """Types of the step's numbers.

    `fp32`: all float32. `bf16-amp`, `fp16-amp`: float32 parameters, gradients and states under
    autocast, float16 with a gradient scaler. `bf16`: everything bfloat16, states included, and the
    floats that a user's function passes to its model.
    """

    FP32 = "fp32"
    BF16_AMP = "bf16-amp"
    FP16_AMP = "fp16-amp"
    BF16 = "bf16"


class Attention(enum.StrEnum):
    """`sdpa` leaves attention to PyTorch's fused kernels, `eager` keeps all scores."""

    SDPA = "sdpa"
    EAGER = "eager"


class OptimizerName(enum.StrEnum):
    """Optimizers of the parameters.

    `sgd`: no momentum, no state. `momentum`: SGD with momentum 0.9. `adamw`: PyTorch's, in the
    device's own default implementation, which on CUDA is `foreach`. `adamw-fused`: PyTorch's
    single kernel. `adamw-8bit`: `AdamW8bit`. `adafactor`: PyTorch's, whose state for a matrix is
    one row and one column.
    """

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAMW = "adamw"
    ADAMW_FUSED = "adamw-fused"
    ADAMW_8BIT = "adamw-8bit"
    ADAFACTOR = "adafactor"


class Shard(enum.StrEnum):
    """How several ranks share the work.

    `ddp`: each holds the whole model, and gradients are averaged in buckets. `zero1`: the same, and
    each holds the optimizer states of a part of the parameters. `fsdp`: FSDP2, each holds a part
    of every parameter, gathered block by block; `zero3` is another name for it. `zero2`: FSDP2 that
    keeps what forward gathered until backward. `tp`: tensor parallelism, each runs a part of every
    layer, on the same samples.
    """

    DDP = "ddp"
    FSDP = "fsdp"
    TP = "tp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


COPYING = (Shard.DDP, Shard.ZERO1)  # every rank holds all parameters, and buckets of gradients
UNDIVIDED = (OptimizerName.ADAMW_8BIT, OptimizerName.ADAFACTOR)  # fail on DTensors, and complex
_KINDS: dict[str, type[enum.StrEnum]] = {"precision": Precision, "attention": Attention}
_KINDS |= {"optimizer": OptimizerName, "shard": Shard}


@dataclass(frozen=True)
class RecipeFields:
    """The fields as data; `Recipe` says what each is and makes the step."""

    model: str
    micro_batch: int = 1
    seq: int | None = None
    size: int | None = None
    precision: Precision | str = Precision.FP32
    attention: Attention | str = Attention.SDPA
    optimizer: OptimizerName | str = OptimizerName.ADAMW
    checkpointing: str = "none"
    accumulation: int = 1
    overrides: Mapping[str, Any] = field(default_factory=dict)
    lora_rank: int | None = None
    ranks: int = 1
    shard: Shard | str | None = None

    def __post_init__(self) -> None:
        if self.accumulation < 1:
            raise ValueError(f"accumulation (={self.accumulation}) must be at least 1.")
        if self.lora_rank is not None and self.lora_rank < 1:
            raise ValueError(f"lora_rank (={self.lora_rank}) must be at least 1, as in 8.")
        if self.ranks < 1 or (self.ranks > 1) != (self.shard is not None):
            raise ValueError(
                f"ranks (={self.ranks}) and shard (={self.shard}) go together: ranks of 2 or more, "
                f"and how they share the work, one of {', '.join(Shard)}."
            )
        for name, kind in _KINDS.items():
            if name != "shard" or self.shard is not None:
                object.__setattr__(self, name, _chosen(name, getattr(self, name), kind))
        if self.shard == Shard.ZERO3:
            object.__setattr__(self, "shard", Shard.FSDP)
        if self.shard not in (None, *COPYING) and self.optimizer in UNDIVIDED:
            raise ValueError(
                f"optimizer (={self.optimizer}) cannot update parameters that shard "
                f"(={self.shard}) divides: try adamw-fused, or shard ddp."
            )

    def label(self) -> str:
        """Name the step in a report's first line; choices that are PyTorch's defaults unsaid."""
        times = f" x {self.accumulation}" if self.accumulation > 1 else ""
        # A function that takes no micro_batch has a batch of its own, which is not known here.
        is_known = ":" not in self.model or self.micro_batch * self.accumulation > 1
        words = [self.model, *([f"batch {self.micro_batch}{times}"] if is_known else [])]
        sizes = {"seq": self.seq, "size": self.size}
        words += [f"{name} {value}" for name, value in sizes.items() if value is not None]
        named = {"precision": Precision.FP32, "optimizer": OptimizerName.ADAMW}
        words += [
            str(getattr(self, name))
            for name, usual in named.items()
            if ":" not in self.model or getattr(self, name) != usual  # a step may have its own
        ]
        words += [f"LoRA of rank {self.lora_rank}"] if self.lora_rank else []
        words += ["eager"] if self.attention == Attention.EAGER else []
        words += [self.checkpointing] if self.checkpointing != "none" else []
        words += [f"one of {self.ranks} ranks", str(self.shard)] if self.shard else []
        return ", ".join(words)

    def as_data(self) -> dict[str, Any]:
        """Choices as plain data, for JSON."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["overrides"] = dict(self.overrides)
        return {k: str(v) if isinstance(v, enum.Enum) else v for k, v in data.items()}


def _chosen(name: str, value: str, kind: type[enum.StrEnum]) -> enum.StrEnum:
    names = [member.value for member in kind]
    if value in names:
        return kind(value)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.4)
    guess = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"{name} (={value!r}) must be one of {', '.join(names)}.{guess}")
