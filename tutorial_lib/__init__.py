"""The instruments of the course "Training that fits".

Importing this package needs nothing but Python, from 2.7 on: a submodule loads when it is first
used, so that `python -m tutorial_lib --help` works before anything is installed.
"""

import importlib
import pkgutil

__version__ = "0.1.0"


def __getattr__(name):
    # type: (str) -> object
    """Load a submodule when it is first used, as in `tutorial_lib.memory`."""
    if not name.startswith("_"):
        full_name = __name__ + "." + name
        try:
            return importlib.import_module(full_name)
        except ModuleNotFoundError as error:
            # Only this very module's absence is an unknown name; a missing torch is not.
            if error.name != full_name:
                raise
    raise AttributeError("module %r has no attribute %r" % (__name__, name))


def __dir__():
    # type: () -> list[str]
    """List the submodules as well, for tab completion."""
    return sorted(set(globals()) | {module.name for module in pkgutil.iter_modules(__path__)})


def load_ipython_extension(ipython):
    # type: (object) -> None
    """Give the notebook the `%%memory` cell magic; `%load_ext tutorial_lib` calls this."""
    from tutorial_lib.memory.magic import load_ipython_extension as load

    load(ipython)
