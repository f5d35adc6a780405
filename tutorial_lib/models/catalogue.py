"""The catalogue of published models: names, exact sizes, sources and configurations.

The numbers of parameters are published facts; a test builds each model and counts.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal["causal-lm", "masked-lm", "image-classifier", "unet"]


@dataclass(frozen=True)
class Published:
    """A published model: what it is, how many parameters it has, how to build it.

    Args:
        name: Its key in `PUBLISHED`.
        family: Decides what a batch and the loss are.
        num_parameters: Exactly as many as the model has; tied weights count once.
        model_class: The class in transformers or diffusers, head included.
        config: What differs from that class's default configuration.
        seq: Tokens in a batch's sequences when nothing else is asked for; of text, for a U-Net.
        size: Height and width of a batch's images: pixels, or latents for a U-Net.
        source: The publication.
    """

    name: str
    family: Family
    num_parameters: int
    model_class: str
    source: str
    config: Mapping[str, Any] = field(default_factory=dict)
    seq: int | None = None
    size: int | None = None


def _gpt2(name: str, num_parameters: int, layers: int, heads: int, width: int) -> Published:
    return Published(
        name,
        "causal-lm",
        num_parameters,
        "transformers.GPT2LMHeadModel",
        "Radford et al. (2019), Language Models are Unsupervised Multitask Learners",
        {"n_layer": layers, "n_head": heads, "n_embd": width, "use_cache": False},
        seq=1024,
    )


def _bert(name: str, num_parameters: int, layers: int, heads: int, width: int) -> Published:
    return Published(
        name,
        "masked-lm",
        num_parameters,  # with the masked-LM head, without the pooler: what this loss trains
        "transformers.BertForMaskedLM",
        "Devlin et al. (2019), BERT, arXiv 1810.04805; the uncased vocabulary",
        _encoder(layers, heads, width),
        seq=512,
    )


def _vit(name: str, num_parameters: int, layers: int, heads: int, width: int) -> Published:
    return Published(
        name,
        "image-classifier",
        num_parameters,
        "transformers.ViTForImageClassification",
        "Dosovitskiy et al. (2021), An Image is Worth 16x16 Words, arXiv 2010.11929; 1000 classes",
        {**_encoder(layers, heads, width), "num_labels": 1000},
        size=224,
    )


def _encoder(layers: int, heads: int, width: int) -> dict[str, int]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": width,
        "intermediate_size": 4 * width,
    }


def _unet(
    name: str, num_parameters: int, size: int, source: str, config: dict[str, Any]
) -> Published:
    return Published(
        name,
        "unet",
        num_parameters,
        "diffusers.UNet2DConditionModel",
        source,
        {"sample_size": size, **config},
        seq=77,  # CLIP's text length
        size=size,
    )


_LDM = "Rombach et al. (2022), High-Resolution Image Synthesis, arXiv 2112.10752; "
_MODELS = (
    _gpt2("gpt2", 124_439_808, 12, 12, 768),
    _gpt2("gpt2-medium", 354_823_168, 24, 16, 1024),
    _gpt2("gpt2-large", 774_030_080, 36, 20, 1280),
    _gpt2("gpt2-xl", 1_557_611_200, 48, 25, 1600),
    _bert("bert-base", 109_514_298, 12, 12, 768),
    _bert("bert-large", 335_174_458, 24, 16, 1024),
    Published(
        "llama-2-7b",
        "causal-lm",
        6_738_415_616,
        "transformers.LlamaForCausalLM",
        "Touvron et al. (2023), Llama 2, arXiv 2307.09288",
        {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "use_cache": False},
        seq=4096,
    ),
    _vit("vit-b-16", 86_567_656, 12, 12, 768),
    _vit("vit-l-16", 304_326_632, 24, 16, 1024),
    _unet(
        "sd15-unet",
        859_520_964,
        64,
        _LDM + "Stable Diffusion 1.5",
        {"cross_attention_dim": 768, "attention_head_dim": 8},
    ),
    _unet(
        "sd21-unet",
        865_910_724,
        96,
        _LDM + "Stable Diffusion 2.1, the 768-pixel model",
        {
            "cross_attention_dim": 1024,
            "attention_head_dim": (5, 10, 20, 20),
            "use_linear_projection": True,
        },
    ),
    _unet(
        "sdxl-unet",
        2_567_463_684,
        128,
        "Podell et al. (2023), SDXL, arXiv 2307.01952; the base model",
        {
            "cross_attention_dim": 2048,
            "attention_head_dim": (5, 10, 20),
            "use_linear_projection": True,
            "block_out_channels": (320, 640, 1280),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "transformer_layers_per_block": (1, 2, 10),
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
    ),
)

PUBLISHED: dict[str, Published] = {model.name: model for model in _MODELS}


def find(name: str) -> Published:
    """Look a published model up by name.

    Raises:
        ValueError: When there is none of that name; the nearest names are in the message.
    """
    if name in PUBLISHED:
        return PUBLISHED[name]
    near = difflib.get_close_matches(str(name).lower(), PUBLISHED, n=3, cutoff=0.4)
    advice = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"There is no published model {name!r}. {advice}The names are {', '.join(PUBLISHED)}."
    )


def full_config(model: Published, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Join a model's configuration with overrides.

    Raises:
        ValueError: When an override is no field of the configuration class: transformers would
            take it without a word and change nothing.
    """
    defaults, aliases = _fields(model)
    for key in overrides:
        if key not in defaults and key not in aliases:
            near = difflib.get_close_matches(key, [*defaults, *aliases], n=3, cutoff=0.4)
            raise ValueError(
                f"{key!r} is no field of the configuration of {model.name}. "
                f"Try {' or '.join(near) if near else 'one of ' + ', '.join(sorted(defaults))}."
            )
    return {**model.config, **{aliases.get(key, key): overrides[key] for key in overrides}}


def config_value(model: Published, overrides: Mapping[str, Any], key: str) -> Any:
    """Give one field of a model's configuration, be it published, overridden or a default."""
    defaults, aliases = _fields(model)
    return {**defaults, **full_config(model, overrides)}[aliases.get(key, key)]


def _fields(model: Published) -> tuple[dict[str, Any], dict[str, str]]:
    """Give the fields of a configuration with their defaults, and their other names."""
    with quiet():
        cls = class_of(model)
        if model.family == "unet":
            parameters = inspect.signature(cls).parameters.values()
            return {p.name: p.default for p in parameters}, {}
        default = cls.config_class()
        # num_labels is stored as a table of labels, so to_dict() does not show it
        fields = {**default.to_dict(), "num_labels": default.num_labels}
        return fields, dict(default.attribute_map)


def class_of(model: Published) -> Any:
    """Import a model's class. It takes seconds: only who needs a model waits for it."""
    module, _, name = model.model_class.rpartition(".")
    return getattr(importlib.import_module(module), name)


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
