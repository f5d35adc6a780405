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


def load_when_used(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a package's `__getattr__`: a module loads when one of its names is first used.

    Args:
        package: Its name.
        homes: The module, below the package, of each name that the package offers.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return load
