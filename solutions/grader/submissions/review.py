"""Findings that a person should read, from an answer's syntax tree; no student is told.

An honest answer may be among the findings, and no list of tricks is complete.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from solutions.grader.submissions.slice_cells import local_uses

_LISTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_WHY: dict[str, str] = _LISTS.pop("why")
WORDS = {name: frozenset(text.split()) for name, text in _LISTS.items()}
_NAMES, _ATTRIBUTES = (
    {word: kind for kind in kinds for word in WORDS[kind]}
    for kinds in (("run_text", "reach_files", "reach_modules"), ("file_methods", "frames"))
)
_BY_NAME = ("getattr", "setattr", "delattr")
_HIDDEN_NAME = re.compile(r"\.__\w+__|^__(?!main__$)\w+__$|^_saved_?")  # of a node of a graph
_DUNDER = re.compile(r"__\w*__")
_PRIVATE = re.compile(r"_\w*hooks|_C|_\w*call_impl")  # of any object
_OF_AN_OBJECT = re.compile(r"_[a-z]\w*")  # but for those that the answer itself defines
_OF_A_LIBRARY = re.compile(rf"\.(?!({'|'.join(WORDS['private'])})\b)(_C\b|_(?!foreach)[a-z]\w*)")
_LONG_TEXT = re.compile(r"(?:\b\d+\b(?:(?!\b\d+\b).)*){60}|\S{200}", re.DOTALL)
_LONG_NUMBER, _MOST_NUMBERS, _MOST_FINDINGS, _MOST_CHARACTERS = 10**40, 60, 20, 80
_LIBRARY = {"torch", "tutorial_lib"} | sys.stdlib_module_names - WORDS["common"]


class Finding(NamedTuple):
    """One thing to read: the cell's line, what stands there, and why it matters."""

    line: int
    what: str
    why: str


def imported(tree: ast.AST) -> dict[str, str]:
    """List the names that imports bind, each with what it stands for, as in `nn: torch.nn`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if isinstance(node, ast.ImportFrom):
                names[alias.asname or alias.name] = f"{'.' * node.level}{node.module}.{alias.name}"
            else:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                names[alias.asname or whole] = whole
    return names


def used(tree: ast.Module, known: Mapping[str, str]) -> set[str]:
    """List the paths that a cell uses, as in `torch.nn.Linear`; `known` is as for `findings`."""
    search = _Search(tree, known, ())
    return {search.path(node) for node in search.nodes}


def findings(tree: ast.Module, known: Mapping[str, str], allowed: Collection[str]) -> list[Finding]:
    """List what a person should read in a cell.

    `known` is what the imports of all cells bind, as `imported` gives it; `allowed` is what the lab
    and its solution use, and modules that the student wrote.
    """
    search = _Search(tree, known, allowed)
    seen = ((node, what, why) for node in search.nodes for what, why in search.at(node))
    every = [
        Finding(getattr(n, "lineno", 0), w[:_MOST_CHARACTERS], _WHY[why]) for n, w, why in seen
    ]
    first = {finding.what: finding for finding in sorted(every, reverse=True)}
    return sorted(first.values())[:_MOST_FINDINGS]


class _Search:
    def __init__(
        self, tree: ast.Module, known: Mapping[str, str], allowed: Collection[str]
    ) -> None:
        self.allowed, self.known = {*allowed, *WORDS["allowed"]}, dict(known)
        self.nodes = list(ast.walk(tree))
        self.inner: set[int] = set()  # parts of a longer path, and what only gets another name
        self.local, paths = set[int](), set[str]()
        self.plain = {node.arg for node in self.nodes if isinstance(node, ast.arg)}
        for node in self.nodes * 2:  # t = torch, and what is made of it
            if isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if len(names) == len(targets) and node.value:
                    path, is_text = self.path(node.value), isinstance(node.value, ast.Constant)
                    self.known |= dict.fromkeys(names, path) if path else {}
                    paths.update(names if path else ())
                    self.plain = self.plain | {*names} if is_text else self.plain - {*names}
                    self.inner.add(id(node.value))
            elif isinstance(node, ast.Attribute):
                self.inner.add(id(node.value))
            elif isinstance(node, ast.Call) and _named(node) in _BY_NAME:
                self.inner.add(id(node.args[0]))
            elif isinstance(node, ast.Call) and self.getter(node):
                self.inner.add(id(node.func))
            elif isinstance(node, ast.FunctionDef):
                self.plain.add(node.name)
            elif isinstance(node, ast.ClassDef):
                self.known.pop(node.name, None)
        self.local = local_uses(self.nodes, paths)
        named = [n for n in self.nodes if not isinstance(getattr(n, "ctx", None), ast.Load)]
        self.own = {getattr(n, key, "") for n in named for key in ("name", "arg", "id", "attr")}
        self.own |= {one.split(".")[-1] for one in self.allowed}
        self.prose = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        words = {getattr(node, "id", getattr(node, "attr", "")) for node in self.nodes}
        self.packs = "saved_tensors_hooks" in words

    def getter(self, node: ast.Call) -> list[str]:
        """List the names, written out, that a call of `operator.attrgetter` or the like gets."""
        args = node.args if self.path(node.func) in WORDS["getters"] else []
        names = [_text(arg) for arg in args[: None if "attr" in self.path(node.func) else 1]]
        return names if all(names) else []

    def path(self, node: ast.AST | None) -> str:
        """Write what a name or attribute stands for, as in `torch.nn.Linear`; empty if unknown.

        What a library imported for itself is what it is: `torch.sys.modules` is `sys.modules`.
        """
        if isinstance(node, ast.Name):
            return "" if id(node) in self.local else _real(self.known.get(node.id, ""))
        if isinstance(node, ast.Attribute):
            path = self.path(node.value)
            return _real(f"{path}.{node.attr}") if path else _real(f".{node.attr}").lstrip(".")
        if isinstance(node, ast.Subscript) and (path := self.path(node.value)):
            return f"{path}[...]"
        if isinstance(node, ast.Call) and _named(node) == "getattr":
            path, name = self.path(node.args[0]), _literal(node)
            return f"{path}.{name}" if path and name else ""
        if isinstance(node, ast.Call) and _named(node) == "type":
            return "torch.a_type"  # of an object that may be the checks' own
        is_globals = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "globals"
        return "__main__" if is_globals else ""

    def at(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """Say what is to be read at one node, and the key of `_WHY`."""
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield from self.outside(f"{node.module}.*")  # any other import is seen in its use
        elif isinstance(node, ast.Name) and node.id in _NAMES:
            yield node.id, _NAMES[node.id]
        elif isinstance(node, ast.Attribute):
            yield from self.at_attribute(node)
        elif isinstance(node, ast.Call):
            yield from self.at_call(node)
        elif isinstance(node, ast.ClassDef):
            bases = {self.path(base) for base in node.bases}
            names = [getattr(one, "name", "") for one in node.body]
            if bases & {"torch.Tensor", "torch.nn.Parameter"}:
                yield f"class {node.name}", "lies"
            if not any(path.endswith("Mode") for path in bases & self.allowed):
                yield from ((name, "changes") for name in names if name.startswith("__torch_"))
        elif isinstance(node, ast.BinOp) and "__" in {_text(node.left), _text(node.right)}:
            yield ast.unparse(node), "computed"
        elif isinstance(node, ast.Constant) and id(node) not in self.prose:
            yield from ((name, "computed") for name in _HIDDEN_NAME.findall(_text(node))[:1])
            is_long = isinstance(node.value, bytes) and len(node.value) > _MOST_NUMBERS
            is_long |= isinstance(node.value, int) and node.value > _LONG_NUMBER
            if is_long or _LONG_TEXT.search(_text(node)):
                yield f"a constant of {len(ast.unparse(node))} characters", "table"
        elif isinstance(node, ast.List | ast.Tuple | ast.Dict):
            num_values = sum(isinstance(one, ast.Constant) for one in ast.walk(node))
            if num_values > _MOST_NUMBERS:
                yield f"a table of {num_values} values", "table"
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in self.inner:
            path = self.path(node)
            yield from self.outside(path)
            if path in WORDS["handed"]:
                yield f"hands on {path}", "computed"

    def at_attribute(self, node: ast.Attribute) -> Iterator[tuple[str, str]]:
        """Judge a name behind a dot that is read, or given a value."""
        if isinstance(node.ctx, ast.Load):
            yield from self.at_name(node.attr, getattr(node.value, "id", "") in ("self", "cls"))
            path, private = self.path(node.value), _OF_AN_OBJECT.fullmatch(node.attr)
            if private and not path and node.attr not in self.own | WORDS["private"]:
                yield node.attr, "private_to"
            if node.attr == "__dict__" and path:
                yield ast.unparse(node), "changes"
            if node.attr in WORDS["leave_tensors"] and self.packs:
                yield node.attr, "leaves"
        elif (
            (_PRIVATE.fullmatch(node.attr) and getattr(node.value, "id", "") != "self")
            or self.path(node.value)
            or getattr(node.value, "attr", "") == "__self__"
            or (_DUNDER.fullmatch(node.attr) and node.attr not in WORDS["labels"])
        ):
            yield f"{ast.unparse(node)} = ...", "changes"

    def at_name(self, name: str, by_itself: bool = False) -> Iterator[tuple[str, str]]:
        """Judge a name behind a dot, whatever stands before it."""
        if name in _ATTRIBUTES:
            yield name, _ATTRIBUTES[name]
        elif _DUNDER.fullmatch(name) and name not in WORDS["dunders"]:
            yield name, "inside"
        elif _PRIVATE.fullmatch(name) and not by_itself:
            yield name, "private_to"

    def at_call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        """Judge what looks a name up or changes it, fills in a text, or runs one."""
        for one, other in pairwise(node.args):  # setattr handed on, with a module behind it
            if getattr(one, "id", "") in _BY_NAME and self.path(other):
                yield f"{ast.unparse(one)}({ast.unparse(other)}, ...)", "changes"
        name, path = _named(node), self.path(node.func)
        first = node.args[0] if node.args else None
        target = self.path(first)
        is_plain = isinstance(first, ast.Lambda) or getattr(first, "id", "") in self.plain
        if path.startswith("unittest.mock.patch") and (target or not path.endswith(".object")):
            yield f"{path}({target}, ...)", "changes"
        elif path in WORDS["timers"] and not is_plain:
            yield path, "run_text"
        elif isinstance(node.func, ast.Attribute) and node.func.attr in WORDS["fillers"]:
            text = node.func.value
            if not isinstance(text, ast.Constant) and getattr(text, "id", "") not in self.plain:
                yield f"{node.func.attr} of a computed text", "computed"
        elif names := self.getter(node):
            for written in names:
                yield from self.outside(_real(f".{written}").lstrip("."))
                for part in written.split("."):
                    yield from self.at_name(part)
        elif name == "vars" and target:
            yield f"vars({target})", "changes"
        elif name in _BY_NAME and not _literal(node):
            if target or not all(isinstance(one, ast.Name) for one in node.args[1:2]):
                yield f"{name} with a computed name", "computed"
        elif name == "getattr":
            yield from self.at_name(_literal(node))
            yield from self.outside(self.path(node))
        elif name in _BY_NAME and target:
            yield f"{name}({target}, ...)", "changes"

    def outside(self, path: str) -> Iterator[tuple[str, str]]:
        """Judge what is reached by a path; nothing where that is as the lab and its solution do."""
        parts = path.split(".")
        leading = {".".join(parts[: i + 1]) for i in range(len(parts))}
        denied = next(iter(leading & WORDS["denied"]), "")
        allowed = {one for one in leading if one.startswith(denied)} & self.allowed
        private = _OF_A_LIBRARY.search(path)
        if not path or path in self.allowed:
            return
        if path.startswith(("tutorial_lib.checks", "tutorial_lib.school", "solutions.")):
            yield path, "checks"
        elif parts[0] == "tutorial_lib":
            if all(map(_is_module, allowed)):
                yield path, "outside"
        elif (denied or parts[0].partition("[")[0] not in WORDS["harmless"]) and not allowed:
            yield path, "outside"
        elif private and not any(a.startswith(f"{path[: private.end()]}.") for a in self.allowed):
            yield path, "private"


def _real(path: str) -> str:
    """Begin a path at the last module of the standard library in it, as in `torch.sys.modules`."""
    parts = path.split(".")
    modules = _LIBRARY if parts[0] else WORDS["modules"]
    for place in range(len(parts) - 1, 0, -1):
        name = parts[place].lstrip("_")
        if name in modules and name != parts[place - 1]:
            return ".".join([name, *parts[place + 1 :]])
    return path if parts[0] else ""


def _is_module(path: str) -> bool:
    with suppress(ModuleNotFoundError):  # what is around it is no package
        return find_spec(path) is not None
    return False


def _named(node: ast.Call) -> str:
    """Name the function that is called with arguments; empty where it has no plain name."""
    return node.func.id if isinstance(node.func, ast.Name) and node.args else ""


def _text(node: ast.expr) -> str:
    """Return a text that is written out; empty for anything else."""
    value = node.value if isinstance(node, ast.Constant) else ""
    value = value.decode("latin-1") if isinstance(value, bytes) else value
    return value if isinstance(value, str) else ""


def _literal(node: ast.Call) -> str:
    """Return the second argument of getattr and the like, where it is written out."""
    return _text(node.args[1]) if len(node.args) > 1 else ""
