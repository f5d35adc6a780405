import functools

import pytest
import torch

from tutorial_lib import data


def test_digits_are_the_known_images_in_range():
    images, labels = data.digits()
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == torch.float32
    assert (images.min(), images.max()) == (-1.0, 1.0)
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_grow_and_keep_their_range():
    images, _ = data.digits(size=16)
    assert images.shape == (1797, 1, 16, 16)
    assert images.min() >= -1
    assert images.max() <= 1
    # halving what was doubled gives a blurred copy of the same images
    small, _ = data.digits()
    again = torch.nn.functional.avg_pool2d(images, 2)
    assert torch.corrcoef(torch.stack([small.flatten(), again.flatten()]))[0, 1] > 0.95


@pytest.mark.parametrize("size", [0, 7, -8])
def test_digits_refuse_to_shrink(size):
    with pytest.raises(ValueError, match="must be at least 8"):
        data.digits(size=size)


def test_text_is_source_code_of_the_length_asked_for():
    text = data.text(50_000)
    assert len(text) == len(text.encode("ascii")) == 50_000
    assert "\r\n" not in text
    assert "def " in text
    assert data.text(100) == text[:100]


@pytest.mark.parametrize("num_chars", [0, -5, 10**12])
def test_text_refuses_what_it_does_not_have(num_chars):
    with pytest.raises(ValueError, match=r"num_chars .* must be between 1 and the \d+"):
        data.text(num_chars)


def test_tokens_are_bytes_and_come_back_as_text():
    tokens = data.encode("if x:\n")
    assert tokens.tolist() == list(b"if x:\n")
    assert data.decode(tokens) == "if x:\n"


def test_text_batches_are_windows_of_the_text_and_repeat():
    batches = data.text_batches(4, 32)
    first, second = next(batches), next(batches)
    assert first.shape == (4, 32)
    assert first.dtype == torch.int64
    assert all(data.decode(window) in data.text() for window in first)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(first, next(data.text_batches(4, 32)))


def test_text_batches_refuse_a_window_longer_than_the_text_at_once():
    with pytest.raises(ValueError, match="seq"):
        data.text_batches(1, 200_001)


def test_batches_repeat_with_their_seed_and_leave_the_global_state_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    make = functools.partial(data.image_batch, 4, 3, 8)
    assert torch.equal(make(5), make(5))
    assert not torch.equal(make(5), make(6))
    next(data.text_batches(4, 16))
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_have_the_shape_and_range_asked_for():
    images = data.image_batch(8, 3, 32)
    assert images.shape == (8, 3, 32, 32)
    assert abs(images.mean()) < 0.05
    assert abs(images.std() - 1) < 0.05


@pytest.mark.parametrize(
    "make", [lambda: data.image_batch(1, 3, -2), lambda: data.text_batches(2, 0)]
)
def test_empty_batches_are_refused(make):
    with pytest.raises(ValueError, match="must be at least 1"):
        make()
