"""The checks of 7.2, 7.4 and 7.5: the two passes, and the moments that join them."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .expectations import draw_parts, expect_gradients, expect_runs, read_peaks, times_in
from .given import stages, towers
from .given.stages import RANDOM

_PASSED_7_2 = "returns all rows with their moments, one micro-batch at a time, without a graph"
_PASSED_7_4 = "the gradients of one large graph, with one small graph in memory at a time"
_PASSED_7_5 = "replays the first pass's random state and buffers, restores them, keeps no weights"
_BUFFERS = ("drift", "inner.hidden", "inner.turned", "inner.steps")


def _cases_7_2(draw: Draw) -> Cases:
    yield {**draw_parts(draw), "dropout": 0.3}


@check(given.embed, _PASSED_7_2, _cases_7_2)
def embed(case: Case, result: Result) -> None:
    expect.unchanged(result)
    expect_runs(result, case["sizes"])
    is_inference, has_graph = read.flag(result, "inference"), read.flag(result, "needs_grad")
    faults = {
        "the embeddings are inference tensors: autograd always refuses them, but the loss needs "
        "their gradient. Use torch.no_grad.": is_inference,
        "the embeddings still have a graph: they should be plain numbers.": has_graph,
    }
    expect.no_fault(faults)
    tower = towers.seeded_tower(case)
    with torch.no_grad():
        wanted = torch.cat([tower(part) for part in towers.parts_of(case)])
    is_moved = not expect.same_bits(result["random_state"], torch.get_rng_state())
    expect.close(
        read.tensors([result["embeddings"]], 1, "embeddings"),
        [wanted],
        otherwise="the embeddings are not those of the rows in their order: use one torch.cat, and "
        "nothing that draws random numbers or changes them in between.",
    )
    few, many = read_peaks(result)
    more = 3 * sum(case["sizes"])
    embeddings = more * case["features"] * 8
    numbers, asked_after = list(range(len(case["sizes"]))), result["asked_after"]
    faults = {
        "the embeddings are right, but the random state afterwards is not as one run of each "
        "micro-batch leaves it: don't seed, and put nothing back.": is_moved,
        f"remember was called after {asked_after} runs of the tower, but call it before each run, "
        f"after {numbers}: a moment is what a run begins with.": asked_after != numbers,
        "the moments aren't those that remember returned: return a list of them, one per "
        "micro-batch, in order.": result["moments"] != numbers,
        f"the peak grew by {many - few} bytes with {more} more rows, whose embeddings have "
        f"{embeddings}: turn gradients off while the tower runs, or the graph of a micro-batch "
        # torch.cat holds them twice
        "lives as long as its embeddings.": many - few > 2 * embeddings,
        "the embeddings come without a graph, but a run of the tower had made one, with all that a "
        "micro-batch saves for backward. detach only drops it afterwards: turn gradients off "
        "before.": read.flag(result, "had_graph"),
    }
    expect.no_fault(faults)


def _cases_7_4(draw: Draw) -> Cases:
    case = {**draw_parts(draw), "saves_drift": True}
    yield from (case, {**case, "dropout": 0.3})


@check(given.push, _PASSED_7_4, _cases_7_4)
def push(case: Case, result: Result) -> None:
    expect.unchanged(result)
    expect_runs(result, case["sizes"])
    wanted = _one_backward(case, stages.gradients_to_push(case))
    seen = read.tensors(result["gradients"], len(wanted), "gradients")
    expect_gradients(seen, wanted, _faults(case, wanted), partial(_counted, case, seen))
    few, many = read_peaks(result)
    expect.fact(
        many <= 1.25 * few,
        f"with four times the micro-batches the peak went from {few} to {many} bytes: go backward "
        "from each before the next goes forward.",
    )


def _one_backward(case: Case, cached: Tensor, moment: Callable[[int], int] = int) -> list[Tensor]:
    """Go backward once, from all embeddings, each made in the moment with that number."""
    tower = towers.seeded_tower(case)
    embeddings = []
    for number, part in enumerate(towers.parts_of(case)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case["seed"] + moment(number))
            embeddings.append(tower(part))
    torch.cat(embeddings).backward(cached)  # type: ignore[no-untyped-call]
    return [p.grad for p in tower.parameters() if p.grad is not None]


def _of_one(case: Case, number: int) -> list[Tensor]:
    """Return the addition of one micro-batch to the gradients."""
    parts = torch.split(stages.gradients_to_push(case), case["sizes"])
    alone = torch.cat([part * (place == number) for place, part in enumerate(parts)])
    return [gradient - 1 for gradient in _one_backward(case, alone)]


def _faults(case: Case, wanted: list[Tensor]) -> Faults:
    cached, number = stages.gradients_to_push(case), len(case["sizes"])
    backward = partial(_one_backward, case)
    as_ones, last_alone = backward(torch.ones_like(cached)), _of_one(case, number - 1)
    new_ones = [gradient - 1 for gradient in wanted]
    yield from {
        "you didn't use the gradients, as if each were 1: pass them to backward.": as_ones,
        "the old .grad is gone: backward adds to it, so clear nothing.": new_ones,
        "only the last micro-batch is in .grad: you cleared or set it in the loop.": last_alone,
        "you ran every micro-batch in the first one's moment, and so with the first one's dropout "
        "masks.": backward(cached, lambda i: 0),
        "you entered the moments from the last to the first, but not the rows.": (
            backward(cached, lambda i: number - 1 - i)
        ),
        f"they are {number} times too small: they come from the loss of the whole batch, which "
        "is already a mean.": [1 + gradient / number for gradient in new_ones],
    }.items()


def _counted(case: Case, seen: Sequence[Tensor | None]) -> str:
    """Describe gradients that none of the usual faults gives."""
    if case["dropout"]:
        return "the dropout masks are not those of the first pass: enter moments[i] around run i."
    of_each = [_of_one(case, number) for number in range(len(case["sizes"]))]
    times = times_in(seen, [[torch.ones_like(g) for g in of_each[0]], *of_each])
    if not times:
        return "row i of the gradients belongs to row i of the batch: split them like the batch."
    return (
        f"what .grad held before counts {times[0]:.3g} times in them, and the micro-batches count "
        f"{', '.join(f'{n:.3g}' for n in times[1:])} times. Each counts once: the loss has taken "
        "the mean, so pass the cached gradients to backward as they are."
    )


def _cases_7_5(draw: Draw) -> Cases:
    yield {**draw_parts(draw), "dropout": 0.5, "moves": True}


@check(given.remember, _PASSED_7_5, _cases_7_5)
def remember(case: Case, result: Result) -> None:
    keys = ("moved_by_call", "not_restored", "not_put_back", "left_by_error")
    moved, lost, left, left_by_error = (read.items(result[key], key) for key in keys)
    at_entry = read.flag(result, "read_at_entry")
    kept = read.integer(result["kept"], "bytes of three moments")
    needed = read.integer(result["needed"], "bytes of random state and buffers")
    on_gpu = str(result["error_on_gpu"])[:160]
    expect.no_fault(
        {
            "your call moved the random state or a buffer, so the first pass differs from a plain "
            "run: only read.": bool(moved),
            **_random_faults(RANDOM in lost, at_entry, RANDOM in left),
            **_buffer_faults(*[[str(n) for n in names if n != RANDOM] for names in (lost, left)]),
            "random state and buffers were right, but the tower computed a different "
            "result.": not read.flag(result, "same"),
            "after an error inside the moment, random state or buffers aren't put back: use try "
            "and finally.": bool(left_by_error),
            "an error inside the moment was swallowed: put back in finally, and let the error "
            "pass.": not read.flag(result, "errors_come_out"),
            "entered a second time, the moment was different: don't use up what you "
            "read.": not read.flag(result, "same_again"),
            f"three moments hold {kept} bytes, and {needed} are enough: random state and buffers "
            "change, parameters don't.": kept > 1.1 * needed,
            f"a parameter of the tower is on a GPU, and this came: {on_gpu}. Read and write random "
            "state and buffers, not parameters.": bool(on_gpu),
            "a parameter of the tower is on a GPU, which drew different numbers the second time: "
            "read_rng and write_rng are for that GPU's random state "
            "too.": read.integer(result["inside"], "inside") != case["seed"] % 100,
            "the random state of a GPU stayed as the second run left it: put it back, as the "
            "CPU's.": not read.flag(result, "put_back"),
        }
    )


def _random_faults(is_lost: bool, read_at_entry: bool, is_left: bool) -> dict[str, bool]:
    return {
        "dropout drew a different mask the second time: the random state inside was neither the "
        "one that remember found nor the one just before. A seed only restores its beginning: keep "
        "the state itself.": is_lost and not read_at_entry,
        "dropout drew a different mask the second time: you read the random state when the moment "
        "was entered. Read it above, before the moment.": is_lost and not is_left,
        "dropout drew a different mask the second time: inside the moment, set the random state "
        "that you read when remember was called.": is_lost,
        "the second run drew the right mask but left its random state behind: the next batch would "
        "draw the same masks again. Put back what was there.": is_left,
    }


def _buffer_faults(lost: list[str], left: list[str]) -> dict[str, bool]:
    return {
        "all buffers were as the last micro-batch left them, so the tower computed something else: "
        "they belong to the moment too.": len(lost) == len(_BUFFERS),
        "a buffer with persistent=False is in no state_dict, so it was not in your moment: "
        "named_buffers has them all.": lost == ["inner.hidden"],
        "you left out an integer buffer: BatchNorm counts its batches in one, and it changes like "
        "the others.": lost == ["inner.steps"],
        "the tower's own buffer was in your moment, but those of a module inside the tower were "
        "not: named_buffers() lists both.": lost == list(_BUFFERS[1:]),
        "the tower changed a buffer in place, and your copy with it: you kept the same tensor, so "
        "keep a clone.": "drift" in lost,
        "the tower replaces one of its buffers by a new tensor, but you wrote into the old one: "
        "look up buffers by name when you write.": bool(lost) or left == ["inner.turned"],
        f"the buffers {', '.join(left)} were right inside the moment and were not put back when it "
        "was left: after both passes each micro-batch has moved them once.": bool(left),
    }
