"""The catalogue of published models: names, exact sizes, sources and configurations."""

import difflib
import tomllib
from pathlib import Path
from typing import Any

from tutorial_lib.instruments.published import config_file
from tutorial_lib.instruments.published.entry import Published


def _read() -> dict[str, Published]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {name: _entry(name, **fields) for name, fields in tomllib.loads(text).items()}


def _entry(name: str, config: dict[str, Any] | None = None, **fields: Any) -> Published:
    """Make an entry; a list is a tuple there, as in the classes' own defaults."""
    pairs = (config or {}).items()
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in pairs}
    return Published(name, config=values, **fields)


PUBLISHED = _read()


def find(name: str | Published) -> Published:
    """Look a published model up by name, or read what its configuration file says.

    Args:
        name: A key of `PUBLISHED`; the path of a `config.json` of transformers or diffusers, or of
            a folder with one; or a name on the Hub, as in `openai-community/gpt2`, whose
            `config.json` alone is then downloaded. A `Published` is given back.

    Raises:
        ValueError: When there is none of that name, with the nearest names; when the file cannot
            be had or read; or when no batch is known for what it describes.
    """
    if isinstance(name, Published):
        return name
    if name in PUBLISHED:
        return PUBLISHED[name]
    if config_file.is_place(str(name)):
        return config_file.read(str(name))
    near = difflib.get_close_matches(str(name).lower(), PUBLISHED, n=3, cutoff=0.4)
    advice = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"There is no published model {name!r}. {advice}The names are {', '.join(PUBLISHED)}; "
        "the path of a config.json is taken too."
    )
