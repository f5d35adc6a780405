"""Figures with sliders: what Vega-Lite computes and draws is what the course's functions say."""

import re
from functools import reduce
from itertools import pairwise

import pytest
import torch

from tutorial_lib.instruments import figures, planning
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


@pytest.mark.parametrize("boundaries", [[12], [0], [-1, 4], [1, 2, 3, 4, 5, 6]])
def test_the_puzzle_says_which_lists_it_takes(boundaries):
    with pytest.raises(ValueError, match=r"at most 5 of the blocks 1 to 11\. Block 0 has a slot"):
        figures.boundary_puzzle(boundaries)
