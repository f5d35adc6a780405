"""The libraries that published models come from: transformers, diffusers, and this course.

Each has its own way to say what a model's configuration is and to build a model from it.
"""

import contextlib
import dataclasses
import difflib
import importlib
import inspect
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from torch import nn

from tutorial_lib.instruments.private_torch import imported
from tutorial_lib.instruments.published.entry import Published


def class_of(model: Published) -> Any:
    """Import a model's class. It takes seconds: only who needs a model waits for it."""
    module, _, name = model.model_class.rpartition(".")
    return getattr(imported(module), name)


def construct(model: Published, config: Mapping[str, Any], attention: str) -> nn.Module:
    """Build a model with the weights that its library draws, from what `full_config` gave."""
    cls = class_of(model)
    built: Any
    if _library(model) == "diffusers":
        if attention == "eager" and model.family == "rectified-flow":
            raise ValueError(
                f"diffusers runs {model.name} with fused attention alone, but attention is "
                "'eager': use 'sdpa'."
            )
        built = cls(**config)
        if attention == "eager":
            processors = importlib.import_module("diffusers.models.attention_processor")
            built.set_attn_processor(processors.AttnProcessor())
    elif _library(model) == "transformers":
        # transformers refuses to build what has no attention with sdpa
        kernel = attention if cls._supports_sdpa else "eager"
        built = cls(cls.config_class(**config, attn_implementation=kernel))
    else:
        known, _ = _fields(model)
        kernels = {"attention": attention} if "attention" in known else {}
        built = cls(_our_config(model)(**{**kernels, **config}))
    made: nn.Module = built
    return made


def full_config(model: Published, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Join a model's configuration with overrides.

    Raises:
        ValueError: When an override is no field of the configuration class: transformers would
            take it without a word and change nothing.
    """
    defaults, aliases = _fields(model)
    _refuse_unknown(model, overrides, defaults, aliases)
    return {**model.config, **{aliases.get(key, key): overrides[key] for key in overrides}}


def config_value(model: Published, overrides: Mapping[str, Any], key: str) -> Any:
    """Return a field of a model's configuration, be it published, overridden or a default.

    `text_config.vocab_size` looks inside `text_config`; `None` means a field that the
    configuration class does not have.
    """
    defaults, aliases = _fields(model)
    outer, _, inner = key.partition(".")
    outer = aliases.get(outer, outer)
    value: Any = {**defaults, **full_config(model, overrides)}.get(outer)
    return {**defaults[outer], **value}.get(inner) if inner else value


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back warnings and log lines below errors, and let them through again after."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def making_lora() -> Iterator[None]:
    """Make peft build LoRA layers, without warnings and without a torchao that it is too new for.

    peft refuses to make any LoRA layer where torchao is installed and older than 0.16, as it is on
    Colab, although torchao has no part in a LoRA of plain layers. Nothing is replaced: peft is
    asked once while torchao cannot be found, and remembers the answer.

    Source:
        peft/import_utils.py (0.19 to 0.21), `is_torchao_available`.
    """
    from peft import import_utils

    try:
        import_utils.is_torchao_available()
    except ImportError:
        with mock.patch.dict(sys.modules, {"torchao": None}):
            import_utils.is_torchao_available()
    with quiet():
        yield


def _library(model: Published) -> str:
    return model.model_class.partition(".")[0]


def _our_config(model: Published) -> Any:
    module = importlib.import_module(class_of(model).__module__)
    return getattr(module, f"{class_of(model).__name__}Config")


def _fields(model: Published) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of a configuration with their defaults, and their other names."""
    with quiet():
        cls = class_of(model)
        if _library(model) == "diffusers":
            parameters = inspect.signature(cls).parameters.values()
            return {p.name: p.default for p in parameters}, {}
        if _library(model) == "transformers":
            default = cls.config_class()
            # num_labels is stored as a table of labels, so to_dict() does not show it
            fields = {**default.to_dict(), "num_labels": default.num_labels}
            return fields, dict(default.attribute_map)
        return {field.name: field.default for field in dataclasses.fields(_our_config(model))}, {}


def _refuse_unknown(
    model: Published,
    overrides: Mapping[str, Any],
    defaults: Mapping[str, Any],
    aliases: Mapping[str, str],
) -> None:
    for key, value in overrides.items():
        if key not in defaults and key not in aliases:
            near = difflib.get_close_matches(key, [*defaults, *aliases], n=3, cutoff=0.4)
            raise ValueError(
                f"{key!r} isn't a field of the configuration of {model.name}. "
                f"Try {' or '.join(near) if near else 'one of ' + ', '.join(sorted(defaults))}."
            )
        if key.endswith("_config") and isinstance(value, Mapping):  # a model made of models
            _refuse_unknown(model, value, defaults[key], {})
