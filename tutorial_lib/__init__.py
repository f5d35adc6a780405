"""The instruments of the course "Training that fits".

A submodule loads when it is first used, so `python -m tutorial_lib --help` needs no package.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__version__ = "0.1.0"


# Annotations with brackets are quoted, so that an old Python comes as far as `__main__`.
def load_when_used(
    package: str, modules: "Mapping[str, str]"
) -> "tuple[list[str], Callable[[str], Any]]":
    """Return a package's `__all__` and `__getattr__`: a module loads when a name is first used.

    Args:
        package: Its name.
        modules: The names that the package offers, by the module of each: below the package, or
            with a dot before it beside the package.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{homes[name]}", package), name)

    return sorted(homes), load


def load_submodules(
    package: str, path: "list[str]"
) -> "tuple[Callable[[], list[str]], Callable[[str], ModuleType]]":
    """Return a package's `__dir__` and `__getattr__`: each submodule loads when first used."""

    def names() -> "list[str]":
        return sorted(module.name for module in pkgutil.iter_modules(path))

    def load(name: str) -> ModuleType:
        if name not in names():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    return names, load


__dir__, __getattr__ = load_submodules(__name__, __path__)


def content(name: str, package: str) -> Path:
    """Return a folder of `course/`, beside the library, which holds modules of a package.

    Raises:
        ModuleNotFoundError: In an installed package, which leaves the course out.
    """
    folder = Path(__path__[0]).resolve().parent / "course" / name  # of a copy, in its grader
    if not folder.is_dir():
        raise ModuleNotFoundError(
            f"{package} is in course/{name} of the course's folder, which an installed package "
            "leaves out: get a clone or the zip of the course, and run this there."
        )
    return folder


def load_ipython_extension(ipython: object) -> None:
    """Add the cell magic `%%memory` to a notebook; `%load_ext tutorial_lib` calls this."""
    from tutorial_lib.memory.magic import load_ipython_extension as load

    load(ipython)
