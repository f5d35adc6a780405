"""Start of the watcher inside a program on an emulated card: Python runs this file as it starts.

This folder stands first on PYTHONPATH, so another `sitecustomize` behind it is run here too.
"""

import contextlib
import importlib
import sys
from pathlib import Path

_FOLDER = str(Path(__file__).resolve().parent)

import card_watcher  # type: ignore[import-not-found]  # noqa: E402

sys.path[:] = [folder for folder in sys.path if folder != _FOLDER]
card_watcher.install()
_ours = sys.modules.pop("sitecustomize", None)
with contextlib.suppress(ModuleNotFoundError):
    importlib.import_module("sitecustomize")
if _ours is not None:
    sys.modules.setdefault("sitecustomize", _ours)
