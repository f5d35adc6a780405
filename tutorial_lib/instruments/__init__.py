"""Instruments that measure, predict and plan: for the course, and for your own models and steps."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any


def __getattr__(name: str) -> Any:
    """Load an instrument when it is first used, as in `instruments.planning`."""
    if name in __dir__():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the instruments, for tab completion."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_when_used(
    package: str, modules: Mapping[str, str]
) -> tuple[list[str], Callable[..., Any]]:
    """Make a package's `__all__` and `__getattr__`: a module loads when a name is first used.

    Args:
        package: Its name.
        modules: The names that the package offers, by the module of each below the package.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return sorted(homes), load
