"""Notebook files: read with a clear error, written whole or not at all."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from string import Template

import nbformat
from nbformat import NotebookNode

ZIP_NAME = "training-that-fits.zip"
_TEMPLATES = Path(__file__).parent / "templates"


class AuthoringError(ValueError):
    """A source or a notebook cannot be built: says where, what stands there, what to write."""


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook of format 4.5.

    Raises:
        AuthoringError: When the file is missing, or is no valid notebook.
    """
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        nbformat.validate(notebook)
    except OSError as error:
        raise AuthoringError(f"{path} cannot be read: {error.strerror}.") from error
    except Exception as error:  # nbformat raises a different one for each way to be wrong
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise AuthoringError(f"{path} is not a notebook ({reason}): build it again.") from error
    return notebook


def render(notebook: NotebookNode) -> str:
    """Text of a notebook file, one source line a text line; one that breaks the format raises."""
    nbformat.validate(notebook)
    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files so that each one is either the old or the new file, never a half.

    Every file is written beside its place first; only then do they take their places.

    Raises:
        OSError: When the disk refuses; then no file has changed.
    """
    waiting: list[tuple[Path, Path]] = []
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.{os.getpid()}.part")
            waiting.append((beside, path))
            beside.write_bytes(content)
        for beside, path in waiting:
            beside.replace(path)
    finally:
        for beside, _ in waiting:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


def filled(template: str, **words: str) -> str:
    """Return the text of a template of this folder, with words in place of its names."""
    text = (_TEMPLATES / f"{template}.template").read_text(encoding="utf-8")
    return Template(text).substitute(words)
