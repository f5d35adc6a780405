"""Accelerate's `accumulate`, in the loop of its documentation; FSDP2's wrapping by its plugin."""

from types import SimpleNamespace

import accelerate
import torch
from accelerate.utils import fsdp_utils
from experiment import CLIP, ROWS, STEPS, Linear, Watched, averages, cells, flat, replayed, report
from torch import nn


def train(epochs, clip=None):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=STEPS)
    model = Linear()
    optimizer = Watched(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    loader = torch.utils.data.DataLoader(ROWS, batch_size=1)
    model, prepared, loader, stepped = accelerator.prepare(model, optimizer, loader, schedule)
    for _ in range(epochs):
        for x in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x))
                if clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                prepared.step()
                stepped.step()
                prepared.zero_grad()
    return optimizer.gradients, schedule.last_epoch


def with_dropout(wrap):
    torch.manual_seed(0)
    runs = []
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.ReLU()))
    model[0][0].register_forward_pre_hook(lambda *_: runs.append(1))
    if wrap:
        plugin = SimpleNamespace(activation_checkpointing_offload=False)
        fsdp_utils.fsdp2_prepare_auto_wrap_policy = lambda *_: lambda m: type(m) is nn.Sequential
        state = SimpleNamespace(fsdp_plugin=plugin)
        fsdp_utils.fsdp2_apply_ac(SimpleNamespace(state=state), model)
    torch.manual_seed(1)
    model(torch.randn(32, 64)).square().sum().backward()
    return flat([weight.grad for weight in model.parameters()]), len(runs)


seen, _ = train(2)
clip, _ = train(1, CLIP)
once, schedule = train(1)
report(
    version=f"accelerate {accelerate.__version__}",
    **cells(seen, once, schedule, clip),
    ema=averages(accelerate),
    logs="",  # the loop is yours
    replays_dropout=replayed(with_dropout(False)[0], *with_dropout(True)) + " (FSDP2's plugin)",
)
