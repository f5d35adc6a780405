"""Small models to plan for, and how a plan is checked on a real one."""

import torch
from small_models import published_with_loss, with_loss

from tutorial_lib import memory
from tutorial_lib.data import image_batch
from tutorial_lib.instruments import planning
from tutorial_lib.models.gpt import GPT
from tutorial_lib.models.lstm import LSTM
from tutorial_lib.models.resnet import ResNet
from tutorial_lib.models.unet import UNet
from tutorial_lib.models.vit import ViT

P = 0.1  # dropout everywhere: a recomputation that draws other numbers shows
UNET = {
    **{"base_channels": 16, "channel_multipliers": (1, 2, 2), "blocks_per_level": 2},
    **{"attention_levels": (2,), "time_dim": 32, "groups": 8},
}
HF_UNET = {
    "block_out_channels": (32, 64, 64),
    "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 32,
    "attention_head_dim": 2,
    "sample_size": 16,
    "dropout": P,
}


def hf_unet2d():
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        block_out_channels=(32, 64),
        layers_per_block=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        dropout=P,
        norm_num_groups=8,
    )
    images, times = image_batch(2, 1, 16), torch.tensor([1, 2])
    return model, lambda: model(images, times).sample.square().mean()


def hf_t5():
    """Two towers: the decoder asks for the shape of what lies between them; it would cache too."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 4}
    config = T5Config(**sizes, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0)
    model, tokens = T5ForConditionalGeneration(config), torch.arange(2, 50).view(2, 24)
    return model, lambda: model(input_ids=tokens, labels=tokens[:, :16].contiguous()).loss


LARGER = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 6}
MODELS = {
    "gpt": with_loss(GPT, 4, 64, vocab_size=64, seq_len=64, num_layers=10, d_model=64, dropout=P),
    "vit": with_loss(ViT, 4, 16, image_size=16, num_layers=10, d_model=48, dropout=P),
    "resnet": with_loss(ResNet, 4, 16, stage_depths=(4, 4, 4), base_channels=8, dropout=P),
    "lstm": with_loss(LSTM, 4, 81, vocab_size=64, num_layers=4, d_model=32, chunk_len=8, dropout=P),
    "unet": with_loss(UNet, 4, 16, **UNET, dropout=P),
    "hf-unet2d": hf_unet2d,
    "hf-unet": published_with_loss("sd15-unet", 4, **HF_UNET),
    "hf-gpt2": published_with_loss("gpt2", 4, n_layer=10, hidden_size=64, n_positions=64),
    "hf-llama": published_with_loss(
        *("llama-2-7b", 4),
        **{**LARGER, "vocab_size": 120, "max_position_embeddings": 64, "attention_dropout": P},
    ),
    "hf-t5": hf_t5,
    "hf-bert": published_with_loss("bert-base", 4, **LARGER),
}


def profiled(name, **asked):
    """Build a model, profile it, and give its smallest and its largest peak too."""
    model, loss = MODELS[name]()
    model.train()
    # predicted seconds, so that the plans are the same on every machine and at every load
    profile = planning.profile(model, loss, speed=planning.Speed(), **asked)
    everything = tuple(range(len(profile.stages)))
    whole = planning.simulate(profile.stages, everything, profile.skips).peak_bytes
    return model, loss, profile, planning.floor_bytes(profile), whole


def gradients(model, loss):
    """Gradients by name, of one backward from the same random numbers."""
    for parameter in model.parameters():
        parameter.grad = None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for parameter in model.parameters():
        parameter.grad = None
    return found


def counted_peak(model, loss):
    """Bytes of forward and backward besides the model, gradients and batch, by the meter."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    report = memory.measure(lambda: loss().backward(), model=model)
    return report.peak_bytes - report.baseline_bytes


def executed(model, loss, profile, budget):
    """Run the plan for a budget: it, whether gradients are equal bit for bit, the counted peak."""
    found = planning.solve(profile, budget_bytes=budget)
    before = gradients(model, loss)
    planning.apply(model, found)
    try:
        after = gradients(model, loss)
        peak = counted_peak(model, loss)
    finally:
        planning.undo(model)
    same = before.keys() == after.keys()
    same = same and all(torch.equal(before[name], after[name]) for name in before)
    return found, same, peak
