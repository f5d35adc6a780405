import pytest
import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.instruments.training.adamw_8bit import AdamW8bit

STEPS = 60


def trained(make_optimizer, shape, dtype=torch.float32):
    """Descend noisily to a target for some steps; gives start, end and the optimizer."""
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
    target, start = torch.randn(shape, generator=generator), weight.detach().clone().float()
    optimizer = make_optimizer([weight])
    for _ in range(STEPS):
        noise = torch.randn(shape, generator=generator)
        weight.grad = (weight.detach() - target + 0.1 * noise).to(dtype)
        optimizer.step()
    return start, weight, optimizer


def distance(shape, dtype=torch.float32, **settings):
    """How far 8 bits end from 32, relative to the way that was gone."""
    start, ours, _ = trained(lambda p: AdamW8bit(p, lr=1e-2, **settings), shape, dtype)
    _, exact, _ = trained(lambda p: torch.optim.AdamW(p, lr=1e-2, **settings), shape, dtype)
    return ((ours - exact).float().norm() / (exact.float() - start).norm()).item()


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.5}, {"betas": (0.5, 0.9)}])
def test_a_small_tensor_is_updated_as_by_adamw(settings):
    assert distance((63, 65), **settings) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64), (4097,), (2, 3, 1000)])
def test_8_bits_stay_close_to_32(shape, dtype):
    assert 0 < distance(shape, dtype) < 0.08


def test_the_states_have_their_published_size():
    _, _, optimizer = trained(AdamW8bit, (100, 100))
    (state,) = optimizer.state.values()
    blocks = 40  # of 256 values, the last one not full
    sizes = {name: value.nbytes for name, value in state.items() if name != "step"}
    assert sizes == {
        **{"mean": 10_000, "square": 10_000},
        **{"mean_scale": 4 * blocks, "square_scale": 4 * blocks},
        **{"signed": 1024, "unsigned": 1024},
    }
    _, _, optimizer = trained(AdamW8bit, (4095,))
    (state,) = optimizer.state.values()
    assert {value.dtype for value in list(state.values())[1:]} == {torch.float32}


def test_all_parameters_share_two_tables_and_the_update_makes_no_tensor():
    model = nn.Sequential(nn.Linear(128, 128, bias=False), nn.Linear(128, 128, bias=False))
    optimizer = AdamW8bit(model.parameters())

    def step():
        model(torch.ones(1, 128)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    report = memory.measure(step, model=model, optimizer=optimizer)
    weights = 128 * 128
    states = 2 * 2 * (weights + 4 * weights // 256) + 2 * 1024
    update = report.phases["optimizer"] - report.baseline_bytes
    loss_and_input = 4 + 4 * 128
    assert report.at_peak["optimizer_state"] == states
    assert update <= 2 * 4 * weights + loss_and_input  # the gradients, and nothing of the update's


@pytest.mark.parametrize(
    "wrong", [{"lr": -1}, {"eps": -1}, {"weight_decay": -1}, {"betas": (1.0, 0.9)}]
)
def test_a_setting_out_of_its_range_is_refused(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match=f"{name} \\(=\\(?{value if name != 'betas' else 1.0}"):
        AdamW8bit([torch.zeros(1, requires_grad=True)], **wrong)
