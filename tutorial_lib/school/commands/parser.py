"""The parser of every command. Standard library only, and no syntax newer than Python 3.8."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import ModuleType

from tutorial_lib.school.commands import table


class _Help(argparse.HelpFormatter):
    """Keeps paragraphs, and lines that are indented; shows the defaults that say something."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        def filled(paragraph: str) -> str:
            if paragraph.startswith("  "):
                return paragraph.rstrip()
            return super(_Help, self)._fill_text(paragraph, width, indent)

        return "\n\n".join(map(filled, text.strip().split("\n\n")))

    def _get_help_string(self, action: argparse.Action) -> str:
        told = action.default not in (None, False, [], argparse.SUPPRESS)
        return f"{action.help} [default: %(default)s]" if told else str(action.help)


def make(name: str, module: ModuleType) -> argparse.ArgumentParser:
    """Make a command's parser: its module adds what the command takes."""
    parser = argparse.ArgumentParser(
        prog=f"{table.PROGRAM} {name}",
        description=module.__doc__,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    module.options(parser)
    if name not in ("lab", "test"):
        parser.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def parse(name: str, module: ModuleType, words: Sequence[str]) -> argparse.Namespace:
    """Read the words that follow a command.

    Returns:
        The options; `words` as they came; and as `rest` what is meant for another program: the
        words behind `--` of `emulate`, and what `test` does not know, which is pytest's.
    """
    ours = list(words)
    rest: list[str] = []
    parser = make(name, module)
    if name == "test":
        options, rest = parser.parse_known_args(ours)
    else:
        if name == "emulate" and "--" in ours:
            behind = ours.index("--")
            ours, rest = ours[:behind], ours[behind + 1 :]
        options = parser.parse_intermixed_args(ours)
    options.words, options.rest = list(words), rest
    return options
