"""Near-copies: answers of a class whose syntax trees are nearly the same under other names.

A fingerprint is a set of hashes, one for each larger part of the tree. Names, constants, comments,
docstrings, imports and prints leave no trace in it. Short answers agree by nature, so nothing
counts that the solution or the blank has, that a third of the class wrote, or that is too small.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from zlib import crc32

# Of the parts of two answers together, those that both have. The right answers of the course's
# tests that were written apart stay below it; a copy under other names has all.
SIMILAR = 0.7
_FEWEST_PARTS = 10  # in an answer that is compared
_SMALLEST_PART = 5  # nodes of the tree
_ALWAYS_RARE = 3  # so many in a class are never "what everybody writes"
_KEPT = frozenset(dir(builtins))


def fingerprint(tree: ast.AST, known: Mapping[str, str]) -> set[int]:
    """List the hashes of the larger parts of a tree.

    Args:
        tree: An answer.
        known: What imports bind: `nn.Linear` and `torch.nn.Linear` are the same part.
    """
    parts: set[int] = set()
    _hash(tree, known, parts)
    return parts


def _hash(node: ast.AST, known: Mapping[str, str], parts: set[int]) -> tuple[int, int]:
    """Hash a tree and count its nodes; hashes of all its larger parts go into `parts`."""
    children, size = [type(node).__name__], 1
    for field, value in _fields(node, known):
        several = value if isinstance(value, list) else [value]
        hashed = []
        for item in several:
            if isinstance(item, ast.AST):
                inner, nodes = _hash(item, known, parts)
                hashed.append(inner)
                size += nodes
            else:
                hashed.append(crc32(str(item).encode("utf-8", "replace")))
        children.append(f"{field}{hashed}")
    whole = crc32("".join(children).encode())
    if size >= _SMALLEST_PART:
        parts.add(whole)
    return whole, size


def _fields(node: ast.AST, known: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    if isinstance(node, ast.Name):
        yield "id", known.get(node.id) or (node.id if node.id in _KEPT else "")
        return
    if isinstance(node, ast.Constant):
        yield "value", type(node.value).__name__
        return
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list):
            value = [part for part in value if not _says_nothing(part)]
        if name not in ("ctx", "annotation", "returns", "type_comment") and not (
            name in ("name", "arg") and not isinstance(node, ast.keyword | ast.alias)
        ):
            yield name, value


def _says_nothing(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr):
        return isinstance(node, ast.Import | ast.ImportFrom)
    called = node.value.func if isinstance(node.value, ast.Call) else None
    prints = isinstance(called, ast.Name) and called.id == "print"
    return prints or isinstance(node.value, ast.Constant)


def alike(
    fingerprints: Mapping[str, Mapping[str, Sequence[int]]],
) -> dict[str, dict[str, list[str]]]:
    """Find the near-copies of a class, by submission and exercise."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in fingerprints}
    for number in {number for answers in fingerprints.values() for number in answers}:
        answers = {name: of.get(number, ()) for name, of in fingerprints.items()}
        for name, others in near_copies(answers).items():
            found[name][number] = others
    return found


def near_copies(fingerprints: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Find the answers to one exercise that are nearly the same.

    Returns:
        For every answer that has any, the names of its near-copies.
    """
    number = Counter(part for parts in fingerprints.values() for part in set(parts))
    most = max(_ALWAYS_RARE, len(fingerprints) / 3)
    rare = {
        name: {part for part in parts if number[part] <= most}
        for name, parts in fingerprints.items()
    }
    found: dict[str, list[str]] = defaultdict(list)
    large = [name for name, parts in rare.items() if len(parts) >= _FEWEST_PARTS]
    for name, other in combinations(large, 2):
        both = len(rare[name] & rare[other])
        alike = both >= SIMILAR * (len(rare[name]) + len(rare[other]) - both)
        if alike and not _same_student(name, other):
            found[name].append(other)
            found[other].append(name)
    return {name: sorted(others) for name, others in found.items()}


def _same_student(name: str, other: str) -> bool:
    folder = name.rpartition("/")[0]
    return bool(folder) and folder == other.rpartition("/")[0]
