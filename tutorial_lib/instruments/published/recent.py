"""Published models since 2023, as data for the catalogue: language models, encoders of text and
images.

Each configuration is the published one where it differs from the class's defaults.
"""

from typing import Any

from tutorial_lib.instruments.published.entry import Published

_QWEN3 = "Qwen Team (2025), Qwen3 Technical Report, arXiv 2505.09388"
_DINOV2 = "Oquab et al. (2023), DINOv2, arXiv 2304.07193; the linear classifier of 1000 classes"
_MODERNBERT = "Warner et al. (2024), ModernBERT, arXiv 2412.13663"


def _causal(
    name: str, num_parameters: int, kind: str, source: str, seq: int, **config: Any
) -> Published:
    config = {"use_cache": False, **config}
    kind = f"transformers.{kind}ForCausalLM"
    return Published(name, "causal-lm", num_parameters, kind, source, config, seq=seq)


def _qwen3(size: str, num_parameters: int, layers: int, heads: int, *widths: int) -> Published:
    hidden, intermediate = widths
    return _causal(
        f"qwen3-{size}",
        num_parameters,
        "Qwen3",
        _QWEN3,
        4096,  # of the first two stages of its pretraining
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=hidden < 4096,
    )


def _encoder(layers: int, heads: int, hidden: int) -> dict[str, int]:
    return {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden}


def _modernbert(
    name: str, num_parameters: int, layers: int, heads: int, hidden: int, intermediate: int
) -> Published:
    return Published(
        name,
        "masked-lm",
        num_parameters,
        "transformers.ModernBertForMaskedLM",
        _MODERNBERT,
        {**_encoder(layers, heads, hidden), "intermediate_size": intermediate},
        seq=1024,  # of most of its pretraining; it knows 8192 positions
    )


def _dinov2(name: str, num_parameters: int, layers: int, heads: int, hidden: int) -> Published:
    return Published(
        name,
        "image-classifier",
        num_parameters,
        "transformers.Dinov2ForImageClassification",
        _DINOV2,
        {**_encoder(layers, heads, hidden), "patch_size": 14, "image_size": 518}
        | {"num_labels": 1000},
        size=518,
    )


RECENT = (
    _causal(
        "llama-3.1-8b",
        8_030_261_248,
        "Llama",
        "Llama Team (2024), The Llama 3 Herd of Models, arXiv 2407.21783; Llama 3.1",
        8192,  # of its pretraining; it knows 131072 positions
        vocab_size=128_256,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    _qwen3("0.6b", 596_049_920, 28, 16, 1024, 3072),
    _qwen3("1.7b", 1_720_574_976, 28, 16, 2048, 6144),
    _qwen3("4b", 4_022_468_096, 36, 32, 2560, 9728),
    _qwen3("8b", 8_190_735_360, 36, 32, 4096, 12288),
    _causal(
        "gemma-2-2b",
        2_614_341_888,  # the matrix of embeddings is the head's, and counts once
        "Gemma2",
        "Gemma Team (2024), Gemma 2, arXiv 2408.00118",
        8192,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
    ),
    _causal(
        "mistral-7b",
        7_241_732_096,
        "Mistral",
        "Jiang et al. (2023), Mistral 7B, arXiv 2310.06825; v0.1",
        8192,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-5,
        sliding_window=4096,
    ),
    _causal(
        "olmoe-1b-7b",
        6_919_161_856,  # 1.3 billion of them work on a token: 8 of 64 experts
        "Olmoe",
        "Muennighoff et al. (2024), OLMoE, arXiv 2409.02060; the model of 0924",
        4096,
        intermediate_size=1024,
        num_experts=64,
        num_experts_per_tok=8,
    ),
    _modernbert("modernbert-base", 149_655_232, 22, 12, 768, 1152),
    _modernbert("modernbert-large", 395_881_664, 28, 16, 1024, 2624),
    _dinov2("dinov2-base", 88_117_480, 12, 12, 768),
    _dinov2("dinov2-large", 306_417_640, 24, 16, 1024),
)
