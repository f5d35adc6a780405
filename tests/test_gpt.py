import math

import pytest
import torch
from torch.nn import functional as F

from tutorial_lib.data import text_batches, token_batch
from tutorial_lib.models.gpt import GPT, GPTConfig

SMALL = {"vocab_size": 50, "seq_len": 16, "num_layers": 2, "num_heads": 2, "d_model": 32}


def small(**changes):
    torch.manual_seed(0)
    return GPT(GPTConfig(**{**SMALL, **changes}))


def test_gpt2_sizes_give_gpt2s_number_of_parameters():
    with torch.device("meta"):
        model = GPT(GPTConfig(50257, 1024, num_layers=12, num_heads=12, d_model=768))
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_untied_weights_add_one_matrix():
    tied, untied = small(), small(tie_weights=False)
    extra = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert extra == 50 * 32


def test_both_attentions_are_the_same_function():
    tokens = token_batch(3, 16, 50)
    fused, written_out = small(attention="sdpa"), small(attention="eager")
    torch.testing.assert_close(fused(tokens), written_out(tokens))
    assert fused(tokens).shape == (3, 16, 50)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_no_token_sees_the_future(attention):
    model = small(attention=attention)
    tokens = token_batch(1, 16, 50)
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 50
    difference = (model(tokens) - model(changed)).abs().amax(dim=-1)[0]
    assert difference[:9].max() == 0
    assert difference[9:].min() > 0


def test_the_loss_is_the_mean_over_next_tokens():
    model, tokens = small(), token_batch(3, 16, 50)
    logits = model(tokens)[:, :-1].reshape(-1, 50)
    torch.testing.assert_close(model.loss(tokens), F.cross_entropy(logits, tokens[:, 1:].flatten()))
    assert abs(model.loss(tokens).item() - math.log(50)) < 0.2  # untrained: a guess among 50


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_dropout_acts_in_training_only(attention):
    model, tokens = small(dropout=0.5, attention=attention), token_batch(2, 8, 50)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_it_learns_python():
    torch.manual_seed(0)
    model = GPT(GPTConfig(seq_len=32, num_layers=2, num_heads=2, d_model=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = text_batches(8, 32, num_chars=20_000)
    losses = []
    for _ in range(40):
        loss = model.loss(next(batches))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"d_model": 33}, "d_model .*multiple of num_heads .*Try d_model=34"),
        ({"num_layers": 0}, r"num_layers \(=0\)"),
        ({"dropout": 1.5}, r"dropout \(=1.5\)"),
        ({"attention": "flash"}, "attention .*'flash'.* must be one of"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        GPTConfig(**{**SMALL, **changes})


def test_sequences_too_long_and_too_short_are_refused():
    model = small()
    with pytest.raises(ValueError, match=r"17 tokens.*seq_len \(=16\)"):
        model(token_batch(1, 17, 50))
    with pytest.raises(ValueError, match="at least 2 tokens, and has 1"):
        model.loss(token_batch(1, 1, 50))
