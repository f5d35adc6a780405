import re

import pytest
import torch
from small_models import published_with_loss, token_batch, with_loss
from torch import nn

from tutorial_lib.instruments import segments
from tutorial_lib.instruments.published.unet3d import UNet3d
from tutorial_lib.models.gpt import GPT
from tutorial_lib.models.lstm import LSTM
from tutorial_lib.models.resnet import ResNet
from tutorial_lib.models.unet import UNet
from tutorial_lib.models.vit import ViT

P = 0.2  # dropout everywhere: a recomputation that draws other numbers shows


class TupleBlock(nn.Module):
    """Returns a tuple and takes its state by keyword, as older transformers layers do."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(P)

    def forward(self, state, scale=None, use=True):
        return (state + self.dropout(self.linear(state).tanh()) * scale, None)


class TupleModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(TupleBlock() for _ in range(4))

    def forward(self, x):
        scale = x.mean()
        for layer in self.layers:
            x = layer(state=x, scale=scale, use=True)[0]
        return x.square().mean()


def tuples():
    model, x = TupleModel(), torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    return model, lambda: model(x)


MODELS = {
    "gpt": with_loss(GPT, 2, 16, num_layers=5, dropout=P),
    "vit": with_loss(ViT, 2, 8, patch_size=4, num_layers=3, dropout=P),
    "resnet": with_loss(ResNet, 2, 8, stage_depths=(2, 3), dropout=P),
    "lstm": with_loss(LSTM, 2, 15, dropout=P),
    "unet": with_loss(UNet, 2, 8, blocks_per_level=2, dropout=P),
    "unet3d": with_loss(UNet3d, 2, 8, num_levels=3, dropout=P),
    "tuples": tuples,
    "hf-gpt2": published_with_loss("gpt2", n_layer=4),
    "hf-llama": published_with_loss("llama-2-7b", num_hidden_layers=4, attention_dropout=P),
    "hf-bert": published_with_loss("bert-base", num_hidden_layers=3),
    "hf-vit": published_with_loss("vit-b-16", num_hidden_layers=3, hidden_dropout_prob=P),
    "hf-resnet": published_with_loss("resnet50", depths=(1, 4)),
    "hf-clip": published_with_loss("clip-two-tower"),
    "hf-unet": published_with_loss("sd15-unet", dropout=P),
    "hf-vae": published_with_loss("sd-vae"),
    "hf-mmdit": published_with_loss("sd35-medium"),
    "hf-flux": published_with_loss("flux-dev"),
}
LEVELS = {"unet", "unet3d", "hf-unet", "hf-vae", "hf-clip"}  # or towers
LEVELS |= {"hf-mmdit", "hf-flux"}  # or two streams
WITHOUT_ATTENTION = {"resnet", "lstm", "unet3d", "tuples", "hf-resnet"}
IMPOSSIBLE = {
    "none": set(),
    "per-block": set(),
    "all-but-last": {"lstm"},
    "every-K": LEVELS,
    "sqrt": LEVELS,
    "attention-only": WITHOUT_ATTENTION,
    "mlp-only": WITHOUT_ATTENTION | {"unet", "hf-vae"},
    "library-switch": {name for name in MODELS if not name.startswith("hf")} | {"hf-resnet"},
}
SUPPORTED = [
    (name, every if strategy == "every-K" else strategy)
    for strategy, impossible in IMPOSSIBLE.items()
    for name in MODELS
    if name not in impossible
    for every in (("every-1", "every-2", "every-3") if strategy == "every-K" else ("",))
    if not (name == "lstm" and every in ("every-2", "every-3"))  # one block, run chunk by chunk
]


def built(name):
    torch.manual_seed(0)
    return MODELS[name]()


def gradients(model, forward, strategy):
    """One step's loss and gradients, and the bytes of what forward left behind."""
    storages = {}
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    with segments.applied(model, strategy):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = forward()
        loss.backward()
    saved = sum(size for pointer, size in storages.items() if pointer not in known)
    return loss.detach(), {n: p.grad for n, p in model.named_parameters()}, saved


def state_of(model):
    return [dict(vars(module)) for module in model.modules()]


def backward_twice(forward):
    loss = forward()
    for _ in range(2):
        loss.backward()


@pytest.mark.parametrize(("name", "strategy"), SUPPORTED)
def test_gradients_are_the_same_bit_for_bit_less_is_saved_and_all_is_put_back(name, strategy):
    model, forward = built(name)
    before = state_of(model)
    loss, expected, saved_plain = gradients(model, forward, "none")
    again, found, saved = gradients(model, forward, strategy)
    assert torch.equal(loss, again)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert saved == saved_plain if strategy == "none" else saved < saved_plain
    model.zero_grad()
    assert state_of(model) == before
    with pytest.raises(RuntimeError), segments.applied(model, strategy):
        backward_twice(forward)
    model.zero_grad()
    assert state_of(model) == before


def test_a_cache_for_generation_is_off_meanwhile_and_on_again_after():
    model, _ = published_with_loss("gpt2", use_cache=True)()
    tokens = token_batch(2, 16, 50)
    with segments.applied(model, "attention-only"):
        output = model(tokens, labels=tokens)
        output.loss.backward()
        assert output.past_key_values is None
    assert model.config.use_cache is True


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 2, "num_decoder_layers": 3}
    config = T5Config(vocab_size=50, num_layers=2, decoder_start_token_id=0, **sizes)
    model, tokens = T5ForConditionalGeneration(config).train(), token_batch(2, 8, 50)
    return model, lambda **options: model(input_ids=tokens, labels=tokens, **options).loss


def torch_transformer():
    model = nn.Transformer(16, 2, 2, 3, 32, batch_first=True)
    x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))
    return model, lambda: model(x, x).square().mean()


class Stages(nn.Module):
    """Two lists of blocks, and layers of PyTorch's own around them."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(
            nn.ModuleList(TupleBlock() for _ in range(n)) for n in (1, 3, 2)
        )
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        for stage in self.stages:
            for block in stage:
                x = block(x, scale=0.5)[0]
        return self.last(x).square().mean()


def stages():
    model, x = Stages(), torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    return model, lambda: model(x)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (t5, "5 segments, encoder.block.0 to decoder.block.2; use_cache is off meanwhile"),
        (torch_transformer, "5 segments, encoder.layers.0 to decoder.layers.2"),
        (stages, "6 segments, stages.0.0 to stages.2.1"),
    ],
)
def test_all_towers_and_stages_are_found_and_said(build, says):
    torch.manual_seed(0)
    model, forward = build()
    before, config = state_of(model), getattr(model, "config", None)
    cache = {"use_cache": False} if config else {}  # storing keys changes their strides: last bits
    loss, expected, saved_plain = gradients(model, lambda: forward(**cache), "none")
    again, found, saved = gradients(model, forward, "per-block")
    assert torch.equal(loss, again)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert saved < saved_plain
    with segments.applied(model, "per-block") as applied:
        assert str(applied) == f"per-block: {says}"
    model.zero_grad()
    assert state_of(model) == before
    assert config is None or (config.use_cache and model.decoder.config.use_cache)


BLOCKS = {
    **{"gpt": 5, "vit": 3, "resnet": 5, "lstm": 1, "unet": 9, "unet3d": 5, "tuples": 4},
    **{"hf-gpt2": 4, "hf-llama": 4, "hf-bert": 3, "hf-vit": 3, "hf-resnet": 5, "hf-clip": 4},
    **{"hf-unet": 18, "hf-vae": 10, "hf-mmdit": 3, "hf-flux": 3},
}


@pytest.mark.parametrize("name", MODELS)
def test_all_blocks_are_found_in_the_order_in_which_they_run(name):
    model, forward = built(name)
    blocks, ran = segments.find_blocks(model), {}
    for block in blocks:
        block.register_forward_hook(lambda module, *_: ran.setdefault(module))
    forward()
    assert list(ran) == blocks
    assert len(blocks) == BLOCKS[name]


@pytest.mark.parametrize("name", MODELS)
def test_what_is_possible_is_what_the_table_says_and_all_else_is_refused_with_it(name):
    model, _ = built(name)
    before = state_of(model)
    names = [strategy for strategy in segments.STRATEGIES if name not in IMPOSSIBLE[strategy]]
    assert segments.possible(model) == names
    listed = f"Possible for {type(model).__name__}: {', '.join(names)}."
    for strategy in set(segments.STRATEGIES) - set(names):
        with (
            pytest.raises(ValueError, match=re.escape(listed)),
            segments.applied(model, strategy.replace("K", "2")),
        ):
            pytest.fail("was applied")
    assert state_of(model) == before


class Counting(nn.Module):
    """Each forward scales by how many there were."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


def test_blocks_of_a_plain_sequential_are_found():
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(block, nn.Sequential(nn.Tanh())))
    assert segments.find_blocks(model) == list(model[1])


def test_modules_are_checkpointed_by_name():
    model, forward = built("gpt")
    _, expected, saved_plain = gradients(model, forward, "none")
    model.zero_grad()
    _, found, saved = gradients(model, forward, "blocks.1,blocks.3")
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert saved < saved_plain
    with segments.applied(model, "blocks.1,blocks.3") as applied:
        assert applied.segments == (("blocks.1",), ("blocks.3",))


@pytest.mark.parametrize(
    ("name", "strategy", "says"),
    [
        ("gpt", "", "no strategy ''"),
        ("gpt", "blocks.1,blocks.9", "as in every-2, or modules'"),
        ("gpt", "per-blok", "no strategy 'per-blok'. Did you mean per-block"),
        ("gpt", "every-K", "with a number for K, as in every-2"),
        ("gpt", "library-switch", "GPT has no switch"),
        ("lstm", "every-2", "segments of 2 blocks, but LSTM has 1: K must be between 1 and 1"),
        ("lstm", "all-but-last", "all-but-last needs two blocks; LSTM has one"),
        ("hf-clip", "every-2", "4 blocks of CLIPModel do not follow one another"),
        ("tuples", "attention-only", "No attention was found in TupleModel"),
        ("hf-vae", "mlp-only", "No MLP was found in AutoencoderKL"),
        ("unet", "every-2", "9 blocks of UNet do not follow one another"),
        ("hf-mmdit", "sqrt", "3 blocks of SD3Transformer2DModel hand on text and image"),
    ],
)
def test_what_cannot_be_applied_is_refused_and_the_model_untouched(name, strategy, says):
    model, _ = built(name)
    before = state_of(model)
    with pytest.raises(ValueError, match=says), segments.applied(model, strategy):
        pytest.fail("was applied")
    assert state_of(model) == before


def test_a_model_without_blocks_and_what_is_no_model_are_refused():
    with pytest.raises(ValueError, match="Linear has no blocks that could be found"):
        segments.find_blocks(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="The model is a str"), segments.applied("gpt2"):
        pytest.fail("was applied")


class Meddler(nn.Module):
    """Has a list of blocks, and does something between them."""

    def __init__(self, between):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.between = between

    def forward(self, x):
        kept = []
        for index, block in enumerate(self.blocks):
            x = self.between(block, x, index)
            kept.append(x)
        return sum(torch.cat([kept[0], kept[-1]]).flatten())


@pytest.mark.parametrize(
    "between",
    [
        lambda block, x, index: block(x),  # but the first output is used again at the end
        lambda block, x, index: block(x) + 1,
        lambda block, x, index: 1 + block(x),
        lambda block, x, index: block(x * 2),
        lambda block, x, index: block(x.relu()),
        lambda block, x, index: torch.relu(block(x)),
        lambda block, x, index: x if index == 1 else block(x),
        lambda block, x, index: block(x)[:, 0:4],
        lambda block, x, index: [block(x), block(x)][1],
    ],
)
def test_blocks_that_are_no_chain_raise_and_give_no_wrong_number(between):
    model = Meddler(between)
    before = state_of(model)
    refused = pytest.raises((RuntimeError, AttributeError, TypeError), match="one right after")
    with refused, segments.applied(model, "every-2"):
        model(torch.ones(1, 4))
    assert state_of(model) == before
    model(torch.ones(1, 4))  # and works as before


def test_modules_are_called_through_a_function_and_are_what_they_were_even_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = [dict(vars(module)) for module in model]
    seen = []

    def checkpoint(forward, *args, **kwargs):
        seen.append(forward)
        return forward(*args, **kwargs)

    x = torch.ones(1, 2)
    expected = model(x)
    with segments.called_through(checkpoint, model):
        assert torch.equal(model(x), expected)
    with pytest.raises(RuntimeError), segments.called_through(checkpoint, model):
        model(torch.ones(1, 3))
    assert seen == [*(module.forward for module in model), model[0].forward]
    assert [dict(vars(module)) for module in model] == before
