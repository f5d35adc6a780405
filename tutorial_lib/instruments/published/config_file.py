"""Models that a `config.json` of transformers or diffusers describes: a path, a folder, the Hub.

No code and no weights of a repository are read, only this one file.
"""

import difflib
import functools
import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tutorial_lib.instruments.published.entry import Published
from tutorial_lib.instruments.published.libraries import quiet

SEQ = 1024  # tokens of a batch where nothing else is asked for; fewer where the model knows fewer
SIZE = 224
CLIP_LENGTH, T5_LENGTH = 77, 512

# Which of transformers' tables of models are trained on which of our batches.
_TABLES: dict[str, str] = {
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "causal-lm",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "masked-lm",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "causal-lm",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "image-classifier",
}
_OF_DIFFUSERS: dict[str, str] = {
    "UNet2DConditionModel": "unet",
    "AutoencoderKL": "autoencoder",
    "SD3Transformer2DModel": "rectified-flow",
    "FluxTransformer2DModel": "rectified-flow",
}
# What a file says beside the model's shape.
_NOT_SHAPE = {
    *("model_type", "architectures", "transformers_version", "auto_map", "quantization_config"),
    *("torch_dtype", "dtype", "attn_implementation", "id2label", "label2id"),
}
_WAY_OUT = "give a function that builds it, as in --model train.py:make_step"


def read(name: str) -> Published:
    """Read what a model is from its `config.json`: a file, a folder with it, a name on the Hub.

    Raises:
        ValueError: When the file cannot be had, is no such file, or describes a model that
            transformers and diffusers do not know or that no batch is known for.
    """
    path = _file(name)
    return _parsed(name, path, path.stat().st_mtime_ns)


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        places = (path, path / "unet", path / "transformer")  # the latter of diffusers' pipelines
        for file in (place / "config.json" for place in places):
            if file.is_file():
                return file
        raise ValueError(
            f"The folder {name} has no config.json: name the folder that from_pretrained takes."
        )
    if path.is_file():
        return path
    if name.endswith(".json") or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(
            f"There is no file {name}: give the path of a config.json, or of a folder with one."
        )
    return _from_hub(name)


def _from_hub(name: str) -> Path:
    from huggingface_hub import constants, get_session, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    offline = False
    try:  # hf_hub_download tries again for half a minute where there is no network
        get_session().head(constants.ENDPOINT, timeout=3)
    except Exception:  # of requests or httpx, by the library's version
        offline = True
    try:
        with quiet():
            return Path(hf_hub_download(name, "config.json", local_files_only=offline))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ValueError(
            f"{name} isn't a folder here, and the Hub gave no config.json for it "
            f"({type(error).__name__}): without a network or access, fetch that file elsewhere and "
            "give its path."
        ) from error


@functools.lru_cache(maxsize=64)
def _parsed(name: str, path: Path, _changed: int) -> Published:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} isn't complete JSON ({error}): save it anew with config.save_pretrained(...)."
        ) from error
    if isinstance(data, dict) and "_class_name" in data:
        return _of_diffusers(name, data)
    if isinstance(data, dict) and "model_type" in data:
        return _of_transformers(name, data)
    raise ValueError(
        f"{path} says neither model_type (transformers) nor _class_name (diffusers): give a "
        f"config.json that save_pretrained wrote, or {_WAY_OUT}."
    )


def _of_diffusers(name: str, data: Mapping[str, Any]) -> Published:
    cls = str(data["_class_name"])
    if cls not in _OF_DIFFUSERS:
        raise ValueError(
            f"{name} is a {cls} of diffusers; batches are known for "
            f"{', '.join(_OF_DIFFUSERS)}. For others {_WAY_OUT}."
        )
    family = _OF_DIFFUSERS[cls]
    known = inspect.signature(getattr(importlib.import_module("diffusers"), cls)).parameters
    config = {key: value for key, value in data.items() if key in known and value is not None}
    side = config.get("sample_size") or {"unet": 64, "rectified-flow": 128}.get(family, SIZE)
    seq = {"unet": CLIP_LENGTH, "rectified-flow": T5_LENGTH}.get(family)
    return Published(name, family, 0, f"diffusers.{cls}", name, config, seq, side)


def _of_transformers(name: str, data: dict[str, Any]) -> Published:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    kinds = list(importlib.import_module("transformers").CONFIG_MAPPING.keys())
    kind = data["model_type"]
    if kind not in kinds:
        if "auto_map" in data:
            raise ValueError(
                f"{name} needs code from its own repository (auto_map), which is not run here: "
                f"{_WAY_OUT}."
            )
        near = difflib.get_close_matches(str(kind), kinds, n=3)
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"{name} has model_type {kind!r}, which this transformers does not know.{guess} "
            f"Otherwise {_WAY_OUT}."
        )
    head, family = _head(auto, name, kind, (data.get("architectures") or [""])[0])
    with_head = getattr(importlib.import_module("transformers"), head)
    full = with_head.config_class.from_dict(dict(data))
    config = {key: value for key, value in data.items() if key not in _NOT_SHAPE and key[0] != "_"}
    if getattr(full, "use_cache", False):
        config["use_cache"] = False  # as in training: it is for generation
    seq: int | None = SEQ
    size: int | None = None
    if family in ("image-classifier", "two-tower"):
        side = getattr(full, "image_size", None)
        size = side if isinstance(side, int) else SIZE
        seq = full.text_config.max_position_embeddings if family == "two-tower" else None
        config |= {"num_labels": full.num_labels} if family == "image-classifier" else {}
    return Published(name, family, 0, f"transformers.{head}", name, config, seq, size)


def _head(auto: Any, name: str, kind: str, asked: str) -> tuple[str, str]:
    """Choose the class to train: the file's own, else the first that fits its kind of model."""
    if kind == "clip":
        return "CLIPModel", "two-tower"
    tables = {table: getattr(auto, table) for table in _TABLES}
    for table, classes in tables.items():
        if asked in {one for entry in classes.values() for one in _classes(entry)}:
            return asked, _TABLES[table]
    if "For" not in asked:  # the model without any head, or nothing said
        for table, classes in tables.items():
            if kind in classes:
                return next(_classes(classes[kind])), _TABLES[table]
    raise ValueError(
        f"{name} is a {asked or kind}; batches are known for language models, masked or not, for "
        f"image classifiers and for CLIP. For others {_WAY_OUT}."
    )


def _classes(entry: str | tuple[str, ...]) -> Iterator[str]:
    return iter((entry,) if isinstance(entry, str) else entry)
