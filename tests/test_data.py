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


def test_text_batches_are_windows_of_the_text_and_repeat():
    batches = data.text_batches(4, 32)
    first, second = next(batches), next(batches)
    assert first.shape == (4, 32)
    assert first.dtype == torch.int64
    assert all(bytes(window.tolist()).decode() in data.text() for window in first)
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
