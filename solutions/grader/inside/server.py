"""The start of the fork server: it leaves the installed course for its view before all else.

Nothing of this library but the grader's own files may be imported above: what this process holds in
memory, the process of every answer inherits.
"""

from pathlib import Path

from solutions.grader.inside import view
from solutions.grader.launch import take_order


def serve() -> None:
    """Enter the view, then serve; see `forks.serve` for what the order holds."""
    channel, order = take_order()
    hidden = view.enter(Path(order["view"]), order["package"])

    from solutions.grader.inside import forks

    forks.serve(order, hidden, channel)
