"""The instruments of the course "Training that fits".

Importing this package needs nothing but Python, from 2.7 on: a submodule loads when it is first
used, so that `python -m tutorial_lib --help` works before anything is installed.
"""

import importlib
import pkgutil
import sys

__version__ = "0.1.0"

if sys.version_info >= (3, 8):
    from importlib.machinery import ModuleSpec
    from types import ModuleType  # noqa: F401 - for mypy

    class _OldNames(object):
        """Imports `tutorial_lib.grading.run` as the module `tutorial_lib.school.grading.run`.

        Programs written when these seven stood at the top go on working.
        """

        moved = ("authoring", "bootstrap", "cli", "commands", "grading", "marks", "pythons")

        def find_spec(self, name, path=None, target=None):
            # type: (str, object, object) -> ModuleSpec | None
            if name.split(".")[0] == __name__ and name.split(".")[1] in self.moved:
                return ModuleSpec(name, self)  # type: ignore[arg-type]
            return None

        def create_module(self, spec):
            # type: (ModuleSpec) -> ModuleType
            module = importlib.import_module(__name__ + ".school" + spec.name[len(__name__) :])
            spec.loader_state = module.__spec__
            return module

        def exec_module(self, module):
            # type: (ModuleType) -> None
            if module.__spec__:  # by now it is that of the old name
                module.__spec__ = module.__spec__.loader_state

    # First: what git left of the old folders (their __pycache__) would pass for packages.
    sys.meta_path.insert(0, _OldNames())


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
