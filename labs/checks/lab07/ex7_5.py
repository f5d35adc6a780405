"""The check of 7.5, moments: random state and buffers, as they were before a run."""

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given
from .expectations import draw_parts
from .given.stages import RANDOM

_PASSED = "random state and buffers of the first pass, put back afterwards, and no weights kept"
_BUFFERS = ("drift", "inner.hidden", "inner.turned", "inner.steps")


def _cases(draw: Draw) -> Cases:
    yield {**draw_parts(draw), "dropout": 0.5, "moves": True}


@check(given.remember, _PASSED, _cases)
def remember(case: Case, result: Result) -> None:
    keys = ("moved_by_call", "not_restored", "not_put_back", "left_by_error")
    moved, lost, left, left_by_error = (read.items(result[key], key) for key in keys)
    at_entry = read.flag(result, "read_at_entry")
    kept = read.integer(result["kept"], "bytes of three moments")
    needed = read.integer(result["needed"], "bytes of random state and buffers")
    on_gpu = str(result["error_on_gpu"])[:160]
    expect.no_fault(
        {
            "your call moved the random state or a buffer, so the first pass is another than a "
            "plain run: read, and change nothing.": bool(moved),
            **_random_faults(RANDOM in lost, at_entry, RANDOM in left),
            **_buffer_faults(*[[str(n) for n in names if n != RANDOM] for names in (lost, left)]),
            "random state and buffers were right, and the tower computed another "
            "result.": not read.flag(result, "same"),
            "an error inside the moment leaves random state or buffers behind: try and "
            "finally.": bool(left_by_error),
            "an error inside the moment ended there, and nobody heard of it: put back in finally, "
            "and let it go on.": not read.flag(result, "errors_come_out"),
            "the second time, the moment was another: what was read must still be there after one "
            "use.": not read.flag(result, "same_again"),
            f"three moments hold {kept} bytes, and {needed} are enough: random state and buffers "
            "move, parameters do not.": kept > 1.1 * needed,
            f"a parameter of the tower lives on a GPU, and this came: {on_gpu}. Random state and "
            "buffers are read and written, parameters are not.": bool(on_gpu),
            "a parameter of the tower lives on a GPU, which drew other numbers the second time: "
            "read_rng and write_rng are for that GPU's random state "
            "too.": read.integer(result["inside"], "inside") != case["seed"] % 100,
            "the random state of a GPU stayed as the second run left it: put it back, as the "
            "CPU's.": not read.flag(result, "put_back"),
        }
    )


def _random_faults(is_lost: bool, read_at_entry: bool, is_left: bool) -> dict[str, bool]:
    return {
        "dropout drew another mask the second time: the random state inside was neither the one "
        "that remember found nor the one just before. A seed leads back to its beginning only: "
        "keep the state itself.": is_lost and not read_at_entry,
        "dropout drew another mask the second time, and the random state was put back: it was read "
        "when the moment was entered. Read it in the upper part.": is_lost and not is_left,
        "dropout drew another mask the second time: inside the moment, the random state is the one "
        "that was read when remember was called.": is_lost,
        "the second run drew the right mask and left its random state behind: the next batch would "
        "draw masks that were drawn before. Put back what was there.": is_left,
    }


def _buffer_faults(lost: list[str], left: list[str]) -> dict[str, bool]:
    return {
        "all buffers were what the last micro-batch had made of them, so the tower computed "
        "something else: they belong to the moment too.": len(lost) == len(_BUFFERS),
        "a buffer with persistent=False is in no state_dict, so it was not in your moment: "
        "named_buffers has them all.": lost == ["inner.hidden"],
        "a buffer of whole numbers was left out: BatchNorm counts its batches so, and it moves "
        "like the others.": lost == ["inner.steps"],
        "the tower's own buffer was in your moment, and those of a module inside the tower were "
        "not: it may have any number of layers.": lost == list(_BUFFERS[1:]),
        "a buffer that the tower changes in place took your copy along: what you keep is the same "
        "tensor, so keep a clone.": "drift" in lost,
        "the tower puts a new tensor in the place of one of its buffers, and you wrote into the "
        "old one: look buffers up by name when you write.": bool(lost) or left == ["inner.turned"],
        f"the buffers {', '.join(left)} were right inside the moment and were not put back when it "
        "was left: after both passes each micro-batch has moved them once.": bool(left),
    }
