"""Draw the README's picture, and the larger one that a link to the course shows elsewhere.

One step of training, plain and with every block checkpointed:

    python course/recorded/make/readme_picture.py

Both are counted, on the step of chapter 00, so every machine draws the same curves.
"""

import io
from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image

from tutorial_lib import memory, plots
from tutorial_lib.instruments import segments
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.units import MIB, human_bytes

FIGURES = Path(__file__).resolve().parents[3] / "course/figures"
SHOWN = ("parameters", "gradients", "optimizer_state", "activations", "recomputed", "temporary")


def measured(strategy):
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=1000, seq_len=128, num_layers=12, num_heads=4, d_model=256))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, 1000, (8, 128))

    def step():
        optimizer.zero_grad()
        with segments.applied(model, strategy):
            model.loss(tokens).backward()
        optimizer.step()

    report = memory.measure(step, model=model, optimizer=optimizer, flops=True)
    return report, [p.grad.clone() for p in model.parameters()]


def draw(figure, plain, frugal, size):
    """Draw both ramps, with titles a little larger than `size`, in points."""
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, report, title in ((left, plain, "plain"), (right, frugal, "each block checkpointed")):
        curve = report.curve()
        heights = [[point[name] / MIB for point in curve] for name in SHOWN]
        for stack, name in zip(axes.stackplot(range(len(curve)), heights), SHOWN, strict=True):
            stack.set(facecolor=plots.COLORS[name], hatch=plots.HATCHES[name], linewidth=0.4)
            stack.set(edgecolor="#222222", label=name.replace("_", " "))
        axes.set_title(f"{title}: {human_bytes(report.peak_bytes)} at the peak", fontsize=size + 2)
        axes.set(xticks=[], xlabel="one training step, allocation by allocation")
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("MiB, counted")
    right.legend(fontsize=size, frameon=False, loc="upper right")


def social(plain, frugal):
    """Return the picture of 1280 by 640 pixels that GitHub asks for, in few colours."""
    figure = Figure(figsize=(12.8, 6.4), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.2, h_pad=0.15)
    figure.suptitle("Training that fits", fontsize=34, fontweight="bold")
    draw(figure, plain, frugal, 12)
    figure.supxlabel("a hands-on course on gradient checkpointing and accumulation", fontsize=20)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    return Image.open(drawn).convert("RGB").quantize(64)


def main():
    (plain, wanted), (frugal, seen) = measured("none"), measured("per-block")
    same = all(map(torch.equal, wanted, seen))
    figure = Figure(figsize=(9, 3.4), layout="constrained", facecolor="white")
    draw(figure, plain, frugal, 8)
    figure.savefig(FIGURES / "ramp.png", dpi=130, metadata={"Software": None})
    social(plain, frugal).save(FIGURES / "social.png", optimize=True)
    flops = frugal.flops / plain.flops - 1
    print(f"same gradients to the bit: {same}; FLOPs {flops:+.0%}; peak {plain.peak_bytes}, "
          f"{frugal.peak_bytes}")  # fmt: skip


if __name__ == "__main__":
    main()
