"""An LSTM language model small enough to read, which takes a long text in chunks of time.

The cell is that of Zaremba et al. (2014), written out, so that every tensor that autograd keeps
is in sight; a GPU's fused LSTM computes the same and hides them in one buffer. Nothing is cut
between chunks: gradients flow through the whole text. Shapes in comments: B batch, T sequence,
S steps in a chunk, L layers, C width of the model, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LSTMConfig:
    """The sizes of an LSTM language model.

    Raises:
        ValueError: When one of these cannot be.
    """

    vocab_size: int = 256  # number of different tokens; 256 fits byte tokens
    num_layers: int = 2  # layers, one on top of the other
    d_model: int = 128  # width of the embedding, of the output and of both halves of the state
    # steps that are run as one; a checkpointed model recomputes a chunk at a time
    chunk_len: int = 32
    dropout: float = 0.0  # probability, between 0 and 1; never between one step and the next

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_layers", "d_model", "chunk_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout (={self.dropout}) must be at least 0 and below 1.")


class Layer(nn.Module):
    """One layer of the LSTM over some steps.

    Source:
        Zaremba et al. (2014), Recurrent Neural Network Regularization, section 3.1.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        width = config.d_model
        self.from_input = nn.Linear(width, 4 * width)
        self.from_hidden = nn.Linear(width, 4 * width, bias=False)
        with torch.no_grad():  # a gate that is open remembers: Jozefowicz et al. (2015)
            self.from_input.bias[width : 2 * width].fill_(1.0)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map `(B, S, C)` and the state, twice `(B, C)`, to the outputs and the next state."""
        outputs = []
        for gates in self.from_input(x).unbind(dim=1):  # S times (B, 4 * C)
            gates = gates + self.from_hidden(hidden)
            write, keep, new, show = gates.chunk(4, dim=-1)  # nn.LSTM's order: i, f, g, o
            cell = keep.sigmoid() * cell + write.sigmoid() * new.tanh()
            hidden = show.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, dim=1), hidden, cell


class Chunk(nn.Module):
    """All layers over a chunk of time: what is kept, or recomputed, as one."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map `(B, S, C)` and the state, twice `(L, B, C)`, to the outputs and the next state."""
        states = []
        for layer, *state in zip(self.layers, hidden, cell, strict=True):
            x, *state = layer(self.dropout(x), *state)
            states.append(state)
        hiddens, cells = zip(*states, strict=True)
        return self.dropout(x), torch.stack(hiddens), torch.stack(cells)


class LSTM(nn.Module):
    """A recurrent language model: tokens in, a score for every possible next token out."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.chunk = Chunk(config)
        self.head = nn.Linear(config.d_model, config.vocab_size)

    @property
    def blocks(self) -> list[nn.Module]:
        """The one module that runs once per chunk: checkpointed, each of its runs is a segment."""
        return [self.chunk]

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Map tokens `(B, T)` to logits `(B, T, V)`, and return the state after the last token too.

        Args:
            tokens: Any length; the last chunk may be shorter than the others.
            state: What an earlier call returned, twice `(L, B, C)`; `None` begins with zeros.
                Detached first, it truncates backpropagation there.

        Raises:
            ValueError: When there is no token, or the state is for another batch or model.
        """
        if tokens.size(1) < 1:
            raise ValueError("A sequence needs at least 1 token, but has 0.")
        shape = (self.config.num_layers, tokens.size(0), self.config.d_model)
        if state is None:
            state = (self.embedding.weight.new_zeros(shape),) * 2
        hidden, cell = state
        if hidden.shape != shape or cell.shape != shape:
            raise ValueError(
                f"The state has shapes {tuple(hidden.shape)} and {tuple(cell.shape)}; twice "
                f"{shape} is needed, (num_layers, batch, d_model). Try state=None."
            )
        outputs = []
        for x in self.embedding(tokens).split(self.config.chunk_len, dim=1):  # each (B, S, C)
            output, hidden, cell = self.chunk(x, hidden, cell)
            outputs.append(output)
        logits: Tensor = self.head(torch.cat(outputs, dim=1))
        return logits, (hidden, cell)

    def loss(self, tokens: Tensor, state: State | None = None) -> Tensor:
        """Mean cross-entropy of guessing each next token of `(B, T)`, a scalar.

        Args:
            tokens: At least two in a sequence.
            state: As in `forward`.

        Raises:
            ValueError: When there is no next token to guess, and as in `forward`.
        """
        if tokens.size(1) < 2:
            raise ValueError(
                f"A sequence needs at least 2 tokens, but has {tokens.size(1)}: "
                "the loss compares each token with the one after it."
            )
        logits, _ = self(tokens[:, :-1], state)  # the last token has no next
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
