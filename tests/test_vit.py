import math

import pytest
import torch
from small_models import maker, num_parameters, num_parameters_of
from torch.nn import functional as F

from tutorial_lib import data
from tutorial_lib.models.vit import ViT

small = maker(ViT)


@pytest.mark.parametrize(
    ("layers", "heads", "width", "published"),
    [(12, 12, 768, 86_567_656), (24, 16, 1024, 304_326_632)],
)
def test_published_sizes_give_the_published_number_of_parameters(layers, heads, width, published):
    assert num_parameters_of(ViT, 224, 16, 3, 1000, layers, heads, width) == published


@pytest.mark.parametrize("patch", [1, 2, 4])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_number_of_parameters_is_that_of_the_formula(patch, layers):
    c, classes = 32, 10
    tokens = (8 // patch) ** 2 + 1
    embedding = patch * patch * c + c + c + tokens * c  # patches, class token, positions
    block = 12 * c * c + 13 * c
    head = 2 * c + c * classes + classes
    assert num_parameters(small(patch_size=patch, num_layers=layers)) == (
        embedding + layers * block + head
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_images_become_logits_and_every_parameter_learns(attention):
    model = small(in_channels=3, image_size=6, attention=attention)
    images = data.image_batch(5, 3, 6)
    assert model(images).shape == (5, 10)
    model.loss(images, torch.arange(5)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_both_attentions_are_the_same_function():
    images = data.image_batch(3, 1, 8)
    torch.testing.assert_close(small()(images), small(attention="eager")(images))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_token_sees_every_other(attention):
    block = small(attention=attention).blocks[0]
    x = torch.randn(1, 17, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    block(x)[0, 0].sum().backward()  # a causal first token would see itself alone
    assert x.grad.abs().amax(dim=-1).min() > 0


def test_patches_are_cut_row_by_row():
    model = small(patch_size=4).eval()
    images = data.image_batch(1, 1, 8)
    weight, bias = model.patch_embedding.weight.flatten(1), model.patch_embedding.bias
    corners = [(0, 0), (0, 4), (4, 0), (4, 4)]
    patches = [images[0, :, y : y + 4, x : x + 4].flatten() for y, x in corners]
    seen = []
    model.dropout.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    model(images)
    tokens = torch.stack([model.class_token, *(weight @ patch + bias for patch in patches)])
    torch.testing.assert_close(seen[0], tokens + model.position_embedding.weight)


def test_the_loss_is_the_mean_over_images_and_starts_as_a_guess():
    model, (images, labels) = small(), data.digits()
    loss = model.loss(images[:64], labels[:64])
    torch.testing.assert_close(loss, F.cross_entropy(model(images[:64]), labels[:64]))
    assert abs(loss.item() - math.log(10)) < 0.1


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 1, 16, 16\).*\(batch, 1, 8, 8\). Try image_size"):
        small()(data.image_batch(2, 1, 16))
