"""The catalogue of published models: names, exact sizes, sources and configurations.

The numbers of parameters are published facts; a test builds each model and counts.
"""

import difflib
from typing import Any

from tutorial_lib.instruments.published import config_file
from tutorial_lib.instruments.published.entry import Published
from tutorial_lib.instruments.published.image_transformers import IMAGE_TRANSFORMERS
from tutorial_lib.instruments.published.recent import RECENT


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


def _llama_2(name: str, num_parameters: int, sizes: dict[str, int]) -> Published:
    return Published(
        name,
        "causal-lm",
        num_parameters,
        "transformers.LlamaForCausalLM",
        "Touvron et al. (2023), Llama 2, arXiv 2307.09288",
        {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "use_cache": False, **sizes},
        seq=4096,
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


def _vit(
    name: str, num_parameters: int, layers: int, heads: int, width: int, patch: int = 16
) -> Published:
    return Published(
        name,
        "image-classifier",
        num_parameters,
        "transformers.ViTForImageClassification",
        "Dosovitskiy et al. (2021), An Image is Worth 16x16 Words, arXiv 2010.11929; 1000 classes",
        {**_encoder(layers, heads, width), "patch_size": patch, "num_labels": 1000},
        size=224,
    )


def _resnet(name: str, num_parameters: int, depths: tuple[int, ...]) -> Published:
    return Published(
        name,
        "image-classifier",
        num_parameters,
        "transformers.ResNetForImageClassification",
        "He et al. (2016), Deep Residual Learning, arXiv 1512.03385; 1000 classes",
        {"depths": depths, "num_labels": 1000},
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
    _llama_2("llama-2-7b", 6_738_415_616, {}),
    _llama_2(
        "llama-2-70b",
        68_976_648_192,
        {
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
        },
    ),
    Published(
        "llama-3-8b",
        "causal-lm",
        8_030_261_248,
        "transformers.LlamaForCausalLM",
        "Llama Team (2024), The Llama 3 Herd of Models, arXiv 2407.21783",
        {
            "vocab_size": 128_256,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
            "use_cache": False,
        },
        seq=8192,
    ),
    Published(
        "gemma-2-9b",
        "causal-lm",
        9_241_705_984,  # the matrix of embeddings is the head's, and counts once
        "transformers.Gemma2ForCausalLM",
        "Gemma Team (2024), Gemma 2, arXiv 2408.00118",
        {
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "use_cache": False,
        },
        seq=8192,
    ),
    _vit("vit-b-16", 86_567_656, 12, 12, 768),
    _vit("vit-l-16", 304_326_632, 24, 16, 1024),
    _vit("vit-h-14", 632_045_800, 32, 16, 1280, patch=14),
    _resnet("resnet50", 25_557_032, (3, 4, 6, 3)),
    _resnet("resnet101", 44_549_160, (3, 4, 23, 3)),
    _resnet("resnet152", 60_192_808, (3, 8, 36, 3)),
    Published(
        "clip-two-tower",
        "two-tower",
        151_277_313,
        "transformers.CLIPModel",
        "Radford et al. (2021), CLIP, arXiv 2103.00020; ViT-B/32",
        seq=77,
        size=224,
    ),
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
    Published(
        "sd-vae",
        "autoencoder",
        83_653_863,
        "diffusers.AutoencoderKL",
        _LDM + "the autoencoder of Stable Diffusion 1.5 and 2.1",
        {
            "block_out_channels": (128, 256, 512, 512),
            "down_block_types": ("DownEncoderBlock2D",) * 4,
            "up_block_types": ("UpDecoderBlock2D",) * 4,
            "layers_per_block": 2,
            "sample_size": 512,
        },
        size=512,
    ),
    Published(
        "transformer-50",
        "our-lm",
        1_025_489_920,
        "tutorial_lib.models.gpt.GPT",
        "No paper: a GPT of 50 layers with 4 GB of float32 weights, as a much-copied table has it",
        {
            "vocab_size": 32_000,
            "seq_len": 512,
            "num_layers": 50,
            "num_heads": 20,
            "d_model": 1280,
        },
        seq=512,
    ),
    Published(
        "lstm",
        "our-lm",
        66_022_000,  # one bias per gate, as in the paper's equations; nn.LSTM has two
        "tutorial_lib.models.lstm.LSTM",
        "Zaremba et al. (2014), Recurrent Neural Network Regularization, arXiv 1409.2329; large",
        {
            "vocab_size": 10_000,
            "num_layers": 2,
            "d_model": 1500,
            "chunk_len": 35,
            "dropout": 0.65,
        },
        seq=36,  # 35 steps: the last token is only guessed
    ),
    Published(
        "resnet1000",
        "our-classifier",
        10_327_706,
        "tutorial_lib.models.resnet.ResNet",
        "He et al. (2016), Identity Mappings, arXiv 1603.05027; ResNet-1001 for CIFAR-10",
        {"stage_depths": (111, 111, 111)},
        size=32,
    ),
    Published(
        "unet3d",
        "our-segmenter",
        19_069_955,
        "tutorial_lib.instruments.published.unet3d.UNet3d",
        "Çiçek et al. (2016), 3D U-Net, arXiv 1606.06650",
        {"in_channels": 3, "num_classes": 3, "base_channels": 32, "num_levels": 4},
        size=128,
    ),
    *IMAGE_TRANSFORMERS,
)

PUBLISHED: dict[str, Published] = {model.name: model for model in (*_MODELS, *RECENT)}


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
