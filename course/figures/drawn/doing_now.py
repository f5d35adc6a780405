"""What a long cell is doing, shown below it while it runs and gone when it is done."""

import contextlib
import html
from collections.abc import Callable, Iterator

import pandas as pd
from IPython.display import HTML, display


@contextlib.contextmanager
def doing(words: str = "") -> Iterator[Callable[..., None]]:
    """Show below a cell what it is doing, until the block ends.

    Args:
        words: What comes first.

    Yields:
        A function that shows other words, and a table of what is known so far.
    """
    shown = display(HTML(""), display_id=True)  # None where no notebook is

    def show(text: str) -> None:
        if shown is not None:
            shown.update(HTML(text))

    def tell(words: str, table: pd.DataFrame | None = None) -> None:
        so_far = "" if table is None else table.to_html()
        show(f"<p><em>{html.escape(words)} ...</em></p>{so_far}")

    try:
        if words:
            tell(words)
        yield tell
    finally:
        show("")  # nothing is left that a later run could differ in
