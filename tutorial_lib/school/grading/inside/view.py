"""The copy of the course that a graded answer's process sees: no judge, no oracle, no grader.

A check's module holds both of its halves. This copy keeps the half that runs an answer, and what
that half needs; it is written once a run, before the fork server imports any check. So what it
leaves out is neither on disk for an answer to read nor anywhere in its process's memory.
"""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tutorial_lib.school.grading.submissions.slice_cells import needed, used_names

_LIBRARY = Path(__file__).resolve().parents[3]
# Arguments that no run half needs, by name and position. The last two are lab 09's diagnoses.
HIDDEN = {
    "Check": {"cases": 3, "judge": 5, "oracle": 6},
    "Exam": {"case": 0, "judge": 2},
    "BrokenScript": {"cause": 0, "reading": 1, "asked": 2, "oracle": 4, "judge": 5},
    "broken_step": {"cause": 1, "reading": 2, "asked": 3, "symptom": 4},
}
# For learners, and for the grader's own few lines in that process; nothing of a lab.
_PUBLIC = tuple(f"tutorial_lib.checks{name}" for name in ("", ".core", ".forbid", ".outside"))


def enter(folder: Path, package: str, names: Sequence[str]) -> list[Path]:
    """Write the copy, and have this process import it from now on.

    Args:
        folder: Where it is written.
        package: Where checks are found.
        names: Modules that answers may import, and names in them.

    Returns:
        The folders of the originals, which no answer may read.
    """
    shutil.copytree(
        _LIBRARY,
        folder / "tutorial_lib",
        ignore=shutil.ignore_patterns("school", "checks"),
    )
    originals = {"tutorial_lib.checks": _LIBRARY / "checks"}
    for entry in sys.path:
        place = Path(entry, *package.split("."))
        if package not in originals and place.is_dir():
            originals[package] = place
    sources = {name: text for root in originals for name, text in _sources(root, originals[root])}
    for name, text in cut(sources, names).items():
        inside = ["__init__"] if _is_package(name, sources) else []
        path = folder.joinpath(*name.split("."), *inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text, encoding="utf-8")
    _import_from(folder)
    return [_LIBRARY, *originals.values()]


def checks_of(package: str) -> list[Any]:
    """List the checks that this process has imported, each of the type `Check`."""
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{package}.")]
    values = [value for module in modules for value in vars(module).values()]
    return [value for value in values if type(value).__name__ == "Check"]


def without_forbidden(folder: Path, package: str) -> list[Path]:
    """Import what the checks forbid, and take its files out of the copy.

    Args:
        folder: The copy.
        package: Where checks are found.

    Returns:
        Files outside the copy that no answer may read either.
    """
    outside = []
    everything = (one for check in checks_of(package) for one in check.forbidden)
    for name in {name for one in everything for name in one.modules}:
        file = Path(str(importlib.import_module(name).__file__)).resolve()
        outside += [file, *file.parent.glob(f"__pycache__/{file.stem}.*.pyc")]
    for path in [path for path in outside if path.is_relative_to(folder)]:
        path.unlink()
    return [path for path in outside if path.exists()]


def _sources(package: str, folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join([package, *(part for part in parts if part != "__init__")])
        yield name, path.read_text(encoding="utf-8")


def _import_from(folder: Path) -> None:
    library = sys.modules["tutorial_lib"]
    library.__path__[:] = [str(folder / "tutorial_lib")]
    sys.path[:] = [str(folder), *(p for p in sys.path if Path(p).resolve() != _LIBRARY.parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    for name in list(sys.modules):
        if name.startswith("tutorial_lib.") and not name.startswith("tutorial_lib.school"):
            del sys.modules[name]


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
    found = {pair for name in (*_PUBLIC, *names) for pair in _found(name, sources)}
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
        is_whole = name in _PUBLIC or _is_package(name, sources)
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
