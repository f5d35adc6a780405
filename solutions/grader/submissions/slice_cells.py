"""Slices of cells: the statements that a piece of code needs from above it, no measurement.

A lab measures, plots and tries things out between its exercises, and so do students. For each check
of a submission only the statements are repeated whose names are used, and what those use.
"""

import ast
import copy
import functools
import re
import symtable
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

# IPython's own lines. Python stands behind `%time` and below the first line of most cell magics.
_TIMED = re.compile(r"^([ \t]*)%time[ \t]+", re.MULTILINE)
_MAGIC_LINE = re.compile(
    r"^([ \t]*)([\w.]+[ \t]*=[ \t]*)?(?:[%!?].*|[\w.]+\?\??[ \t]*)$", re.MULTILINE
)
_NO_PYTHON = {
    *("bash", "sh", "script", "cmd", "system", "sx", "!", "perl", "ruby", "python", "python3"),
    *("html", "HTML", "javascript", "js", "svg", "SVG", "latex", "markdown", "writefile", "file"),
}
WRITES_A_FILE = ("%%writefile", "%%file")
RUNS_A_FILE = re.compile(r"^[ \t]*%run\b[ \t]*(\S*)", re.MULTILINE)
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_SCOPES: tuple[type[ast.AST], ...] = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SCOPES += (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_EVERYTHING = "*"
_ARGUMENTS = "()"  # stands for whatever a function is given
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_unparsed = functools.cache(ast.unparse)


def statements(source: str) -> list[ast.stmt]:
    """Parse a cell into its statements, without magics, or raise the SyntaxError in it.

    Parsing hostile text can end the process: of a student's cell, only in one to be thrown away.
    """
    return ast.parse(plain_python(source)).body


@functools.cache  # here and below: a submission's cells are cut for one exercise after the other
def tree_of(source: str) -> ast.Module | None:
    """Parse a cell that anybody may have written, once; None when it is not Python."""
    try:
        return ast.parse(plain_python(source))
    except _UNREADABLE:  # in a notebook it does not run either
        return None


def untimed(source: str) -> str:
    """Take cell magics such as `%%time` off a cell; empty when it is in another language."""
    while source.lstrip().startswith("%%"):
        magic, _, source = source.lstrip().partition("\n")
        if not _NO_PYTHON.isdisjoint(magic[2:].split()[:1]):
            return ""
    return _TIMED.sub(r"\1", source)


def plain_python(source: str) -> str:
    """Take all of IPython's own lines out of a cell; one that is Python comes back unchanged."""
    source = untimed(source)
    try:
        ast.parse(source)
    except _UNREADABLE:
        return _MAGIC_LINE.sub(lambda line: f"{line[1]}{line[2] or ''}None", source)
    return source


def possible_names(source: str) -> set[str]:
    """List all words of a text that could be names, without parsing it."""
    return set(_IDENTIFIER.findall(source))


@functools.cache
def used_names(source: str) -> set[str]:
    """List the names that a cell looks up outside its own functions.

    All its words when it is not Python; for a student's cell, see `statements`.
    """
    try:
        top = symtable.symtable(source, "<cell>", "exec")
    except _UNREADABLE:
        return possible_names(source)
    names = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    tables = top.get_children()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return names


@functools.cache
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
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            names |= _base_name(node)  # type: ignore[arg-type]
        elif isinstance(node, ast.stmt) and node is not statement:
            names |= bound_names(node)
    return names


def local_uses(nodes: Sequence[ast.AST], but: Collection[str]) -> set[int]:
    """List the uses, by id(), of names that a function gives a value itself, but for some names."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    uses: set[int] = set()
    for function in functions:
        own, todo = set[str](), list[ast.AST](function.body)
        for node in todo:  # which grows, but not by what has names of its own
            stores = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            own |= {node.id} if stores else set()  # type: ignore[attr-defined]
            todo += [] if isinstance(node, _SCOPES) else ast.iter_child_nodes(node)
        inside = list(ast.walk(function))
        for node in inside:
            own -= {*node.names} if isinstance(node, ast.Global) else set()
        uses |= {id(node) for node in inside if getattr(node, "id", "") in own - {*but}}
    return uses


def _base_name(node: ast.expr) -> set[str]:
    # config.width = 3 and table["a"] = 1 change what config and table name
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _changed_by_calls(statement: ast.stmt, functions: Mapping[str, set[str]]) -> set[str]:
    """List the names that calls for their effect may change, as in `box.append(1)`, `fill(box)`.

    A decorator and a base class are called too. `functions` says what the student's own change.
    """
    names: set[str] = set()
    for node in ast.walk(statement):
        called = [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", [])
        for one in [*called, *getattr(node, "bases", [])]:
            func = one.func if isinstance(one, ast.Call) else one
            if isinstance(func, ast.Attribute):
                names |= _base_name(func)
            elif isinstance(func, ast.Name) and func.id in functions:
                names |= functions[func.id]
                if _ARGUMENTS in functions[func.id]:
                    names |= set().union(*map(_base_name, getattr(one, "args", ())))
    return names


def _changed_inside(function: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """List what a call of a function may change: its own name, others', and its arguments."""
    inner = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
    names = set().union(*map(bound_names, inner), _changed_by_calls(function, {}))
    given = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return names | {_ARGUMENTS} if names & given else names


def up_to(steps: Sequence[Mapping[str, Any]], exercise: str) -> Sequence[Mapping[str, Any]]:
    """List the steps up to the last one of an exercise."""
    last = max(i for i, step in enumerate(steps) if step.get("group") == exercise)
    return steps[: last + 1]


def cut(
    steps: Sequence[Mapping[str, Any]],
    begin: Callable[[int], None] = lambda number: None,
    whole: bool = False,
) -> list[str]:
    """Cut the set-up and a student's own cells down to what answers, or checks, need.

    These stay whole, and so do own cells that write a file or run one, or all where `whole`. Before
    its text is parsed, which may end the process, `begin` is called with the number of a step.
    """
    parsed, below, settled = list[list[ast.stmt]](), list[set[str]](), list[set[str]]()
    used: dict[str, set[str]] = {}  # by the answers to an exercise, which cells below may define
    bound: dict[str, set[str]] = {}  # for an exercise: no cell below its answer gives them a value
    functions = {"setattr": {_ARGUMENTS}}  # and the student's own, with what they change
    for number, step in enumerate(steps):
        begin(number)
        group, tree = str(step.get("group") or step["exercise"]), tree_of(step["source"])
        below.append(bound.get(group, set()) if group in used else set())
        if step["exercise"]:
            used[group] = used.get(group, set()) | used_names(plain_python(step["source"]))
        body = tree.body if tree else []
        bound[group] = bound.get(group, set()).union(*map(bound_names, body))
        settled.append(_settled(body) if step["exercise"] else set())
        rest = [] if step["exercise"] else body
        parsed.append([one for one in rest if not _gives_a_value(one, below[-1])])
        for one in parsed[-1] if "keep" in step else []:
            if isinstance(one, ast.FunctionDef | ast.ClassDef):
                functions[one.name] = _changed_inside(one)
    everywhere = (node for body in parsed for top in body for node in ast.walk(top))
    imports = (node for node in everywhere if isinstance(node, ast.Import | ast.ImportFrom))
    modules: set[str] = set().union(*map(bound_names, imports))
    names: set[str] = set()
    kept: list[str] = []
    together = zip(steps, parsed, below, settled, strict=True)
    for step, body, own, defined in reversed(list(together)):
        group, source = str(step.get("group") or step["exercise"]), step["source"]
        names |= used.get(group, set())
        files = source.lstrip().startswith(WRITES_A_FILE) or RUNS_A_FILE.search(source)
        if step["exercise"] or ("keep" in step and (whole or files)):
            kept.append(source)
            names -= defined  # a loop of the course may have given the name another value
        else:
            here = names | own
            kept.append(_needed_part(body, here, step.get("keep"), modules, functions))
            names |= here - own
            if "keep" in step:
                defined = _settled(statements(kept[-1]))
                names -= defined
                used[group] = used.get(group, set()) - defined  # of the answer above this cell
    return kept[::-1]


def _gives_a_value(statement: ast.stmt, names: Collection[str]) -> bool:
    """Tell whether a statement gives one of some names another value, or none."""
    nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    stored = {node.id for node in nodes if not isinstance(node.ctx, ast.Load)}
    return not (stored | {getattr(statement, "name", "")}).isdisjoint(names)


def _settled(body: Sequence[ast.stmt]) -> set[str]:
    """List the functions and classes of a cell to which no value from above matters."""
    at_once: list[ast.AST] = []  # what is evaluated when the cell runs
    for one in body:
        is_function = isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        at_once += [*one.decorator_list, one.args] if is_function else [one]  # type: ignore[attr-defined]
    names = {getattr(node, "id", "") for part in at_once for node in ast.walk(part)}
    return {getattr(one, "name", "") for one in body} - names


def _needed_part(
    body: Sequence[ast.stmt],
    names: set[str],
    keep: Collection[str] | None,
    modules: Collection[str],
    functions: Mapping[str, set[str]],
) -> str:
    """Keep the statements that define or change one of `names`, which grow by what those use.

    A student's own cell may not define anew the names in `keep`. Calling a function of one of the
    `modules` does not change it.
    """
    parts = []
    for statement in reversed(body):
        bound = bound_names(statement)
        if keep is not None:
            if bound and bound <= set(keep):
                continue
            changed = _changed_by_calls(statement, functions)
            bound = (bound | changed - set(modules)) - set(keep)
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if bound & names or _EVERYTHING in bound or is_future:
            if isinstance(statement, ast.Import | ast.ImportFrom) and not is_future:
                # `from tutorial_lib import checks, plots` would load matplotlib for everybody
                statement, wanted = copy.copy(statement), {*names, _EVERYTHING}
                own = ((one.asname or one.name.split(".")[0], one) for one in statement.names)
                statement.names = [alias for name, alias in own if name in wanted]
            parts.append(_unparsed(statement))
            names |= used_names(parts[-1])
    return "\n".join(reversed(parts))
