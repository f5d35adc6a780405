"""Definitions of a notebook, loaded without running what it measures."""

import ast
import linecache
import sys
import types
from pathlib import Path

from tutorial_lib.school import marks
from tutorial_lib.school.authoring.files import AuthoringError, read_notebook
from tutorial_lib.school.authoring.source import python_of

_CONSTANT_PARTS = (
    ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Set, ast.Dict,
    ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip


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
    if isinstance(node, ast.Assign):
        return all(map(_is_constant_name, node.targets)) and _is_constant(node.value)
    if isinstance(node, ast.AnnAssign):
        is_named = _is_constant_name(node.target)
        return is_named and node.value is not None and _is_constant(node.value)
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return isinstance(node, kinds)


def _is_constant_name(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id.isupper()


def _is_constant(value: ast.expr) -> bool:
    return all(
        isinstance(part, _CONSTANT_PARTS)
        and not (isinstance(part, ast.Name) and not part.id.isupper())
        for part in ast.walk(value)
    )
