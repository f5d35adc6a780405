"""Transformers that make images: the entries of the catalogue from 2024 on."""

from tutorial_lib.instruments.published.entry import Published

IMAGE_TRANSFORMERS = (
    Published(
        "sd35-medium",
        "rectified-flow",
        2_243_171_520,  # its table of positions, 226,492,416 numbers, is a buffer
        "diffusers.SD3Transformer2DModel",
        "Esser et al. (2024), Scaling Rectified Flow Transformers, arXiv 2403.03206; Stable "
        "Diffusion 3.5 Medium, the transformer's config.json",
        {
            "num_layers": 24,
            "num_attention_heads": 24,
            "caption_projection_dim": 1536,
            "pos_embed_max_size": 384,
            "dual_attention_layers": tuple(range(13)),
            "qk_norm": "rms_norm",
        },
        seq=333,  # 77 tokens of CLIP, 256 of T5
        size=128,
    ),
    Published(
        "flux-dev",
        "rectified-flow",
        11_901_408_320,
        "diffusers.FluxTransformer2DModel",
        "Black Forest Labs (2024), FLUX.1 [dev], the transformer's config.json",
        {"guidance_embeds": True},
        seq=512,  # of T5
        size=128,
    ),
)
