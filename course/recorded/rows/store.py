"""A recording: one JSON file, written after every row, so that a stopped run loses nothing."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.instruments.recorded import FOLDER

PREDICTED = "predicted"
_EMULATED = "emulated-"


@dataclass
class Recording:
    """Rows measured by one machine, emulated or predicted.

    Args:
        device: Words for the GPU, or for the kernels that were predicted.
        driver: Version of the GPU's driver; empty where none is.
        versions: Python, torch and the libraries.
        commit: The course's commit, empty outside a clone.
        rows: From each row's key to its results, a date among them.
    """

    device: str
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def resume(self, path: Path) -> None:
        """Take over the rows that a file already holds.

        Raises:
            ValueError: When the file is of another device or other versions: rows of two kinds
                do not belong in one table.
        """
        if not path.exists():
            return
        before = read(path)
        for name in ("device", "versions"):
            if getattr(before, name) != getattr(self, name):
                raise ValueError(
                    f"{path.name} was recorded with {name} {getattr(before, name)}, and this is "
                    f"{getattr(self, name)}. Move the file away, or give --again to replace it."
                )
        self.rows = before.rows

    def add(self, path: Path, key: str, results: Mapping[str, Any]) -> None:
        """Add a row and write the whole file, by way of a second one: a crash leaves it whole."""
        self.rows[key] = dict(results)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_text(self.to_json(), encoding="utf-8")
        beside.replace(path)

    def to_json(self) -> str:
        """Write the recording as JSON, one row a line, so that a diff shows the rows that moved."""
        about = asdict(self)
        rows = about.pop("rows")
        head = "".join(
            f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in about.items()
        )
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
        return f'{{\n{head} "rows": {{\n{lines}\n }}\n}}\n'


def path_of(device: str) -> Path:
    """Say where a device's recording belongs, as in `course/recorded/tesla-t4.json`."""
    name = re.sub(r"[^a-z0-9]+", "-", device.partition(",")[0].lower()).strip("-")
    return FOLDER / f"{name}.json"


def read(path: Path) -> Recording:
    """Read a recording's file.

    Raises:
        ValueError: When it is none.
    """
    try:
        return Recording(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no recording ({error}): record it again.") from error


def load(device: str) -> Recording:
    """Load what was measured on a GPU, emulated or predicted.

    Args:
        device: As in `NVIDIA H200`, `emulated Tesla T4` or `predicted`.

    Raises:
        ValueError: When there is no such recording, with those that are there.
    """
    there, name = sorted(path.stem for path in FOLDER.glob("*.json")), path_of(device).stem
    if name not in there:
        known = ", ".join(there) or "no recording at all"
        raise ValueError(f"device (={device!r}) has no recording; there is {known}.")
    return read(FOLDER / f"{name}.json")


def emulated() -> list[Recording]:
    """Load every recording of an emulated card, by the names of their files."""
    return [read(path) for path in sorted(FOLDER.glob(f"{_EMULATED}*.json"))]
