"""The run halves of labs in the old form, cut out of their checks: goes when the last is converted.

A check's module holds both of its halves there. The cut keeps the half that runs an answer, and
what that half needs.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from tutorial_lib.school.grading.submissions.slice_cells import needed, used_names

# Arguments that no run half needs, by name and position. The last two are lab 09's diagnoses.
HIDDEN = {
    "Check": {"cases": 3, "judge": 5, "oracle": 6},
    "BrokenScript": {"cause": 0, "reading": 1, "asked": 2, "oracle": 4, "judge": 5},
    "broken_step": {"cause": 1, "reading": 2, "asked": 3, "symptom": 4},
}
_CHECKS = "tutorial_lib.checks"
_CORE = """
from tutorial_lib.checks.given.half import RunHalf
from tutorial_lib.checks.given.values import *

def Check(name, exercise, passed, cases, run, judge, oracle=None, forbidden=(), exam=None):
    return RunHalf(name, exercise, run, forbidden, exam)

def calls_of(*_):
    return None
"""


def write_cut(original: Path, copy: Path, shown: Collection[str]) -> None:
    """Write what run halves need of the labs that have no `given`.

    Args:
        original: The folder of all checks.
        copy: Where they are written.
        shown: Names of modules and folders that are copied anyway.
    """
    sources = dict(_sources(_CHECKS, original, shown))
    sources |= {f"{_CHECKS}.core": _CORE, f"{_CHECKS}.vocabulary": ""}
    old = [lab for lab in original.glob("lab*") if not [*lab.glob("given*")]]
    names = [f"{_CHECKS}.{lab.name}" for lab in old]
    for name, text in cut(sources, names).items():
        inside = ["__init__"] if _is_package(name, sources) else []
        path = copy.joinpath(*name.split(".")[2:], *inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text, encoding="utf-8")


def _sources(package: str, folder: Path, shown: Collection[str]) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join([package, *(part for part in parts if part != "__init__")])
        if name != package and set(shown).isdisjoint(parts):
            yield name, path.read_text(encoding="utf-8")


def cut(sources: dict[str, str], names: Collection[str]) -> dict[str, str]:
    """Cut modules down to what the run halves of checks need.

    Args:
        sources: Of all modules, by name.
        names: Packages, and names in modules, that answers may import.

    Returns:
        The sources that are left, of the modules that are needed at all.
    """
    wanted: dict[str, set[str]] = {}
    texts: dict[str, str] = {}
    found = {pair for name in names for pair in _found(name, sources)}
    while found:
        modules = {module for module, _ in found}
        for module, name in found:
            wanted.setdefault(module, set()).add(name)
        texts |= {module: _needed_of(sources[module], wanted[module]) for module in modules}
        used = {pair for module in modules for pair in _uses(texts[module], sources)}
        found = {(module, name) for module, name in used if name not in wanted.get(module, ())}
    return texts


def _found(name: str, sources: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Split a name into a module and what is wanted of it; `*` is everything."""
    parent, _, last = name.rpartition(".")
    if name in sources:
        is_whole = name == f"{_CHECKS}.core" or _is_package(name, sources)
        yield from ((name, wanted) for wanted in (["*"] if is_whole else _checks_in(sources[name])))
    elif parent in sources:
        yield parent, last
    while parent in sources:  # the packages around it are imported too
        yield parent, "*" if _is_package(parent, sources) else ""
        parent = parent.rpartition(".")[0]


def _is_package(name: str, sources: Collection[str]) -> bool:
    return any(other.startswith(f"{name}.") for other in sources)


def _checks_in(source: str) -> list[str]:
    """List the names of the checks that a module makes; an empty one, so that it is kept."""
    made = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    checks = [node for node in made if ast.unparse(node.value).startswith("Check(")]
    return ["", *(ast.unparse(node.targets[0]) for node in checks)]


def _needed_of(source: str, names: Collection[str]) -> str:
    source = _blanked(source)
    if "*" in names:
        return source
    while True:  # a function may use what stands below it
        (text,) = needed([source], [names])
        if used_names(text) <= set(names):
            return text
        names = {*names, *used_names(text)}


@cache
def _blanked(source: str) -> str:
    return ast.unparse(_Blanked().visit(ast.parse(source)))


class _Blanked(ast.NodeTransformer):
    """Puts None in the place of each judge, oracle and list of cases."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Blank the arguments of one call."""
        self.generic_visit(node)
        hidden = HIDDEN.get(node.func.id, {}) if isinstance(node.func, ast.Name) else {}
        for place in hidden.values():
            if place < len(node.args):
                node.args[place] = ast.Constant(None)
        for keyword in node.keywords:
            if keyword.arg in hidden:
                keyword.value = ast.Constant(None)
        return node


def _uses(text: str, sources: dict[str, str]) -> list[tuple[str, str]]:
    """List what a module takes from others: pairs of a module and a name in it."""
    tree = ast.parse(text)
    pairs: list[tuple[str, str]] = []
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                pairs += _found(f"{node.module}.{alias.name}", sources)
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            pairs += [pair for alias in node.names for pair in _found(alias.name, sources)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = aliases.get(node.value.id)
            if module in sources:
                pairs.append((module, node.attr))
    return pairs
