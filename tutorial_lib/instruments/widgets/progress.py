"""What a long cell is doing: said below it, replaced in place, and gone when the cell is done."""

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
    shown = display(HTML(""), display_id=True)

    def tell(words: str, table: pd.DataFrame | None = None) -> None:
        so_far = "" if table is None else table.to_html()
        shown.update(HTML(f"<p><em>{html.escape(words)} ...</em></p>{so_far}"))

    try:
        if words:
            tell(words)
        yield tell
    finally:
        shown.update(HTML(""))  # nothing is left that a later run could differ in
