"""Steps that place their tensors on a GPU, predicted where there is none."""

import contextlib
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tutorial_lib import memory
from tutorial_lib.instruments.predicting import placement

GPU = torch.device("cuda")


def make_step(place_model, place_batch, where):
    model = place_model(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 4))
    )
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        images = torch.randn(4, 3, 8, 8, device=where)
        labels = place_batch(torch.zeros(4, dtype=torch.long))
        with torch.autocast("cuda", torch.bfloat16):
            F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step, model, optimizer


@pytest.mark.parametrize(
    ("place_model", "place_batch", "where"),
    [
        (lambda model: model.cuda(), lambda batch: batch.cuda(), "cuda"),
        (lambda model: model.to("cuda"), lambda batch: batch.to(device="cuda:0"), "cuda:0"),
        (lambda model: model.to(GPU, torch.float32), lambda batch: batch.to(0), GPU),
        (lambda model: model, lambda batch: batch.cuda(0, non_blocking=True), None),
    ],
)
def test_a_gpu_step_is_predicted_as_without_and_leaves_nothing(place_model, place_batch, where):
    before = torch.Tensor.to, torch.Tensor.cuda
    plain = memory.predict(lambda: make_step(lambda model: model, lambda batch: batch, None))
    placed = memory.predict(lambda: make_step(place_model, place_batch, where))
    assert (placed.at_peak, placed.phases) == (plain.at_peak, plain.phases)
    assert (torch.Tensor.to, torch.Tensor.cuda) == before
    assert "to" not in vars(torch.Tensor)


def whole_script(gpu, *, autocast, scaler):
    """Train as scripts do that assume a GPU, or in the same way without one."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    if gpu:
        torch.cuda.set_device(0)
        model = model.to(torch.cuda.current_device())
    optimizer = torch.optim.SGD(model.parameters())
    scaler = scaler()

    def step():
        images = torch.randn(4, 3, 8, 8)
        images = images.pin_memory().cuda(non_blocking=True) if gpu else images
        with autocast():
            loss = model(images).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    return step, model, optimizer


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.cuda.amp
@pytest.mark.parametrize(
    ("autocast", "dtype"),
    [
        (lambda: torch.autocast("cuda", torch.bfloat16), torch.bfloat16),
        (lambda: torch.amp.autocast("cuda", dtype=torch.float16), torch.float16),
        (lambda: torch.autocast(device_type="cuda"), torch.float16),
        (lambda: torch.cuda.amp.autocast(), torch.float16),
        (lambda: torch.cuda.amp.autocast(dtype=torch.bfloat16), torch.bfloat16),
    ],
)
def test_autocast_and_scaler_for_a_gpu_take_effect_without_one(autocast, dtype, recwarn):
    # later releases' matmuls have workspaces, which decide on the peak of so small a step
    predict = partial(memory.predict, release="2.13")
    named = predict(
        lambda: whole_script(True, autocast=autocast, scaler=lambda: torch.amp.GradScaler("cuda"))
    )
    wanted = predict(
        lambda: whole_script(
            False,
            autocast=lambda: torch.autocast("cpu", dtype),
            scaler=lambda: torch.amp.GradScaler("cpu"),
        )
    )
    without = predict(
        lambda: whole_script(
            False,
            autocast=contextlib.nullcontext,
            scaler=lambda: torch.amp.GradScaler("cpu", enabled=False),
        )
    )
    assert (named.at_peak, named.phases) == (wanted.at_peak, wanted.phases)
    assert named.at_peak["activations"] < without.at_peak["activations"]
    assert not [one for one in recwarn if "CUDA" in str(one.message)]
    assert not torch.is_autocast_enabled("cpu")


def test_a_second_gpu_is_refused_and_never_counted_as_the_first():
    assert placement.without_gpu("cuda:1") == "cuda:1"
    second = torch.device("cuda", 1)
    with pytest.raises((RuntimeError, ValueError)):
        memory.predict(lambda: make_step(lambda model: model.to(second), lambda batch: batch, None))
