"""Numbers in few bits: what 01b and 08c say of their roundings and no cell of them shows."""

import pytest
import torch

from tutorial_lib.school import authoring


@pytest.fixture
def levers(root):
    companion = authoring.load_definitions(root / "course" / "01b_more_levers.ipynb")
    levels = torch.special.ndtri(torch.linspace(0.02, 0.98, 16))
    companion.LEVELS = levels / levels.max()
    return companion


def test_4_bits_are_the_nearest_of_16_levels(levers):
    weight = torch.randn(3, 128)
    rows, scale = levers.blocks_of(weight)
    nearest = (rows[..., None] - levers.LEVELS).abs().min(dim=-1).values
    back = levers.from_4_bits(*levers.to_4_bits(weight)) / scale
    torch.testing.assert_close((back - rows).abs(), nearest)


def test_8_bit_floats_stay_finite_and_near(levers):
    weight = 1e4 * torch.randn(4, 64)
    small, scale = levers.to_fp8(weight)
    torch.testing.assert_close(small.float() * scale, weight, rtol=1 / 16, atol=100.0)


@pytest.fixture
def writes(root):
    return authoring.load_definitions(root / "course" / "08c_sixteen_bits.ipynb")


@pytest.mark.parametrize("value", [0.1003, -0.1003, 3.14159, -1e-5])
def test_stochastic_rounding_has_the_right_mean(writes, value):
    exact = torch.full((200_000,), value)
    found = writes.stochastic(exact, None).double()
    assert len(found.unique()) == 2
    torch.testing.assert_close(found.mean(), exact[0].double(), rtol=3e-5, atol=0.0)


def test_the_second_number_holds_what_rounding_took(writes):
    exact = torch.randn(1000)
    rest = torch.zeros(1000, dtype=torch.bfloat16)
    rounded = writes.kahan(exact, rest)
    torch.testing.assert_close(rounded.float() + rest.float(), exact, rtol=2.0**-16, atol=0.0)
