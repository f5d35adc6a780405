import pytest
import torch
from small_models import maker, token_batch
from torch import nn

from tutorial_lib.models.lstm import LSTM

small = maker(LSTM)


@pytest.mark.parametrize("chunk_len", [1, 4, 5, 11, 100])
def test_it_is_pytorchs_lstm_however_time_is_cut(chunk_len):
    model, tokens = small(chunk_len=chunk_len), token_batch(3, 11, 50)
    oracle = nn.LSTM(16, 16, num_layers=2, batch_first=True)
    with torch.no_grad():
        for index, layer in enumerate(model.chunk.layers):
            getattr(oracle, f"weight_ih_l{index}").copy_(layer.from_input.weight)
            getattr(oracle, f"bias_ih_l{index}").copy_(layer.from_input.bias)
            getattr(oracle, f"weight_hh_l{index}").copy_(layer.from_hidden.weight)
            getattr(oracle, f"bias_hh_l{index}").zero_()
    state = tuple(torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    logits, (hidden, cell) = model(tokens, state)
    output, (expected_hidden, expected_cell) = oracle(model.embedding(tokens), state)
    torch.testing.assert_close(logits, model.head(output))
    torch.testing.assert_close(hidden, expected_hidden)
    torch.testing.assert_close(cell, expected_cell)


def test_no_token_sees_the_future_and_gradients_cross_chunks():
    model, tokens = small(), token_batch(1, 16, 50)
    seen = []
    model.embedding.register_forward_hook(lambda module, args, out: seen.append(out))
    logits, _ = model(tokens)
    seen[0].retain_grad()
    logits[0, 9].sum().backward()
    reached = seen[0].grad[0].abs().amax(dim=-1)
    assert reached[:10].min() > 0  # chunks are of 4
    assert reached[10:].max() == 0


def test_texts_too_short_and_states_of_another_batch_are_refused():
    model = small()
    with pytest.raises(ValueError, match="at least 2 tokens, and has 1"):
        model.loss(token_batch(1, 1, 50))
    with pytest.raises(ValueError, match="at least 1 token, and has 0"):
        model(torch.zeros(1, 0, dtype=torch.int64))
    _, state = model(token_batch(2, 4, 50))
    with pytest.raises(ValueError, match=r"\(2, 2, 16\); twice \(2, 3, 16\) is needed"):
        model(token_batch(3, 4, 50), (state[1], state[0][:, :2]))
