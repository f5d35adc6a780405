"""Definitions of a notebook, loaded without running what it measures."""

import ast
import linecache
import sys
import types
from pathlib import Path

from tutorial_lib.school import marks
from tutorial_lib.school.authoring.files import AuthoringError, read_notebook
from tutorial_lib.school.authoring.source import python_of


def load_definitions(notebook: Path) -> types.ModuleType:
    """Load the functions, classes and constants that a notebook defines.

    Of its code cells only these are executed: imports, `def`, `class`, and assignments of
    literals or other constants to UPPER_CASE names, all at the top level. Check cells are left
    out. `inspect.getsource` works on the result, and loading the notebook again gives a fresh one.

    Raises:
        AuthoringError: When the file is no notebook, a cell is no Python, or a definition
            needs something that only running the notebook would give.
    """
    text = "\n\n".join(
        python_of(cell.source)
        for cell in read_notebook(notebook).cells
        if cell.cell_type == "code" and not _is_check(cell.source)
    )
    filename = f"<definitions of {notebook.resolve()}>"
    try:
        body = [node for node in ast.parse(text).body if _defines(node)]
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise AuthoringError(f"{notebook} holds no Python at {line!r}: {error.msg}.") from error
    futures = [node for node in body if getattr(node, "module", "") == "__future__"]
    module = types.ModuleType(f"notebook {notebook.resolve()}")
    module.__file__ = filename
    lines = text.splitlines(keepends=True)
    linecache.cache[filename] = (len(text), None, lines, filename)
    # dataclasses and inspect look a class's module up by its name
    sys.modules[module.__name__] = module
    for node in body:
        code = compile(ast.Module([*futures, node], []), filename, "exec", dont_inherit=True)
        try:
            exec(code, module.__dict__)
        except Exception as error:
            raise AuthoringError(
                f"{notebook}: {lines[node.lineno - 1].strip()!r} cannot be loaded without running "
                f"the notebook ({type(error).__name__}: {error}): use names that are imported, "
                "defined or UPPER_CASE constants."
            ) from error
    return module


def _is_check(source: str) -> bool:
    mark = marks.cell_mark(source)
    of_a_chapter = source.startswith("# @title Check: ")
    return of_a_chapter or (mark is not None and mark.kind != "exercise")


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        named = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [part for one in (*named, node.value) if one for part in ast.walk(one)]
        names = [part.id for part in parts if isinstance(part, ast.Name)]
        runs = any(isinstance(part, ast.Call | ast.Subscript | ast.Attribute) for part in parts)
        return node.value is not None and not runs and all(map(str.isupper, names))
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return isinstance(node, kinds)
