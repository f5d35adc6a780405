"""Functions that a chapter leaves to its reader: ours while they are blank, and a check."""

import inspect
import textwrap
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch

_TRY = {  # where PyTorch stops a filling with these words
    "Backward returned a": "Return one for each argument of `forward` after ctx, in order.",
    "implicitly created": "Does that backward begin with the gradient that came in?",
    "a second time": "Do two backward calls share a graph, or a tensor that isn't detached?",
    "does not require grad": "Were gradients on in that forward, and did an input require one?",
    "'tuple' object": "Is something there a tuple, as `ctx.saved_tensors` is?",
}


def unless_written(yours: Any) -> Callable[[Any], Any]:
    """Decorate the course's version of a blank: it runs, and says so, while yours is not written.

    Args:
        yours: The reader's function or class; a class is blank if any of its methods is.
    """

    def choose(ours: Any) -> Any:
        parts = vars(yours).values() if isinstance(yours, type) else [yours]
        codes = (getattr(inspect.unwrap(part), "__code__", None) for part in parts)
        if not any(map(raises_blank, filter(None, codes))):
            return yours
        print(f"{ours.__name__} is blank above: ours runs instead.")
        return ours

    return choose


def raises_blank(code: types.CodeType) -> bool:
    """Tell whether code, or that of a function within it, names `NotImplementedError`."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return "NotImplementedError" in code.co_names or any(map(raises_blank, inner))


class FillingError(AssertionError):
    """A filling did not pass: says what is wrong, without the lines of the check."""

    def _render_traceback_(self) -> list[str]:
        """Show the message alone, as a lab's check does."""
        return textwrap.wrap(f"AssertionError: {self}", 88)


def check(name: str, needed: str) -> Callable[[Callable[[], None]], None]:
    """Decorate a check of what a reader wrote: it runs at once, and says in words what is wrong.

    A failed `assert` of the check shows its message alone. Any other error, such as that of a
    function that raises or returns None, becomes sentences: what came, what was needed, what to
    try. The CPU's random state is put back, and no name of the check stays behind.

    Args:
        name: Name of the function or class that is checked.
        needed: What it has to do, as in "return a dict from number to tensor".

    Raises:
        AssertionError: When anything within is wrong.

    Example:
        >>> check("half", "return half of x")(lambda: {}[4])
        Traceback (most recent call last):
        AssertionError: This check of `half` stopped at KeyError: 4. It needs to return half of x.
    """

    def run(body: Callable[[], None]) -> None:
        try:
            with torch.random.fork_rng(devices=[]):
                body()
        except Exception as error:
            raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
            if isinstance(error, AssertionError) and raised_in == body.__code__.co_filename:
                raise FillingError(str(error)) from None
            seen = f"{type(error).__name__}: {error}".split("\n")[0].split(". ")[0].rstrip(":. ")
            tries = [f" {what}" for words, what in _TRY.items() if words in seen]
            said = f"This check of `{name}` stopped at {seen}. It needs to {needed}."
            raise AssertionError("".join([said, *tries])) from error
        print(f"{name} passes.")

    return run
