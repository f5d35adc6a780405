"""Lab 05's answers against all choices, and on real tensors."""

import itertools
import random
from functools import partial

import pytest
import torch
from wrong_answers import solved

from tutorial_lib import memory
from tutorial_lib.checks.lab05 import Host, ex5_4
from tutorial_lib.models.gpt import GPT, GPTConfig

LAB = solved("lab05")
SCALARS = 64  # bytes of a loss, and of what the loss function keeps beside it
KEEPS = (None, {0, 1, 2, 3, 4, 5}, {0, 3, 4}, set())  # attention written out: six products


def draw_parts(draw, count):
    return [
        [ex5_4.Option(draw.randint(1, 30), draw.randint(20, 60), draw.randint(0, 50))
         for _ in range(draw.randint(1, 4))]
        for _ in range(count)
    ]  # fmt: skip


def test_no_choice_has_fewer_flops():
    draw = random.Random(0)
    for _ in range(300):
        parts = draw_parts(draw, draw.randint(1, 5))
        ways = [(ex5_4.peak(w), ex5_4.total_flops(w)) for w in itertools.product(*parts)]
        target = draw.choice(ways)[0] + draw.randint(-5, 5)
        fitting = [flops for peak, flops in ways if peak <= target]
        if not fitting:
            with pytest.raises(ValueError, match=f"={target}"):
                LAB.fewest_flops(parts, target)
            continue
        chosen = [p[n] for p, n in zip(parts, LAB.fewest_flops(parts, target), strict=True)]
        assert ex5_4.peak(chosen) <= target
        assert ex5_4.total_flops(chosen) == min(fitting)


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "seq_len": 32, "num_layers": 6, "num_heads": 2, "d_model": 32}
    return GPT(GPTConfig(**sizes, dropout=0.1, tie_weights=False, attention="eager"))


@pytest.fixture(scope="module")
def parts(gpt):
    tokens, x = torch.randint(32, (4, 32)), torch.randn(4, 32, 32, requires_grad=True)
    block = gpt.blocks[0]
    options = [LAB.reading(block, partial(LAB.run_block, block, keep), x) for keep in KEEPS]
    ends = [
        LAB.reading(gpt, partial(LAB.embed, gpt), tokens),
        LAB.reading(gpt, partial(LAB.head_loss, gpt, tokens), x),
    ]
    return [[ends[0]], *[options] * 6, [ends[1]]]


def counted_peak(gpt, numbers):
    tokens = torch.randint(32, (4, 32))
    try:
        for layer, number in zip(gpt.blocks, numbers[1:-1], strict=True):
            layer.forward = partial(LAB.run_block, layer, KEEPS[number])
        report = memory.measure(lambda: gpt.loss(tokens).backward(), model=gpt)
    finally:
        for layer in gpt.blocks:
            del layer.forward
    return report.peak_bytes - report.baseline_bytes


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 1.0])
def test_an_executed_choice_stays_within_its_target(gpt, parts, share):
    most = ex5_4.peak([options[0] for options in parts])
    numbers = LAB.fewest_flops(parts, int(share * most))
    planned = ex5_4.peak([options[n] for options, n in zip(parts, numbers, strict=True)])
    assert planned <= share * most
    assert 0.97 * planned < counted_peak(gpt, numbers) <= planned + SCALARS


def test_the_host_gives_views_back_and_forgets_what_nobody_holds():
    host, whole = Host(), torch.arange(24.0).view(4, 6)
    part = whole[1:, 2:5].t()
    copy = host.put(part)
    assert (host.copied_bytes, host.held_bytes) == (whole.nbytes, whole.nbytes)
    back = copy.get(part.dtype, part.size(), part.stride(), part.storage_offset())
    whole.zero_()
    assert torch.equal(back, torch.arange(24.0).view(4, 6)[1:, 2:5].t())
    del copy
    assert (host.copied_bytes, host.held_bytes) == (whole.nbytes, 0)
