import pytest
import torch
from test_meter import gpt_step
from torch import nn

from tutorial_lib import memory
from tutorial_lib.models.gpt import GPT, GPTConfig


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_predicted_equals_counted_in_every_phase(attention, checkpointed, dropout):
    settings = {"attention": attention, "checkpointed": checkpointed, "dropout": dropout}
    if attention == "sdpa" and dropout:
        pytest.skip("with dropout a CPU leaves its fused kernel, and so does the prediction")
    step, model, optimizer = gpt_step(**settings)
    counted = memory.measure(step, model=model, optimizer=optimizer)
    predicted = memory.predict(lambda: gpt_step(**settings), kernels="cpu")
    assert predicted.method == "predicted"
    assert predicted.phases == counted.phases
    assert predicted.at_peak == counted.at_peak


def test_a_model_larger_than_this_machine_is_predicted():
    def huge():
        config = GPTConfig(vocab_size=32000, num_layers=2, num_heads=64, d_model=65536)
        model = GPT(config)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.zeros(1, 128, dtype=torch.long)

        def step():
            optimizer.zero_grad()
            model.loss(tokens).backward()
            optimizer.step()

        return step, model, optimizer

    report = memory.predict(huge)
    assert report.at_peak["parameters"] > 400e9


def test_cuda_kernels_are_the_default_and_say_so():
    report = memory.predict(lambda: gpt_step(dropout=0.1))
    on_cpu = memory.predict(lambda: gpt_step(dropout=0.1), kernels="cpu")
    assert "CUDA kernels" in str(report)
    # bool instead of float dropout masks, and no scores are saved
    assert report.phases["backward"] < on_cpu.phases["backward"]
    # foreach, CUDA's default, holds one more copy of the parameters in the update
    assert report.phases["optimizer"] > on_cpu.phases["optimizer"]
    with pytest.raises(ValueError, match="tpu"):
        memory.predict(gpt_step, kernels="tpu")


def test_reading_a_value_is_refused_with_advice():
    def peeking():
        model = nn.Linear(2, 2)

        def step():
            loss = model(torch.ones(1, 2)).sum()
            if loss.item() > 0:
                loss.backward()

        return step, model, torch.optim.SGD(model.parameters())

    with pytest.raises(RuntimeError, match=r"take \.item\(\)"):
        memory.predict(peeking)


def test_the_random_state_is_the_callers():
    state = torch.random.get_rng_state()
    memory.predict(gpt_step)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_may_be_converted_and_initialised_on_the_way(dtype):
    def make():
        model = nn.Linear(8, 8)
        nn.init.trunc_normal_(model.weight)
        model.to(dtype)
        x = torch.zeros(1, 8, dtype=dtype)
        optimizer = torch.optim.AdamW(model.parameters())

        def step():
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

        return step, model, optimizer

    report = memory.predict(make)
    assert report.at_peak["parameters"] == 72 * dtype.itemsize
    assert report.at_peak["optimizer_state"] == 2 * 72 * dtype.itemsize + 2 * 4
