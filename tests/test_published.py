import logging
import math
import subprocess
import sys
import warnings

import pytest
import torch
from small_models import ASKED, TINY
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tutorial_lib.instruments import published
from tutorial_lib.instruments.published import steps
from tutorial_lib.instruments.published.steps import noised

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


@pytest.mark.parametrize(
    "name", ["gpt2", "sd15-unet", "sd-vae", "clip-two-tower", "transformer-50"]
)
def test_only_eager_attention_keeps_scores(name):
    def saved_bytes(attention):
        model = published.build(name, device="cpu", attention=attention, **TINY[name])
        for module in model.modules():  # with dropout the fused kernel keeps scores too, on a CPU
            if hasattr(module, "attn_dropout"):
                module.attn_dropout.p = 0.0
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: sizes.append(tensor.nbytes) or tensor, lambda tensor: tensor
        ):
            published.loss(name, model, tiny_batch(name, 2))
        return sum(sizes)

    assert saved_bytes("sdpa") < saved_bytes("eager")


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("fake", [False, True])
def test_a_dtype_holds_for_all_parameters_and_the_default_comes_back(name, fake):
    def build_and_lose():
        model = published.build(name, device="cpu", dtype=torch.bfloat16, **TINY[name])
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        published.loss(name, model, tiny_batch(name, 2)).backward()

    if fake:
        with FakeTensorMode():
            build_and_lose()
    else:
        build_and_lose()
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


def test_masked_tokens_are_those_that_are_guessed():
    batch = published.batch("bert-base", 8)
    guessed = batch["labels"] != -100
    assert 0.12 < guessed.float().mean() < 0.18
    assert (batch["input_ids"][guessed] == 103).all()
    assert (batch["labels"][guessed] < 30522).all()


def test_noise_is_mixed_as_diffusers_mixes_it():
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler(1000, 0.00085, 0.012, beta_schedule="scaled_linear")
    batch = published.batch("sd15-unet", 4, size=8)
    arguments = batch["latents"], batch["noise"], batch["timesteps"]
    torch.testing.assert_close(noised(*arguments), scheduler.add_noise(*arguments))


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


def test_flux_is_told_where_each_patch_stands():
    batch = published.batch("flux-dev", 2, size=6, seq=4)
    assert batch["latents"].shape == (2, 9, 64)
    assert batch["img_ids"].tolist() == [
        [0, row, column] for row in range(3) for column in range(3)
    ]
    assert batch["txt_ids"].tolist() == 4 * [[0, 0, 0]]


def test_batches_repeat_and_leave_the_global_state_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for name in published.PUBLISHED:
        one, same = (published.batch(name, 2) for _ in range(2))
        assert all(torch.equal(one[key], same[key]) for key in one)
    assert torch.equal(torch.get_rng_state(), before)


def test_latents_of_odd_sizes_need_no_padding():
    sizes = {**TINY["sd15-unet"], "block_out_channels": (64, 64)}
    unet = published.build("sd15-unet", device="cpu", **sizes)
    for size in (1, 7, 9):  # the U-Net tells its upsamplers where they have to arrive
        loss = published.loss(
            "sd15-unet", unet, published.batch("sd15-unet", 1, size=size, **sizes)
        )
        assert loss.isfinite()


def test_sizes_that_are_asked_for_are_given():
    assert published.batch("gpt2", 3, seq=7)["input_ids"].shape == (3, 7)
    unet = published.batch("sdxl-unet", 2, size=16, seq=5)
    assert unet["latents"].shape == (2, 4, 16, 16)
    assert unet["encoder_hidden_states"].shape == (2, 5, 2048)
    assert unet["time_ids"][0].tolist() == [128, 128, 0, 0, 128, 128]
    assert published.batch("lstm", 2, seq=1000)["tokens"].shape == (2, 1000)
    assert published.batch("resnet152", 2, size=64)["pixel_values"].shape == (2, 3, 64, 64)
    assert published.batch("unet3d", 2, size=16)["volumes"].shape == (2, 3, 16, 16, 16)
    pairs = published.batch("clip-two-tower", 2, seq=9)
    assert (pairs["input_ids"].shape, pairs["pixel_values"].shape) == ((2, 9), (2, 3, 224, 224))
    assert published.batch("gpt2", 1, device="meta")["input_ids"].device.type == "meta"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: published.build("gpt-2-xl"), "no published model 'gpt-2-xl'. .*gpt2-xl"),
        (lambda: published.build("qqqq"), "no published model 'qqqq'. The names are gpt2, "),
        (lambda: published.batch("GPT2", 1), "Did you mean gpt2"),
        (lambda: published.loss("bert", None, {}), "bert-base"),
        (lambda: published.build("gpt2", n_layers=2), "'n_layers' is no field .*n_layer"),
        (lambda: published.build("sd15-unet", groups=2), "'groups' is no field .*norm_num_groups"),
        (lambda: published.batch("gpt2", 1, n_layers=2), "'n_layers' is no field"),
        (lambda: published.build("gpt2", attention="flash"), "'flash'.* must be 'sdpa' or 'eager'"),
        (lambda: published.build("gpt2", device="cuda:99"), "'cuda:99' was asked for"),
        (lambda: published.batch("gpt2", 0), r"micro_batch \(=0\) must be at least 1"),
        (lambda: published.batch("gpt2", 1, seq=1025), r"seq \(=1025\) must be at most 1024"),
        (
            lambda: published.build("clip-two-tower", text_config={"num_layers": 2}),
            "'num_layers' is no field .*num_hidden_layers",
        ),
        (lambda: published.build("lstm", layers=2), "'layers' is no field .*num_layers"),
        (lambda: published.build("unet3d", num_levels=0), r"num_levels \(=0\) must be at least 1"),
        (lambda: published.batch("clip-two-tower", 1, seq=78), r"seq \(=78\) must be at most 77"),
        (lambda: published.batch("clip-two-tower", 1, size=32), "takes images of image_size"),
        (lambda: published.batch("transformer-50", 1, seq=513), r"at most 512, the positions"),
        (
            lambda: published.build("flux-dev", attention="eager", **TINY["flux-dev"]),
            "diffusers runs flux-dev with fused attention alone.*take 'sdpa'",
        ),
        (lambda: published.batch("sd35-medium", 1, size=65), "multiple of 2.* Try size=66"),
        (lambda: published.batch("sd-vae", 1, size=60), "multiple of 8.* Try size=64"),
        (lambda: published.batch("lstm", 1, size=8), "reads text and takes no size"),
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


@pytest.mark.weekly
def test_building_says_nothing_and_leaves_logs_and_warnings_as_they_were():
    code = (
        "from tutorial_lib.instruments import published as p\n"
        "for name in ('gpt2', 'bert-base', 'vit-b-16', 'sd15-unet'):\n"
        "    model = p.build(name)\n"
        "    p.loss(name, model, p.batch(name, 1, device='meta'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    filters, disabled = list(warnings.filters), logging.root.manager.disable
    published.build("gpt2", n_layer=1)
    assert warnings.filters == filters
    assert logging.root.manager.disable == disabled
