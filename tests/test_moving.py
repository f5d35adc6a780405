"""Figures with sliders: what Vega-Lite computes and draws is what the course's functions say."""

import re
from functools import reduce
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from tutorial_lib import memory
from tutorial_lib.instruments import figures, planning
from tutorial_lib.instruments.planning.run.roofline import Roofline, Speed
from tutorial_lib.models.gpt import Block, GPTConfig
from tutorial_lib.plots.base import VEGA_LITE

vl_convert = pytest.importorskip("vl_convert")
ROOM = 3 + 1 + 1 + 6  # slots, a block's input and inside, a gradient: one inside at a time
BEST = [4, 8, 1, 2, 5]


def drawn(figure, **settings):
    """The texts that a figure draws, and its marks by name, with its parameters at `settings`."""
    spec = figure._repr_mimebundle_()[0][VEGA_LITE]
    params = [{**param, "value": settings[param["name"]]} for param in spec["params"]]
    svg = vl_convert.vegalite_to_svg({**spec, "params": params}, vl_version="5.20")
    texts = [re.sub("<[^>]+>", "", text) for text in re.findall(r"<text.*?</text>", svg)]
    return texts, svg


def followed(boundaries):
    """The plan that the puzzle's rules make of a list, by recursion over runs."""
    wanted = list(dict.fromkeys(boundaries))

    def run(start, end, free):
        ahead = [at for at in wanted if start < at <= end][:free]
        if not ahead:
            return reduce(lambda tree, at: (tree, at), range(start + 1, end + 1), (start,))
        for at in ahead:
            wanted.remove(at)
        parts = list(pairwise([start, *sorted(ahead), end + 1]))
        tree = ()
        for held, (first, after) in reversed(list(enumerate(parts))):
            part = run(first, after - 1, free - held)
            tree = (part, *tree) if tree else part
        return tree

    block = planning.Stage(forward_seconds=1, backward_seconds=2, input_bytes=1, saved_bytes=6)
    return planning.Plan((block,) * 12, run(0, 11, 2)), wanted


def entries(boundaries):
    return {f"entry{n + 1}": ([*boundaries, *[0] * 5])[n] for n in range(5)}


LISTS = [[], [6], BEST, [4, 8, 3, 9], [11, 10, 9, 8, 7], [1, 1, 2], [5, 3, 3, 8, 8]]
LISTS += torch.randint(1, 12, (4, 5), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("boundaries", LISTS, ids=str)
def test_the_puzzle_counts_what_a_plan_of_the_list_runs(boundaries):
    plan, never = followed(boundaries)
    texts, svg = drawn(figures.boundary_puzzle(BEST), **entries(boundaries))
    total = sum(plan.forward_executions)
    words = next(text for text in texts if "forwards." in text)
    assert words.startswith(f"{total} forwards.")
    unused = [at for at in dict.fromkeys(boundaries) if at in never]
    said = re.search(r"slot free: ([\d, ]+)\.", words)
    assert sorted(set(map(int, said[1].split(", "))) if said else []) == sorted(unused)
    # the still image says the same, word by word
    assert figures.boundary_puzzle(boundaries).alt.partition(": ")[2].replace(" ", "") == (
        words.replace(" ", "")
    )
    assert svg.count('aria-roledescription="rect mark"') == total
    assert plan.peak_bytes <= ROOM


def test_no_list_beats_the_best_one():
    whole = planning.solve(followed([])[0].stages, budget_bytes=ROOM)
    assert sum(whole.forward_executions) == sum(followed(BEST)[0].forward_executions) == 33


SPEEDS = {"T4": Speed.of("Tesla T4"), "H100": Speed.of("NVIDIA H100 80GB HBM3")}
PAIRS = {card: (speed.half_flops, speed.bytes_per_second) for card, speed in SPEEDS.items()}


@pytest.mark.parametrize(("card", "tokens", "width"), [("T4", 128, 8192), ("H100", 8192, 2048)])
def test_the_roofline_prices_what_a_block_runs_as_predictions_do(card, tokens, width):
    def seconds(run):
        with Roofline(SPEEDS[card]) as line:
            run()
        return line.seconds

    with memory.predicting():
        block = Block(GPTConfig(d_model=width, num_heads=width // 128)).half()
        x, head = torch.zeros(1, tokens, width).half(), torch.zeros(width, 128_256).half()
        q, mlp = x.view(1, tokens, -1, 128).transpose(1, 2), block.mlp
        runs = {
            "norm": (lambda: block.norm_1(x), 2), "qkv": (lambda: block.attention.qkv(x), 6),
            "attention": (lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True), 2),
            "add": (lambda: x + block.attention.out(x), 2), "up": (lambda: mlp.up(x), 8),
            "GELU": (lambda: F.gelu(x, approximate="tanh"), 2),
            "loss": (lambda: (x @ head).float().log_softmax(-1), 4 * 128_256 / width),
        }  # fmt: skip
        mib = tokens * width / 2**20
        right = {name: 1e6 * seconds(run) / (by * mib) for name, (run, by) in runs.items()}
    _, said, rows = re.split(r"^.*?\. | µs.*?: ", figures.roofline(PAIRS, card, tokens, width).alt)
    rows = dict(row.split(" ", 1) for row in rows[:-1].split("; "))
    prices = {name: float(words.split(",")[0]) for name, words in rows.items() if words[0] != "n"}
    assert prices == pytest.approx(right, rel=0.05)
    texts, _ = drawn(figures.roofline(PAIRS, "T4"), card=card, tokens=tokens, columns=width)
    assert said.replace(". ", ".") in texts
    assert {*rows.values()} < {*texts}
    assert [text for text in texts if text in rows] == [*rows]


@pytest.mark.parametrize("boundaries", [[12], [0], [-1, 4], [1, 2, 3, 4, 5, 6]])
def test_the_puzzle_says_which_lists_it_takes(boundaries):
    with pytest.raises(ValueError, match=r"at most 5 of the blocks 1 to 11\. Block 0 has a slot"):
        figures.boundary_puzzle(boundaries)


@pytest.mark.parametrize("wrong", [("V100",), ("T4", 0), ("T4", 64, -1)])
def test_the_roofline_says_what_it_takes(wrong):
    with pytest.raises(ValueError, match="one of T4, H100, and two numbers of at least 1"):
        figures.roofline(PAIRS, *wrong)
