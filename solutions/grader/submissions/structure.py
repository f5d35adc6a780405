"""Structure of an answer: what is left without its own names, order, comments and annotations.

This parses what students wrote, and so it runs in `reader`'s program.
"""

import ast
import functools
import zlib
from collections.abc import Iterable

from solutions.grader.lab import Lab
from solutions.grader.submissions.answers import Answers
from solutions.grader.submissions.slice_cells import tree_of

_SMALLEST = 5  # nodes of a part: below that everybody's code is alike
_LEFT_OUT = {"ctx", "annotation", "returns", "type_comment", "kind", "asname"}
_BINDS = (ast.arg, ast.FunctionDef, ast.ClassDef, ast.alias)


def structures(lab: Lab, answers: Answers) -> dict[str, list[int]]:
    """List the structure of each exercise's answer, without what the lab itself gives."""
    given = (cell.source for cell in lab.cells if cell.kind == "code" and not cell.mark)
    of_course = structure(*given)
    return {
        number: sorted(structure(*cells) - of_course - structure(lab.answers[number].blank or ""))
        for number, cells in answers.cells().items()
    }


@functools.cache  # for what the lab gives
def structure(*sources: str) -> frozenset[int]:
    """Return a number for each statement and expression in some cells, but for the smallest.

    Two of them have the same number when they differ only in names that the cells choose, in the
    order of statements, in docstrings and annotations.
    """
    trees = filter(None, map(tree_of, sources))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    own = {_name(node) for node in nodes if _chooses_a_name(node)}
    code: dict[int, int] = {}
    size: dict[int, int] = {}
    for node in reversed(nodes):  # children come first, and no depth is too much
        words: list[object] = [type(node).__name__]
        inner: list[ast.AST] = []
        for field, value in ast.iter_fields(node):
            if field in _LEFT_OUT:
                continue
            some = value if isinstance(value, list) else [value]
            children = [one for one in some if isinstance(one, ast.AST) and not _is_prose(one)]
            numbers = [code[id(one)] for one in children]
            is_body = children and isinstance(children[0], ast.stmt)
            plain = [None if one in own else one for one in some if not isinstance(one, ast.AST)]
            words += [field, sorted(numbers) if is_body else numbers, plain]
            inner += children
        code[id(node)] = zlib.crc32(repr(words).encode("utf-8", "backslashreplace"))
        size[id(node)] = 1 + sum(size[id(one)] for one in inner)
    kept = [one for one in nodes if isinstance(one, ast.stmt | ast.expr) and not _is_prose(one)]
    return frozenset(code[id(one)] for one in kept if size[id(one)] >= _SMALLEST)


def _chooses_a_name(node: ast.AST) -> bool:
    return isinstance(node, _BINDS) or isinstance(getattr(node, "ctx", None), ast.Store)


def _name(node: ast.AST) -> str:
    fields: Iterable[str] = ("asname", "id", "arg", "attr", "name")
    return next((name for one in fields if (name := getattr(node, one, None))), "")


def _is_prose(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
