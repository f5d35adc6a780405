"""Models to measure: small ones to read, and published ones to measure at their real size."""

from tutorial_lib.models import published
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

__all__ = ["GPT", "GPTConfig", "UNet", "UNetConfig", "published"]
