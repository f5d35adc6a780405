"""A GPT small enough to read in one sitting and to train on a laptop.

Names and sizes are those of GPT-2 (Radford et al., 2019): with its configuration this model has
its number of parameters. Shapes in comments: B batch, T sequence, H heads, D head width,
C = H * D the model width, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT.

    Raises:
        ValueError: When two of these do not go together.

    Example:
        >>> GPTConfig(num_layers=2, d_model=64).seq_len
        128
    """

    vocab_size: int = 256  # number of different tokens; 256 fits byte tokens
    seq_len: int = 128  # longest sequence; positions are learned
    num_layers: int = 4  # blocks, one after the other
    num_heads: int = 4  # attention heads in a block; they share `d_model` evenly
    d_model: int = 128  # width of the vectors between blocks
    dropout: float = 0.0  # probability, between 0 and 1
    tie_weights: bool = True  # use the token embedding as the output matrix too
    # `sdpa` leaves it to PyTorch's fused kernel; `eager` keeps the scores, which autograd
    # then keeps, `(B, H, T, T)` of them
    attention: str = "sdpa"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "seq_len", "num_layers", "num_heads", "d_model"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1.")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model (={self.d_model}) must be a multiple of num_heads (={self.num_heads}). "
                f"Try d_model={self.num_heads * math.ceil(self.d_model / self.num_heads)}."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout (={self.dropout}) must be at least 0 and below 1.")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention (={self.attention!r}) must be one of {ATTENTIONS}.")


class Attention(nn.Module):
    """Self-attention: each token looks at itself and those before it, or at all if not causal."""

    def __init__(self, config: GPTConfig, *, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.num_heads = config.num_heads
        self.kernel = config.attention
        self.p = config.dropout
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, T, C)` to `(B, T, C)`."""
        batch, seq, _ = x.shape
        # -1 and flatten: under tensor parallelism a rank has some heads, and x its full width
        qkv = self.qkv(x).view(batch, seq, 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, T, 3, H, D) -> 3 of (B, H, T, D)
        p = self.p if self.training else 0.0
        if self.kernel == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        else:
            y = eager_attention(q, k, v, dropout=p, causal=self.causal)
        y = y.transpose(1, 2).flatten(2)  # (B, H, T, D) -> (B, T, C)
        mixed: Tensor = self.dropout(self.out(y))
        return mixed


def eager_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool) -> Tensor:
    """Eager attention, from `(B, H, T, D)` to `(B, H, T, D)`.

    Source:
        Vaswani et al. (2017), equation 1, with the future masked when causal.
    """
    seq = q.size(-2)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, T)
    if causal:
        future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    else:
        weights = scores.softmax(dim=-1)
    return F.dropout(weights, dropout) @ v


class MLP(nn.Module):
    """Two linear layers with a GELU between them, four times as wide inside."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, 4 * config.d_model)
        self.down = nn.Linear(4 * config.d_model, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, T, C)` to `(B, T, C)`."""
        y: Tensor = self.dropout(self.down(F.gelu(self.up(x), approximate="tanh")))
        return y


class Block(nn.Module):
    """One layer: attention, then MLP, each normalised before and added to its input.

    Example:
        >>> Block(GPTConfig(d_model=64))(torch.zeros(8, 16, 64)).shape  # as many numbers out as in
        torch.Size([8, 16, 64])
    """

    def __init__(self, config: GPTConfig, *, causal: bool = True) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.d_model)
        self.attention = Attention(config, causal=causal)
        self.norm_2 = nn.LayerNorm(config.d_model)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, T, C)` to `(B, T, C)`."""
        x = x + self.attention(self.norm_1(x))
        y: Tensor = x + self.mlp(self.norm_2(x))
        return y


class GPT(nn.Module):
    """A decoder-only transformer: tokens in, a score for every possible next token out.

    Example:
        >>> GPT(GPTConfig(num_layers=2, d_model=64))(torch.zeros(8, 16, dtype=torch.long)).shape
        torch.Size([8, 16, 256])
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding = nn.Embedding(config.seq_len, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_weights:
            self.head.weight = self.token_embedding.weight
        init_weights(self, config.num_layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens `(B, T)` to logits `(B, T, V)`.

        Raises:
            ValueError: When the sequence is longer than `config.seq_len`.
        """
        seq = tokens.size(1)
        if seq > self.config.seq_len:
            raise ValueError(
                f"The sequence has {seq} tokens, but this model takes at most seq_len "
                f"(={self.config.seq_len}). Try tokens[:, :{self.config.seq_len}]."
            )
        positions = torch.arange(seq, device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)  # (B, T, C)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))  # (B, T, V)
        return logits

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of guessing each next token of `(B, T)`, a scalar.

        Raises:
            ValueError: When there is no next token to guess, with fewer than two in a sequence.
        """
        if tokens.size(1) < 2:
            raise ValueError(
                f"A sequence needs at least 2 tokens, but has {tokens.size(1)}: "
                "the loss compares each token with the one after it."
            )
        logits = self(tokens)
        # Padding the targets costs B * T integers; slicing the logits would copy B * T * V floats.
        targets = F.pad(tokens[:, 1:], (0, 1), value=-100)  # -100: the last token has no next
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def init_weights(model: nn.Module, num_layers: int) -> None:
    """Draw a transformer's weights from the global random state.

    Args:
        model: Made of the blocks above; other kinds of layers keep what they have.
        num_layers: How many blocks.

    Source:
        Radford et al. (2019), section 2.3.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for name, parameter in model.named_parameters():
        # these two add to the residual stream in every block: keep its variance near 1
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * num_layers))
