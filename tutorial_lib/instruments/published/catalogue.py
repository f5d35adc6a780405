"""The catalogue of published models: names, exact sizes, sources and configurations."""

import difflib
import tomllib
from pathlib import Path

from tutorial_lib.instruments.published import config_file
from tutorial_lib.instruments.published.entry import Published


def _read() -> dict[str, Published]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)
    for fields in found.values():  # a list is a tuple there, as in the classes' own defaults
        pairs = fields.pop("config", {}).items()
        fields["config"] = {key: tuple(v) if isinstance(v, list) else v for key, v in pairs}
    return {name: Published(name, **fields) for name, fields in found.items()}


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
    if str(name).endswith(".json") or "/" in str(name) or Path(name).is_dir():  # or the Hub's
        return config_file.read(str(name))
    near = difflib.get_close_matches(str(name).lower(), PUBLISHED, n=3, cutoff=0.4)
    advice = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"There is no published model {name!r}. {advice}The names are {', '.join(PUBLISHED)}; "
        "the path of a config.json works too."
    )
