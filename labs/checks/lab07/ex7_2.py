"""The check of 7.2, the first pass: embeddings without a graph."""

import torch

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given
from .expectations import draw_parts, expect_runs, read_peaks
from .given import towers

_PASSED = "all rows, one micro-batch at a time, with their moments, and no graph"


def _cases(draw: Draw) -> Cases:
    yield {**draw_parts(draw), "dropout": 0.3}


@check(given.embed, _PASSED, _cases)
def embed(case: Case, result: Result) -> None:
    expect.unchanged(result)
    expect_runs(result, case["sizes"])
    is_inference, has_graph = read.flag(result, "inference"), read.flag(result, "needs_grad")
    faults = {
        "the embeddings are inference tensors: autograd refuses them for ever, and the loss needs "
        "their gradient. torch.no_grad it is.": is_inference,
        "the embeddings still have a graph: they are to be plain numbers.": has_graph,
    }
    expect.no_fault(faults)
    tower = towers.seeded_tower(case)
    with torch.no_grad():
        wanted = torch.cat([tower(part) for part in towers.parts_of(case)])
    is_moved = not expect.same_bits(result["random_state"], torch.get_rng_state())
    expect.close(
        read.tensors([result["embeddings"]], 1, "embeddings"),
        [wanted],
        otherwise="the embeddings are not those of the rows in their order: one torch.cat, and "
        "nothing that draws random numbers or changes them in between.",
    )
    few, many = read_peaks(result)
    more = 3 * sum(case["sizes"])
    embeddings = more * case["features"] * 8
    numbers, asked_after = list(range(len(case["sizes"]))), result["asked_after"]
    faults = {
        "the embeddings are right, and the random state afterwards is not that of one run of each "
        "micro-batch: seed nothing, and put nothing back.": is_moved,
        f"remember was called after {asked_after} runs of the tower, and is wanted before each, "
        f"after {numbers}: a moment is what a run begins with.": asked_after != numbers,
        "the moments come otherwise than remember gave them: a list, one a micro-batch, in their "
        "order.": result["moments"] != numbers,
        f"the peak grew by {many - few} bytes with {more} rows more, whose embeddings have "
        f"{embeddings}: turn gradients off while the tower runs, or the graph of a micro-batch "
        # torch.cat holds them twice
        "lives as long as its embeddings.": many - few > 2 * embeddings,
        "the embeddings come without a graph, and a run of the tower had made one, with all that a "
        "micro-batch saves for backward. detach drops it afterwards: turn gradients off "
        "before.": read.flag(result, "had_graph"),
    }
    expect.no_fault(faults)
