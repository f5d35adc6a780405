"""Write train.py with other functions in place of its own: a learner's, or those of a chapter.

    python course/train/states.py 08 my_train.py

writes the script as it is after chapter 08's lever: start from it if you skipped chapters, or if
yours no longer runs. A file that is there already is kept beside it, as `my_train.before.py`.
"""

import ast
import inspect
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
MORE = """from torch.utils.checkpoint import checkpoint

train = sys.modules[__name__]  # so the functions from the notebook call those of this script
"""
# Chapters, and the function that each replaces.
CHAPTERS = {"05": "hidden_of", "08": "update", "10d": "loss_of", "10e": "make"}


def script(functions):
    """Return the text of train.py with these functions, by name, in place of its own."""
    text = (HERE / "train.py").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            theirs = textwrap.dedent(inspect.getsource(functions[node.name]))
            lines[node.lineno - 1 : node.end_lineno] = [theirs]
    last = "from tutorial_lib.models.gpt import GPT, GPTConfig\n"
    return "".join(lines).replace(last, last + MORE)


def functions_after(chapter):
    """Return the functions that have replaced the script's own after a chapter, by name.

    Raises:
        SystemExit: When the chapter has no lever.
    """
    from tutorial_lib.school.authoring import load_definitions

    if chapter not in CHAPTERS:
        raise SystemExit(f"{chapter!r} has no lever: name one of {', '.join(CHAPTERS)}.")
    ours = load_definitions(HERE.parent / "10e_your_run.ipynb")
    names = [*CHAPTERS.values()][: 1 + [*CHAPTERS].index(chapter)]
    return {name: getattr(ours, name) for name in names}


def write(path, functions):
    """Write the script with these functions, and keep what the file had as NAME.before.py."""
    path = Path(path)
    if path.exists():
        path.replace(path.with_suffix(".before.py"))
    path.write_text(script(functions), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write(sys.argv[2], functions_after(sys.argv[1]))
