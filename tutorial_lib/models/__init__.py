"""Models to measure: small ones to read, and published ones to measure at their real size."""

from tutorial_lib.models import published
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.lstm import LSTM, LSTMConfig
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.models.unet3d import UNet3d, UNet3dConfig
from tutorial_lib.models.vit import ViT, ViTConfig

__all__ = [
    "GPT",
    "LSTM",
    "GPTConfig",
    "LSTMConfig",
    "ResNet",
    "ResNetConfig",
    "UNet",
    "UNet3d",
    "UNet3dConfig",
    "UNetConfig",
    "ViT",
    "ViTConfig",
    "published",
]
