"""Write train.py as it is after a chapter, with the levers of all chapters up to it.

    python course/train/states.py 08 my_train.py

writes the script as it is after chapter 08: start from it if you skipped chapters, or if yours no
longer runs. A file that is there already is kept beside it, as `my_train.before.py` (or before2).
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


def sources_of(function, name):
    """Return the text of what a function calls of its own notebook, and its own, by name."""
    found, pending = {name: textwrap.dedent(inspect.getsource(function))}, [name]
    while pending:
        for node in ast.walk(ast.parse(found[pending.pop()])):
            part = function.__globals__.get(node.id) if isinstance(node, ast.Name) else None
            own = getattr(part, "__module__", "") == function.__module__
            if own and part is not function and node.id not in found:
                found = {node.id: textwrap.dedent(inspect.getsource(part))} | found
                pending.append(node.id)
    found[name] = re.sub(r"def \w+\(", f"def {name}(", found[name], count=1)
    return found


def put(text, name, source, path, before):
    """Put a function's source into a script's text: in its place, else before another one."""
    places = {
        node.name: (node.lineno - 1, node.end_lineno)
        for node in ast.parse(text, path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    if before not in places:
        raise ValueError(f"{path} has no function {before} to replace: begin with states.py.")
    lines, source = text.splitlines(keepends=True), source.strip() + "\n"
    start, end = places.get(name, places[before])
    lines[start : end if name in places else start] = [
        source if name in places else f"{source}\n\n"
    ]
    return "".join(lines)


def script(functions, path=HERE / "train.py"):
    """Return the text of a script with these functions, by name, in place of its own.

    Raises:
        SyntaxError: When the script is no Python, with its line.
        ValueError: When it lacks a function.
    """
    text = Path(path).read_text(encoding="utf-8")
    for name, function in functions.items():
        for part, source in sources_of(function, name).items():
            text = put(text, part, source, str(path), before=name)
    last = "from tutorial_lib.models.gpt import GPT, GPTConfig\n"
    return text if MORE in text else text.replace(last, last + MORE)


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


def write(path, text):
    """Write a script, and keep what the file had as NAME.before.py, .before2.py and so on."""
    path = Path(path)
    names = (path.with_suffix(f".before{number}.py") for number in ("", *range(2, 1000)))
    if path.exists():
        path.replace(next(name for name in names if not name.exists()))
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write(sys.argv[2], script(functions_after(sys.argv[1])))
