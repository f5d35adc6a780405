import pytest
import torch
from small_models import maker, num_parameters_of

from tutorial_lib import data
from tutorial_lib.models.vit import ViT

small = maker(ViT)


@pytest.mark.parametrize(
    ("layers", "heads", "width", "published"),
    [(12, 12, 768, 86_567_656), (24, 16, 1024, 304_326_632)],
)
def test_published_sizes_give_the_published_number_of_parameters(layers, heads, width, published):
    assert num_parameters_of(ViT, 224, 16, 3, 1000, layers, heads, width) == published


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


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 1, 16, 16\).*\(batch, 1, 8, 8\). Try image_size"):
        small()(data.image_batch(2, 1, 16))
