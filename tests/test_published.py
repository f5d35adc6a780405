import math

import pytest
import torch
from small_models import ASKED, TINY
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tutorial_lib.instruments import published
from tutorial_lib.instruments.published import steps

WITHOUT_ATTENTION = {"resnet50", "lstm", "resnet1000", "unet3d"}
FLOWS = {"sd35-medium", "flux-dev"}  # of which diffusers has fused attention alone
KERNELS = [(name, kernel) for name in TINY for kernel in ("sdpa", "eager")]


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def tiny_batch(name, micro_batch):
    return published.batch(name, micro_batch, **ASKED.get(name, {}), **TINY[name])


def train_step(name, model, batch):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    loss = published.loss(name, model, batch)
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_every_model_has_exactly_its_published_parameters(name):
    model = published.build(name)
    assert count(model) == published.PUBLISHED[name].num_parameters
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert model.training


@pytest.mark.parametrize(
    "name",
    [
        *("gpt2", "vit-b-16", "bert-base", "clip-two-tower", "sd-vae"),
        *(pytest.param(name, marks=pytest.mark.weekly) for name in ("sd15-unet", "llama-2-7b")),
    ],
)
def test_a_full_step_at_full_size_runs_on_fake_tensors(name):
    masks = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watching(*args, **kwargs):
        masks.append(kwargs.get("attn_mask"))
        return attend(*args, **kwargs)

    with FakeTensorMode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", watching)
        model = published.build(name, device="cpu")
        assert count(model) == published.PUBLISHED[name].num_parameters
        loss = train_step(name, model, published.batch(name, 2))
    assert isinstance(loss, FakeTensor)
    assert loss.shape == ()
    assert all(isinstance(parameter.grad, FakeTensor) for parameter in model.parameters())
    assert masks  # the fused kernels are used, and never with a mask that a real step has not
    assert all(mask is None for mask in masks)


@pytest.mark.parametrize(
    ("name", "attention"), [pair for pair in KERNELS if pair[0] not in FLOWS or pair[1] == "sdpa"]
)
def test_a_real_step_trains_and_starts_as_a_guess(name, attention):
    torch.manual_seed(0)
    sizes = TINY[name]
    model = published.build(name, device="cpu", attention=attention, **sizes)
    loss = train_step(name, model, tiny_batch(name, 4))
    choices = {"gpt2": 50, "llama-2-7b": 50, "transformer-50": 50, "lstm": 50, "bert-base": 120}
    choices |= {"vit-b-16": 10, "resnet50": 10, "resnet1000": 10, "unet3d": 3}
    choices |= {"olmoe-1b-7b": 50, "modernbert-base": 120, "dinov2-base": 10}
    choices |= {"gemma-2-9b": 50, "clip-two-tower": 4}  # of the pairs in the batch
    guess = math.log(choices[name]) if name in choices else 2.0 if name in FLOWS else 1.0
    assert loss.item() == pytest.approx(guess, rel=0.3)
    trained = [p for key, p in model.named_parameters() if not key.endswith("mask_token")]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)  # DINOv2 masks not


@pytest.mark.parametrize("name", [name for name in TINY if name not in WITHOUT_ATTENTION | FLOWS])
def test_both_attentions_are_the_same_function(name):
    def loss(attention):
        torch.manual_seed(0)
        model = published.build(name, device="cpu", attention=attention, **TINY[name]).eval()
        return published.loss(name, model, tiny_batch(name, 2))

    torch.testing.assert_close(loss("sdpa"), loss("eager"), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_a_dtype_holds_for_all_parameters_and_the_default_comes_back(name):
    model = published.build(name, device="cpu", dtype=torch.bfloat16, **TINY[name])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    published.loss(name, model, tiny_batch(name, 2)).backward()
    assert torch.get_default_dtype() == torch.float32
    assert torch.empty(1).device.type == "cpu"


def test_the_causal_loss_is_that_of_the_next_token():
    name, sizes = "gpt2", TINY["gpt2"]
    model = published.build(name, device="cpu", **sizes).eval()
    batch = published.batch(name, 3, **sizes)
    logits = model(batch["input_ids"]).logits[:, :-1].reshape(-1, 50)
    expected = torch.nn.functional.cross_entropy(logits, batch["input_ids"][:, 1:].flatten())
    torch.testing.assert_close(published.loss(name, model, batch), expected)


def test_the_loss_of_two_towers_asks_both_ways_which_belong_together():
    name, sizes = "clip-two-tower", TINY["clip-two-tower"]
    model, batch = published.build(name, device="cpu", **sizes).eval(), tiny_batch(name, 3)
    output = model(**batch)
    images, texts = output.image_embeds, output.text_embeds  # (3, 16), of length 1
    scores, own = model.logit_scale.exp() * texts @ images.T, torch.arange(3)
    entropy = torch.nn.functional.cross_entropy
    expected = (entropy(scores, own) + entropy(scores.T, own)) / 2
    torch.testing.assert_close(published.loss(name, model, batch), expected)
    ends = published.batch(name, 2, **sizes)["input_ids"]
    assert (ends[:, -1] == 49).all()


def test_the_autoencoders_loss_is_error_and_divergence(monkeypatch):
    assert steps.KL_WEIGHT == 1e-6
    monkeypatch.setattr(steps, "KL_WEIGHT", 1.0)  # large enough to be seen
    name, sizes = "sd-vae", TINY["sd-vae"]
    model, batch = published.build(name, device="cpu", **sizes), tiny_batch(name, 2)
    torch.manual_seed(1)
    found = published.loss(name, model, batch)
    torch.manual_seed(1)
    mean, log_variance = model.encode(batch["images"]).latent_dist.parameters.chunk(2, dim=1)
    deviation = (log_variance / 2).exp()
    rebuilt = model.decode(mean + deviation * torch.randn(mean.shape)).sample
    normal = torch.distributions.Normal
    prior = normal(torch.zeros(()), torch.ones(()))
    divergence = torch.distributions.kl_divergence(normal(mean, deviation), prior)
    error = (rebuilt - batch["images"]).abs().mean()
    torch.testing.assert_close(found, error + divergence.sum() / batch["images"].numel())
    assert not torch.allclose(found, error)


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_the_flow_is_a_straight_line_from_latents_to_noise(name):
    model, batch = published.build(name, device="cpu", **TINY[name]), tiny_batch(name, 2)
    latents, noise = batch["latents"], batch["noise"]
    seen = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(args[0]), with_kwargs=True)
    model.register_forward_hook(lambda *_: type("Out", (), {"sample": noise - latents}))
    assert published.loss(name, model, batch) == 0.0
    for mixed, start, end, share in zip(seen[0], latents, noise, batch["sigmas"], strict=True):
        assert 0 < share < 1
        torch.testing.assert_close(mixed, start + share * (end - start))
    times = batch["timestep"] * (1000 if name == "flux-dev" else 1)  # Flux multiplies itself
    torch.testing.assert_close(times, 1000 * batch["sigmas"])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: published.build("gpt-2-xl"), "no published model 'gpt-2-xl'. .*gpt2-xl"),
        (lambda: published.loss("bert", None, {}), "bert-base"),
        (lambda: published.build("gpt2", n_layers=2), "'n_layers' isn't a field .*n_layer"),
        (lambda: published.build("sd15-unet", groups=2), "'groups' isn't a field .*norm_num"),
        (lambda: published.build("gpt2", attention="flash"), "'flash'.* must be 'sdpa' or 'eager'"),
        (lambda: published.build("gpt2", device="cuda:99"), "'cuda:99' was asked for"),
        (
            lambda: published.build("clip-two-tower", text_config={"num_layers": 2}),
            "'num_layers' isn't a field .*num_hidden_layers",
        ),
        (lambda: published.build("unet3d", num_levels=0), r"num_levels \(=0\) must be at least 1"),
        (lambda: published.batch("clip-two-tower", 1, size=32), "takes images of image_size"),
        (lambda: published.batch("transformer-50", 1, seq=513), r"at most 512, the positions"),
        (
            lambda: published.build("flux-dev", attention="eager", **TINY["flux-dev"]),
            "diffusers runs flux-dev with fused attention alone.*use 'sdpa'",
        ),
        (lambda: published.batch("gpt2", 1, size=8), "reads text and takes no size"),
        (lambda: published.batch("vit-b-16", 1, seq=8), "reads images and takes no seq"),
        (lambda: published.batch("vit-b-16", 1, size=384), "image_size=384 in both build and"),
        (
            lambda: published.loss("gpt2", torch.nn.Linear(1, 1), published.batch("vit-b-16", 1)),
            "The batch has pixel_values, labels; gpt2 needs input_ids",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
    assert torch.get_default_dtype() == torch.float32
    assert torch.empty(1).device.type == "cpu"
