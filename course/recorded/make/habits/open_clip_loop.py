"""open_clip's own `train_one_epoch` with `--accum-freq`, on its ViT made small."""

import logging
from types import SimpleNamespace

import open_clip
import torch
from experiment import CLIP, STEPS, Watched, counted, flat, named, replayed, report
from open_clip.loss import ClipLoss
from open_clip_train.train import train_one_epoch
from torch import nn

SIZE, COUNT = 4, 10  # rows of a batch, batches of an epoch
VISION = {"image_size": 8, "patch_size": 4, "layers": 1, "width": 16, "head_width": 8}
TEXT = {"context_length": 6, "vocab_size": 32, "width": 16, "heads": 2, "layers": 1}
draw = torch.Generator().manual_seed(0)
BATCHES = [
    (torch.randn(SIZE, 3, 8, 8, generator=draw), torch.randint(1, 32, (SIZE, 6), generator=draw))
    for _ in range(COUNT)
]


class Loader(list):
    num_batches, num_samples = COUNT, SIZE * COUNT


class Counted(nn.Module):
    """The model, counting images."""

    def __init__(self, model):
        super().__init__()
        self.model, self.images, self.logit_scale = model, 0, model.logit_scale

    def forward(self, images, texts):
        self.images += len(images)
        return self.model(images, texts)


def make_model():
    torch.manual_seed(0)
    return open_clip.CLIP(16, VISION, TEXT, output_dict=True)


def train(epochs=1, clip=None):
    model, rates, losses = Counted(make_model()), [], []
    optimizer = Watched(model.model.parameters())
    arguments = SimpleNamespace(
        device="cpu", precision="fp32", distill=False, accum_freq=STEPS, skip_scheduler=False,
        horovod=False, grad_clip_norm=clip, rank=0, local_rank=0, world_size=1, wandb=False,
        log_every_n_steps=1, batch_size=SIZE, log_local=False,
    )  # fmt: skip
    data = SimpleNamespace(dataloader=Loader(BATCHES), set_epoch=lambda _: None)
    writer = SimpleNamespace(
        add_scalar=lambda name, value, _: losses.append(value) if name == "train/loss" else None
    )
    for epoch in range(epochs):
        train_one_epoch(
            model, {"train": data}, ClipLoss(), epoch, optimizer, None, rates.append, None,
            arguments, writer,
        )  # fmt: skip
    return optimizer.gradients, rates, losses, model.images


def in_one(batches, scale=1.0):
    """Return the gradient and the loss of one large batch."""
    model = make_model()
    images, texts = (torch.cat(part) for part in zip(*batches, strict=True))
    loss = ClipLoss()(**model(images, texts), output_dict=True)["contrastive_loss"]
    loss.backward()
    weights = dict(model.named_parameters())
    weights["logit_scale"].grad *= scale
    return flat([weight.grad for weight in weights.values()]), float(loss.detach())


def with_dropout(switched):
    model, runs = make_model(), []
    block = model.visual.transformer.resblocks[0]
    block.ls_1 = nn.Dropout(0.5)
    block.ls_1.register_forward_pre_hook(lambda *_: runs.append(1))
    model.set_grad_checkpointing(switched)
    torch.manual_seed(1)
    model.train().encode_image(BATCHES[0][0]).square().sum().backward()
    grads = [weight.grad for weight in model.visual.parameters() if weight.grad is not None]
    return flat(grads), len(runs)


logging.disable()
seen, _, _, images = train(2)
once, rates, losses, _ = train()
clip, _, _, _ = train(clip=CLIP)
window = BATCHES[:STEPS]
large, loss = in_one(window)
wrong = in_one(window, STEPS)[0]
names = {"one large batch": large, f"one large batch, its scale times {STEPS}": wrong}
rest = {"dropped": wrong, "updates": in_one(BATCHES[8:], 2)[0]}
cut = wrong * min(1.0, CLIP / float(wrong.norm()))
report(
    version=f"open_clip {open_clip.__version__}",
    divides_by=named(seen[0], names),
    short_window=named(seen[2], rest),
    clips=named(clip[0], {"the window's sum": cut}),
    schedule=counted(len(set(rates)), len(once)),
    ema="",
    logs=named(losses[0], {"one large batch": loss, "divided": loss / STEPS}),
    replays_dropout=replayed(with_dropout(False)[0], *with_dropout(True)),
)
