"""Findings that a person should read, from an answer's syntax tree; no student is told.

An honest answer may be among the findings, and no list of tricks is complete. Parsing hostile text
can end the process, so this runs in one that can be thrown away (`look`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tutorial_lib.school.grading.submissions.slice_cells import bound_names


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HARMLESS = _words(
    "__future__ abc array asyncio bisect cmath collections contextlib copy dataclasses datetime "
    "decimal enum fractions functools heapq itertools json math numbers operator pprint random re "
    "statistics string textwrap time timeit types typing typing_extensions warnings weakref "
    "torch numpy scipy pandas matplotlib tqdm IPython"
)
# Names that lead from a harmless module to more than an answer needs.
DENIED = _words(
    "torch.utils.checkpoint torch.utils.cpp_extension torch.utils.hooks torch.overrides "
    "torch.library torch.ops torch.fx torch.jit torch.export torch.hub torch.package torch.classes "
    "torch.multiprocessing torch.serialization torch.load torch.save torch.from_file "
    "torch.utils.rename_privateuse1_backend numpy.memmap numpy.ctypeslib numpy.load numpy.save "
    "types.FunctionType types.CodeType types.FrameType types.ModuleType operator.attrgetter "
    "operator.methodcaller IPython.get_ipython IPython.core gc.get_objects gc.get_referrers "
    "gc.get_referents"
)
# What the set-up of every lab imports for itself, and no answer needs.
HIDDEN = _words("importlib importlib.util os pathlib shutil subprocess sys")
_ALLOWED = _words(
    "sys.version_info sys.maxsize sys.float_info sys.getsizeof sys.stdout sys.stderr gc.collect "
    "gc.enable gc.disable gc.isenabled tutorial_lib.units"
)
_NAMES = {
    **dict.fromkeys(("exec", "eval", "compile", "get_ipython"), "runs text as code"),
    **dict.fromkeys(("__import__", "__builtins__", "__loader__"), "reaches any module"),
    **dict.fromkeys(("vars", "globals", "locals"), "reaches names that the source does not show"),
    **dict.fromkeys(("open", "breakpoint"), "reaches files, or the process"),
}
_DUNDERS = _words(
    "__init__ __name__ __doc__ __version__ __len__ __enter__ __exit__ __call__ __class__ __iter__ "
    "__next__ __qualname__ __post_init__ __wrapped__ __getitem__ __annotations__ __new__ __repr__ "
    "__contains__ __setitem__ __eq__ __hash__ __add__ __mul__ __bool__"
)
_FRAMES = _words(
    "f_back f_locals f_globals f_code f_builtins tb_frame tb_next gi_frame cr_frame ag_frame "
    "gi_code co_code currentframe _getframe __traceback__"
)
_LABELS = ("__name__", "__doc__", "__qualname__", "__wrapped__", "__annotations__", "__module__")
_BY_NAME = ("getattr", "setattr", "delattr")
_MODULES = _words("torch torch.nn torch.nn.functional torch.optim torch.autograd sys gc")
_HIDDEN_NAME = re.compile(r"\.__\w+__")
_PACKAGE = Path(__file__).resolve().parents[3]
_CHANGES = "changes what the checks use too"
_OUTSIDE = "is outside what the lab and its solution use"
_COMPUTED = "hides which name it reaches"
_MOST_FINDINGS, _MOST_CHARACTERS = 20, 80


class Finding(NamedTuple):
    """One thing to read: the cell's line, what stands there, and why it matters."""

    line: int
    what: str
    why: str


def imported(tree: ast.AST) -> dict[str, str]:
    """List the names that imports bind, each with what it stands for, as in `nn: torch.nn`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                names[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{'.' * node.level}{node.module}.{alias.name}"
    return names


def findings(tree: ast.Module, known: Mapping[str, str], allowed: Collection[str]) -> list[Finding]:
    """List what a person should read in a cell.

    Args:
        tree: The cell.
        known: What the imports of all cells bind, those of the course too, as `imported` gives it.
        allowed: What the lab and its solution import, and modules that the student wrote.
    """
    found: dict[str, Finding] = {}
    search = _Search(tree, known, allowed)
    every = (
        Finding(getattr(node, "lineno", 0), what[:_MOST_CHARACTERS], why)
        for node in search.nodes
        for what, why in search.at(node)
    )
    for finding in sorted(every):
        found.setdefault(finding.what, finding)
    return list(found.values())[:_MOST_FINDINGS]


class _Search:
    def __init__(
        self, tree: ast.Module, known: Mapping[str, str], allowed: Collection[str]
    ) -> None:
        self.allowed, self.known = {*allowed, *_ALLOWED}, dict(known)
        self.nodes = list(ast.walk(tree))
        self.inner: set[int] = set()  # parts of a longer path, and what only gets another name
        for node in self.nodes * 2:  # t = torch, and what is made of it
            if isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if len(names) == len(targets) and node.value:
                    self.known |= (
                        dict.fromkeys(names, path) if (path := self.path(node.value)) else {}
                    )
                    self.inner.add(id(node.value))
        attributes = [node for node in self.nodes if isinstance(node, ast.Attribute)]
        self.inner |= {id(node.value) for node in attributes}
        calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.inner |= {id(node.args[0]) for node in calls if _named(node) in _BY_NAME}
        statements = (node for node in self.nodes if isinstance(node, ast.stmt))
        self.own = {node.attr for node in attributes if not isinstance(node.ctx, ast.Load)}
        self.own |= {name for statement in statements for name in bound_names(statement)}

    def path(self, node: ast.AST | None) -> str:
        """Write what a name or attribute stands for, as in `torch.nn.Linear`; empty if unknown."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id, "")
        if isinstance(node, ast.Attribute):
            path = self.path(node.value)
            return f"{path}.{node.attr}" if path else ""
        if isinstance(node, ast.Call) and _named(node) == "getattr":
            path, name = self.path(node.args[0]), _literal(node)
            return f"{path}.{name}" if path and name else ""
        # of an object that may be the checks' own
        return "torch.a_type" if isinstance(node, ast.Call) and _named(node) == "type" else ""

    def at(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """Say what is to be read at one node."""
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield from self.outside(f"{node.module}.*")  # any other import is seen in its use
        elif isinstance(node, ast.Name) and node.id in _NAMES:
            yield node.id, _NAMES[node.id]
        elif isinstance(node, ast.Attribute):
            yield from self.at_attribute(node)
        elif isinstance(node, ast.Call):
            yield from self.at_call(node)
        elif isinstance(node, ast.MatchClass):
            yield from (one for name in node.kwd_attrs for one in self.at_name(name))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("__torch_"):
            yield node.name, _CHANGES
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((name, _COMPUTED) for name in _HIDDEN_NAME.findall(node.value)[:1])
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in self.inner:
            path = self.path(node)
            yield from self.outside(path)
            if path in _MODULES:
                yield f"hands on {path}", _COMPUTED

    def at_attribute(self, node: ast.Attribute) -> Iterator[tuple[str, str]]:
        """Judge a name behind a dot that is read, or given a value."""
        if isinstance(node.ctx, ast.Load):
            by_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            yield from self.at_name(node.attr, by_itself)
        elif self.path(node.value) or (_is_dunder(node.attr) and node.attr not in _LABELS):
            yield f"{ast.unparse(node)} = ...", _CHANGES

    def at_name(self, name: str, by_itself: bool = False) -> Iterator[tuple[str, str]]:
        """Judge a name behind a dot, whatever stands before it."""
        if name in _FRAMES:
            yield name, "leads to the frames of the code that calls the answer"
        elif _is_dunder(name):
            if name not in _DUNDERS:
                yield name, "reaches what Python keeps inside of objects"
        elif name.startswith("_") and name not in self.own and not by_itself:
            yield name, "is private to the object that it belongs to"

    def at_call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        """Judge getattr, setattr and delattr."""
        name = _named(node)
        if name in _BY_NAME:
            if not _literal(node):
                yield f"{name} with a computed name", _COMPUTED
            elif name == "getattr":
                yield from self.at_name(_literal(node))
                yield from self.outside(self.path(node))
            elif path := self.path(node.args[0]):
                yield f"{name}({path}, ...)", _CHANGES

    def outside(self, path: str) -> Iterator[tuple[str, str]]:
        """Judge what is reached by a path; nothing where that is as the lab and its solution do."""
        parts = path.split(".")
        leading = {".".join(parts[: i + 1]) for i in range(len(parts))}
        denied = next(iter(leading & DENIED), "")
        allowed = {one for one in leading if one.startswith(denied)} & self.allowed
        private = next(
            (f".{one}" for one in parts if one.startswith("_") and not _is_dunder(one)), ""
        )
        if path.startswith(("tutorial_lib.checks", "tutorial_lib.school")):
            yield path, "leads to the checks themselves"
        elif not path or path in self.allowed:
            return
        elif parts[0] == "tutorial_lib":
            places = {one: _PACKAGE.joinpath(*one.split(".")[1:]) for one in leading}
            files = {one for one, file in places.items() if file.with_suffix(".py").exists()}
            if not files <= self.allowed:
                yield path, _OUTSIDE
        elif (denied or parts[0] not in HARMLESS) and not allowed:
            yield path, _OUTSIDE
        elif private and not any(
            one.startswith(f"{path.partition(private)[0]}{private}.") for one in self.allowed
        ):
            yield path, "is private to the library that it belongs to"


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _named(node: ast.Call) -> str:
    """Name the function that is called with arguments; empty where it has no plain name."""
    return node.func.id if isinstance(node.func, ast.Name) and node.args else ""


def _literal(node: ast.Call) -> str:
    """Give the second argument of getattr and the like, where it is written out."""
    second = node.args[1] if len(node.args) > 1 else None
    value = second.value if isinstance(second, ast.Constant) else ""
    return value if isinstance(value, str) else ""
