"""Write train.py as it is after a chapter, with the levers of all chapters up to it.

    python course/train/states.py 08 my_train.py

writes the script as it is after chapter 08: start from it if you skipped chapters, or if yours no
longer runs. A file that is there already is kept beside it, as `my_train.before.py`.
"""

import ast
import inspect
import json
import linecache
import re
import sys
import textwrap
import types
from pathlib import Path

HERE = Path(__file__).parent
MORE = """from functools import partial
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

train = sys.modules[__name__]  # so the functions from the notebooks call those of this script
"""
# Chapters, the name of each lever, and the functions of the chapter in place of train.py's.
CHAPTERS = {
    "02": ("as written", {}),
    "05": ("checkpoints", {"hidden_of": "hidden_of"}),
    "07": ("attention kept", {"hidden_of": "hidden_of"}),
    "08": ("micro-batches", {"update": "in_micro_batches"}),
    "09": ("means by targets", {"update": "by_targets"}),
    "10d": ("loss in chunks", {"loss_of": "loss_of"}),
    "14": ("fused AdamW", {"make": "make_fused"}),
}


def sources_of(function, name, taken=()):
    """Return a function's text under a name, after that of what it calls of its own notebook."""
    text, found = textwrap.dedent(inspect.getsource(function)), {}
    pending = [text]
    while pending:
        for node in ast.walk(ast.parse(pending.pop())):
            part = function.__globals__.get(node.id) if isinstance(node, ast.Name) else None
            own = getattr(part, "__module__", "") == function.__module__
            if own and part is not function and node.id not in (*found, *taken):
                found[node.id] = textwrap.dedent(inspect.getsource(part))
                pending.append(found[node.id])
    text = re.sub(r"def \w+\(", f"def {name}(", text, count=1)
    return "\n\n\n".join(part.strip() for part in [*reversed(found.values()), text]) + "\n"


def script(functions):
    """Return the text of train.py with these functions, by name, in place of its own."""
    text = (HERE / "train.py").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            theirs = sources_of(functions[node.name], node.name)
            lines[node.lineno - 1 : node.end_lineno] = [theirs]
    last = "from tutorial_lib.models.gpt import GPT, GPTConfig\n"
    return "".join(lines).replace(last, last + MORE)


def load(notebook, name):
    """Return a function of a notebook, which is not run: only what the function uses is.

    That is the functions and classes that it names, and imports.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    body, used, pending = ast.parse(text).body, [], [name]
    defined = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names = set()
    while pending:
        one = pending.pop()
        if one in defined and one not in names:
            used.append(defined[one])
            pending += [n.id for n in ast.walk(defined[one]) if isinstance(n, ast.Name)]
        names.add(one)
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound = {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            used += [node] if bound & names else []
    lines = [ast.get_source_segment(text, node) for node in sorted(used, key=lambda n: n.lineno)]
    source, module = "\n\n\n".join(lines), types.ModuleType(f"{name} of {notebook.stem}")
    module.__file__ = f"<{module.__name__}>"  # inspect finds the text by this name
    sys.modules[module.__name__] = module
    linecache.cache[module.__file__] = len(source), None, source.splitlines(True), module.__file__
    exec(compile(source, module.__file__, "exec"), vars(module))
    return getattr(module, name)


def functions_after(chapter):
    """Return the functions that have replaced the script's own after a chapter, by name.

    Raises:
        SystemExit: When the chapter has no lever.
    """
    if chapter not in CHAPTERS:
        raise SystemExit(f"{chapter!r} has no lever: name one of {', '.join(CHAPTERS)}.")
    found = {}
    for number in [*CHAPTERS][: 1 + [*CHAPTERS].index(chapter)]:
        (notebook,) = HERE.parent.glob(f"{number}_*.ipynb")
        found |= {name: load(notebook, theirs) for name, theirs in CHAPTERS[number][1].items()}
    return found


def write(path, functions):
    """Write the script with these functions, and keep what the file had as NAME.before.py."""
    path = Path(path)
    text = script(functions)
    if path.exists():
        path.replace(path.with_suffix(".before.py"))
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write(sys.argv[2], functions_after(sys.argv[1]))
