"""Write train.py as it is after a chapter, with the levers of all chapters up to it.

    python course/train/states.py 08 my_train.py

writes the script as it is after chapter 08: start from it if you skipped chapters, or if yours no
longer runs. (After chapter 13 it runs on several cards, by `torchrun`.) A file that is there
already is kept beside it, as `my_train.before.py` (or before2).
"""

import ast
import inspect
import json
import linecache
import pprint
import re
import subprocess
import sys
import textwrap
import types
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath

import torch

HERE = Path(__file__).parent
ITSELF = "train = sys.modules[__name__]  # so the functions from notebooks call the script's"
DEFINED = ast.FunctionDef | ast.ClassDef
IMPORTS = ast.Import | ast.ImportFrom
REMADE = partial | PurePath | torch.dtype | torch.device  # by the statement that made it
# Chapters, the name of each lever, and the functions of the chapter in place of train.py's.
CHAPTERS = {
    "02": ("as written", {}),
    "05": ("checkpoints", {"hidden_of": "hidden_of"}),
    "06c": ("a plan", {"hidden_of": "hidden_of"}),
    "07": ("attention kept", {"hidden_of": "hidden_of"}),
    "08": ("micro-batches", {"update": "in_micro_batches"}),
    "09": ("means by targets", {"update": "by_targets"}),
    "10d": ("loss in chunks", {"loss_of": "loss_of"}),
    "13": ("each of two ranks", {"make": "make_divided", "update": "on_ranks"}),
    "14": ("fused AdamW", {"make": "make_fused"}),
}
RANKS = {"13": 2}  # levers for several ranks, on which no later chapter builds


def names_in(source):
    """Return the names that a piece of code takes from outside, sorted."""
    used, bound = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, DEFINED):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name)
    return sorted(used - bound)


def names_at(node, how):
    """Return the names that a node loads or stores, as `ast.Load` or `ast.Store`."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, how)}


def lines_of(node):
    """Return where a statement begins, with its decorators, and ends."""
    first = min([node, *getattr(node, "decorator_list", [])], key=lambda n: n.lineno)
    return first.lineno - 1, node.end_lineno


def bound_by(node):
    """Return the names that a statement defines, imports or sets."""
    if isinstance(node, DEFINED):
        return [node.name]
    if isinstance(node, IMPORTS):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    return [node.targets[0].id] if is_value(node) else []


def is_value(node):
    """Tell whether a statement sets one name."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def source_of(part, cells):
    """Return the text of a function or class of a notebook, whose cells are these files."""
    if not isinstance(part, type):
        return textwrap.dedent(inspect.getsource(part))
    # In a notebook, inspect finds no class, but a function of it; else the last cell that has one.
    codes = [inspect.unwrap(f).__code__ for f in vars(part).values() if inspect.isfunction(f)]
    return statement(part.__name__, [*(text_of(code.co_filename) for code in codes), *cells])


def text_of(file):
    """Return the text of a file or a cell."""
    return "".join(linecache.getlines(file))


def cells_beside(function):
    """Return the texts of a notebook's cells, the last that was run first."""
    file = inspect.unwrap(function).__code__.co_filename
    files = [file, *(f for f in reversed(linecache.cache) if Path(f).parent == Path(file).parent)]
    return [*reversed(function.__globals__.get("In", [])), *map(text_of, files)]


def sets(node, name):
    """Tell whether a statement, outside functions and classes, binds a name in any way."""
    stored = not isinstance(node, DEFINED) and name in names_at(node, ast.Store)
    return stored or name in bound_by(node)


def statement(name, texts):
    """Return the text of the statement that binds a name last, in the first text that has one."""
    for text in dict.fromkeys(texts):
        with suppress(SyntaxError):  # a cell with %magic
            nodes = [node for node in ast.parse(text).body if sets(node, name)]
            if nodes:
                last = nodes[-1]
                made_of_itself = is_value(last) and name in names_at(last, ast.Load)
                if made_of_itself or name not in bound_by(last):
                    break
                start, end = lines_of(last)
                return textwrap.dedent("".join(text.splitlines(keepends=True)[start:end]))
    raise OSError(f"no cell has {name} in one statement")


def import_of(name, part):
    """Return the line that makes a name in a script what it is in a notebook; None if none can."""
    if isinstance(part, types.ModuleType):
        if part.__name__ == "train":
            return ITSELF
        home, own = part.__name__, None
        found = sys.modules.get(home)
    else:
        home, own = getattr(part, "__module__", None), getattr(part, "__name__", None)
        found = getattr(sys.modules.get(home), own or "", None)
    if home and found is part:
        alias = "" if name == (own or home) else f" as {name}"
        return f"from {home} import {own}{alias}" if own else f"import {home}{alias}"
    try:
        text = pprint.pformat(part, width=90, compact=True)
        return f"{name} = {text}" if ast.literal_eval(text) == part else None
    except (SyntaxError, ValueError):
        return None


def parts_of(function, name):
    """Return what a notebook's function needs in a script, its own text as `name`, the last.

    That is, by name, the text of each function or class of the notebook that it calls, and a line
    for each import and each plain value, as a number, nested tuples of them, a dtype or a partial.

    Raises:
        ValueError: When it uses something else.
    """
    known, found, begun = function.__globals__, {}, {name}
    cells = cells_beside(function)

    def add(user, text):
        for each in names_in(text):
            part = known.get(each)
            if each in begun or part is function or each not in known:
                continue
            begun.add(each)
            own = hasattr(part, "__qualname__") and part.__module__ == function.__module__
            with suppress(OSError):
                if own:
                    add(each, source_of(part, cells))
                elif plain := import_of(each, part):
                    found[each] = plain
                elif isinstance(part, REMADE):
                    add(each, statement(each, cells))
            if each not in found:
                raise ValueError(
                    f"{user} uses {each}, of type {type(part).__name__}, which no script can "
                    f"take over from a notebook: make it inside {user}."
                )
        found[user] = text

    add(name, source_of(function, cells))
    found[name] = re.sub(r"def \w+\(", f"def {name}(", found[name], count=1)
    return found


def put(text, name, source, path, before):
    """Put a part into a script's text: in place of what has its name, else before a function.

    Imports go below the script's own, which stay.
    """
    body = ast.parse(text, path).body
    places = {node.name: lines_of(node) for node in body if isinstance(node, DEFINED)}
    if before not in places:
        raise ValueError(f"{path} has no function {before} to replace: begin with states.py.")
    values = {node.targets[0].id: lines_of(node) for node in body if is_value(node)}
    imports = [node for node in body if isinstance(node, IMPORTS)]
    lines, source = text.splitlines(keepends=True), source.strip() + "\n"
    if not isinstance(ast.parse(source).body[0], IMPORTS):
        start, end = (places | values).get(name, (places[before][0],) * 2)
        source += "\n\n" * (start == end)
    elif name in {bound for node in imports for bound in bound_by(node)}:
        return text
    else:
        start = end = max((node.end_lineno for node in imports), default=0)
    return "".join([*lines[:start], source, *lines[end:]])


def script(functions, path=HERE / "train.py"):
    """Return the text of a script with these functions, by name, in place of its own.

    Raises:
        SyntaxError: When the script is no Python, with its line.
        ValueError: When it lacks a function, or a function uses what no script can have.
    """
    text = Path(path).read_text(encoding="utf-8")
    body = ast.parse((HERE / "train.py").read_text("utf-8")).body
    own = {name: isinstance(node, IMPORTS) for node in body for name in bound_by(node)}
    for name, function in functions.items():
        for part, source in parts_of(function, name).items():
            kept = part == name or part in functions or source in text
            imported = own.get(part) and source.startswith(("import", "from"))
            if part in own and not kept and not imported:
                raise ValueError(f"{name} uses {part}, and train.py has another {part}: rename it.")
            text = put(text, part, source, str(path), before=name)
    return text


def load(notebook, name):
    """Return a function of a notebook, which is not run: only what the function uses is.

    That is what it names: functions, classes, imports, and values with what they use in turn.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    lines, used, pending, names = text.splitlines(keepends=True), {}, [name], set()
    nodes = [(bound, node) for node in ast.parse(text).body for bound in bound_by(node)]
    while pending:
        one = pending.pop()
        names.add(one)
        for node in (node for bound, node in nodes if bound == one):
            start, end = lines_of(node)
            used[start] = "".join(lines[start:end])
            pending += {*names_in(used[start])} - names
    source, module = "\n\n".join(used[at] for at in sorted(used)), types.ModuleType(notebook.stem)
    module.__name__ = f"{name} of {notebook.stem}"
    module.__file__ = f"<{module.__name__}>"  # inspect finds the text by this name
    sys.modules[module.__name__] = module
    linecache.cache[module.__file__] = len(source), None, source.splitlines(True), module.__file__
    exec(compile(source, module.__file__, "exec"), vars(module))
    return getattr(module, name)


def functions_of(*chapters):
    """Return the functions of these chapters that replace the script's own, by name."""
    found = {}
    for number in chapters:
        (notebook,) = HERE.parent.glob(f"{number}_*.ipynb")
        found |= {name: load(notebook, theirs) for name, theirs in CHAPTERS[number][1].items()}
    return found


def functions_before(chapter):
    """Return the functions that have replaced the script's own before a chapter, by name."""
    order = [*CHAPTERS]
    return functions_of(*[each for each in order[: order.index(chapter)] if each not in RANKS])


def functions_after(chapter):
    """Return the functions that have replaced the script's own after a chapter, by name.

    Raises:
        SystemExit: When the chapter has no lever.
    """
    if chapter not in CHAPTERS:
        raise SystemExit(f"{chapter!r} has no lever: name one of {', '.join(CHAPTERS)}.")
    return functions_before(chapter) | functions_of(chapter)


def write(path, text):
    """Write a script, and keep what the file had as NAME.before.py, .before2.py and so on."""
    path = Path(path)
    names = (path.with_suffix(f".before{number}.py") for number in ("", *range(2, 1000)))
    if path.exists():
        path.replace(next(name for name in names if not name.exists()))
    path.write_text(text, encoding="utf-8")


def trial(path):
    """Train a script's twin; return how many updates it did, or where it stopped, and why."""
    command = [sys.executable, str(path), "--twin"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if not ran.returncode:
        return f"{ran.stdout.count('loss')} updates"
    *_, why = ran.stderr.strip().splitlines()
    lines = re.findall(rf'{re.escape(Path(path).name)}", line (\d+)', ran.stderr) or ["1"]
    return f"{path} stopped in line {lines[-1]} at {why}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write(sys.argv[2], script(functions_after(sys.argv[1])))
