"""What a piece of code needs from the cells above it: grading runs that, and no measurement.

A lab measures, plots and tries things out between its exercises. None of that is repeated for
every check of every submission: only the statements whose names are used, and what those use.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable, Sequence

_MAGIC_LINE = re.compile(r"^([ \t]*)[%!?].*$", re.MULTILINE)
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_EVERYTHING = "*"


def statements(source: str) -> list[ast.stmt]:
    """Parse a cell of the pristine notebook into its statements; magics are left out.

    Only for the course's own cells: parsing hostile text can end the process.
    """
    if source.lstrip().startswith("%%"):
        return []
    return ast.parse(_MAGIC_LINE.sub(r"\1pass", source)).body


def possible_names(source: str) -> set[str]:
    """List all words of a text that could be names, without parsing it."""
    return set(_IDENTIFIER.findall(source))


def used_names(source: str) -> set[str]:
    """List the names that a cell looks up outside its own functions.

    All its words when it is not Python. Parsing hostile text can end the process, so a student's
    cell is only looked at where it will be run.
    """
    try:
        top = symtable.symtable(source, "<cell>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return possible_names(source)
    names = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    tables = top.get_children()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return names


def bound_names(statement: ast.stmt) -> set[str]:
    """List the names that a statement defines or changes at the top level of its cell."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Expr):
        return {node.target.id for node in ast.walk(statement) if isinstance(node, ast.NamedExpr)}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(
            node.ctx, ast.Store | ast.Del
        ):
            names |= _base_name(node)
        elif isinstance(node, ast.stmt) and node is not statement:
            names |= bound_names(node)
    return names


def _base_name(node: ast.expr) -> set[str]:
    # config.width = 3 and table["a"] = 1 change what config and table name
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def needed(cells: Sequence[str], wanted: Iterable[Iterable[str]]) -> list[str]:
    """Cut every cell down to the statements that later code needs.

    Args:
        cells: Sources in notebook order. An empty one stands for a cell that is run elsewhere.
        wanted: For every cell, the names used by what runs elsewhere in its place.

    Returns:
        One source per cell, possibly empty; of an import, the names that are used.
    """
    names: set[str] = set()
    kept: list[str] = []
    for source, used_here in reversed(list(zip(cells, wanted, strict=True))):
        names |= set(used_here)
        parts = []
        for statement in reversed(statements(source)):
            bound = bound_names(statement)
            if bound & names or _EVERYTHING in bound or _is_future(statement):
                parts.append(ast.unparse(_trimmed(statement, names)))
                names |= used_names(parts[-1])
        kept.append("\n".join(reversed(parts)))
    return kept[::-1]


def _trimmed(statement: ast.stmt, names: set[str]) -> ast.stmt:
    # `from tutorial_lib import checks, plots` would load matplotlib for every submission
    if isinstance(statement, ast.Import | ast.ImportFrom) and not _is_future(statement):
        statement.names = [
            alias
            for alias in statement.names
            if (alias.asname or alias.name.split(".")[0]) in names or alias.name == _EVERYTHING
        ]
    return statement


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
