"""The checks that labs call: `checks.lab01.parameter_bytes(my_function)`.

Those of a lab are content of `labs/`, one folder each, and are found there; what all labs share
is here.
"""

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

from tutorial_lib.checks.given import CheckError
from tutorial_lib.checks.same_training import assert_same_training, summation_tolerance, verdict

__path__.append(str(Path(__file__).resolve().parents[2] / "labs" / "checks"))
_IS_LAB = re.compile(r"lab\d\d").fullmatch
LABS = sorted({found.name for found in pkgutil.iter_modules(__path__) if _IS_LAB(found.name)})
__all__ = ["CheckError", "assert_same_training", "summation_tolerance", "verdict"]


def __getattr__(name: str) -> Any:
    """Load a lab's checks when they are first used: lab 08's import diffusers."""
    if name in LABS:
        return importlib.import_module(f"{__name__}.{name}")
    if _IS_LAB(name) and not LABS:
        raise ModuleNotFoundError(
            f"the checks of {name} are in labs/checks of the course's folder, which an installed "
            "package leaves out: get a clone or the zip of the course, and run this there."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the labs as well, for tab completion."""
    return [*__all__, *LABS]
