"""How much of a core chapter's code its reader writes: `python tests/written.py` prints it."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tutorial_lib.school.authoring.answers import take_apart_blanks  # noqa: E402
from tutorial_lib.school.authoring.source import read_source  # noqa: E402

CORE = ("02", "04", "05", "06", "06c", "07", "07d", "08", "09", "10d", "13", "14")
SHOWS = {"plots", "figures", "print", "pd", "widgets"}
ASIDE = ("# @title", "guess = None", "claims.Verdict", "@blanks.check")


def written_and_given(source):
    """Count the lines of code that a reader writes, and those that the chapter gives.

    A line of code is one that is neither empty nor a comment nor part of a docstring. Aside are
    imports; checks, guesses and verdicts; data, which is a literal with a name; and what shows a
    result, which is a statement that calls `print`, pandas or a figure.
    """
    cells = read_source(source)
    blanks = take_apart_blanks(cells)
    written = sum(
        not line.startswith("#")
        for answer in blanks.values()
        for secret in answer.secrets
        for line in secret
    )
    code = [cell for cell in cells if cell.kind == "code" and not is_aside(cell.text)]
    texts = [blanks[cell.id].solution if cell.id in blanks else cell.text for cell in code]
    return written, sum(map(lines_of_code, texts)) - written


def is_aside(text):
    """Tell whether a cell is a check, a guess or a verdict."""
    return text.lstrip().startswith(ASIDE) or any(mark in text for mark in ASIDE[2:])


def lines_of_code(text):
    """Count the lines of a cell that do the chapter's work."""
    tree = ast.parse(text)
    aside = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and is_no_work(node)
        for number in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(text.split("\n"), 1)
    return sum(line.strip()[:1] not in ("", "#") and number not in aside for number, line in lines)


def is_no_work(node):
    """Tell whether a statement imports, names data, shows a result, or is a docstring."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if not isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign):
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        called = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
        return any(SHOWS & {n.id for n in ast.walk(f) if isinstance(n, ast.Name)} for f in called)
    return True


def main():
    """Print a table of the core chapters."""
    print("chapter  written  given  share")
    for number in CORE:
        (source,) = ROOT.glob(f"course/source/{number}_*.py")
        written, given = written_and_given(source)
        print(f"{number:>7}  {written:7}  {given:5}  {written / (written + given):5.0%}")


if __name__ == "__main__":
    main()
