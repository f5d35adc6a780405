import pytest
from small_models import maker, num_parameters_of, token_batch

from tutorial_lib.models.gpt import GPT

small = maker(GPT)


def test_gpt2_sizes_give_gpt2s_number_of_parameters():
    sizes = {"num_layers": 12, "num_heads": 12, "d_model": 768}
    assert num_parameters_of(GPT, 50257, 1024, **sizes) == 124_439_808


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_no_token_sees_the_future(attention):
    model = small(attention=attention)
    tokens = token_batch(1, 16, 50)
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 50
    difference = (model(tokens) - model(changed)).abs().amax(dim=-1)[0]
    assert difference[:9].max() == 0
    assert difference[9:].min() > 0


def test_sequences_too_long_and_too_short_are_refused():
    model = small()
    with pytest.raises(ValueError, match=r"17 tokens.*seq_len \(=16\)"):
        model(token_batch(1, 17, 50))
    with pytest.raises(ValueError, match="at least 2 tokens, and has 1"):
        model.loss(token_batch(1, 1, 50))
