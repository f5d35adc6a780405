"""DeepSpeed's engine on one CPU process with `gradient_accumulation_steps`, and its checkpoint."""

import logging
import os

import deepspeed
import torch
from experiment import CLIP, ROWS, STEPS, Linear, Watched, averages, cells, flat, replayed, report
from torch import nn

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29583"}
logging.disable()
deepspeed.init_distributed("gloo")


def train(epochs, clip=0.0):
    model = Linear()
    optimizer = Watched(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=schedule,
        config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": STEPS,
                "gradient_clipping": clip, "zero_allow_untested_optimizer": True},
    )  # fmt: skip
    for _ in range(epochs):
        for x in torch.utils.data.DataLoader(ROWS, batch_size=1):
            engine.backward(engine(x))
            engine.step()
    return optimizer.gradients, schedule.last_epoch


def with_dropout(checkpointed):
    torch.manual_seed(0)
    runs = []
    part = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.ReLU())
    part[0].register_forward_pre_hook(lambda *_: runs.append(1))
    x = torch.randn(32, 64, requires_grad=True)
    torch.manual_seed(1)
    y = deepspeed.checkpointing.checkpoint(part, x) if checkpointed else part(x)
    y.square().sum().backward()
    return flat([weight.grad for weight in part.parameters()]), len(runs)


seen, _ = train(2)
once, schedule = train(1)
clip, _ = train(1, CLIP)
report(
    version=f"deepspeed {deepspeed.__version__}",
    **cells(seen, once, schedule, clip),
    ema=averages(deepspeed, "runtime/*.py"),
    logs="",
    replays_dropout=replayed(with_dropout(False)[0], *with_dropout(True)),
)
