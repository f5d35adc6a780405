"""The instruments of the course "Training that fits".

A submodule loads when it is first used, so `python -m tutorial_lib --help` needs no package.
"""

import importlib
import pkgutil
from types import ModuleType

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """Load a submodule when it is first used, as in `tutorial_lib.memory`."""
    full_name = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            return importlib.import_module(full_name)
        except ModuleNotFoundError as error:
            if error.name != full_name:  # a package that the submodule needs is missing
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> "list[str]":
    """List the submodules as well, for tab completion."""
    return sorted({*globals(), *(module.name for module in pkgutil.iter_modules(__path__))})


def load_ipython_extension(ipython: object) -> None:
    """Add the cell magic `%%memory` to a notebook; `%load_ext tutorial_lib` calls this."""
    from tutorial_lib.memory.magic import load_ipython_extension as load

    load(ipython)
