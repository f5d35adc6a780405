"""Ask `plan` for pairs of model and budget, and keep the answers for chapters 07d and 14c.

    python course/recorded/make/plan_pairs.py [plans] [offload]

Each answer is the command's own. Where nothing fits that keeps weights and states in float32, the
row is what fits otherwise, and says what that changes. `offload` asks for each pair twice: without
a host, and with one behind PCIe 4.
"""

import contextlib
import csv
import datetime
import io
import json
import sys
from pathlib import Path

import torch
from diffusers import WanTransformer3DModel

from tutorial_lib.school.commands.main import run

ROOT = Path(__file__).resolve().parents[3]
MODELS = ("gpt2-xl", "llama-2-7b", "sd21-unet")
EFFECTIVE_BATCH = 64
BEST = ("precision", "optimizer", "micro_batch", "accumulation", "overhead", "peak_bytes")
MORE = ("host_bytes", "seconds")
OFFLOAD = {
    "gpt2-xl": "--effective-batch 8 --precision bf16 --optimizer adamw-8bit",
    "llama-3-8b": "--effective-batch 1 --seq 8192 --lora r=16 --precision bf16",
    f"{__file__}:wan": "--effective-batch 1 --precision bf16 --optimizer adamw-8bit",
}


def wan(micro_batch=1):
    """Wan 2.1's transformer of 1.3 billion weights, and five seconds of video: 32,760 tokens."""
    model = WanTransformer3DModel(num_attention_heads=12, ffn_dim=8960, num_layers=30)
    video, text = torch.randn(micro_batch, 16, 21, 60, 104), torch.randn(micro_batch, 512, 4096)
    times = torch.full((micro_batch,), 500)
    return lambda: model(video, times, text).sample.float().square().mean(), model


def ask(model, gib, words, columns=BEST):
    words = [model, "--budget", f"{gib}GiB", *words, "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run(["plan", *words])
    found = json.loads(printed.getvalue())
    best = found["best"] or found["otherwise"] or {}
    return {
        "model": model.rpartition(":")[2],
        "budget_gib": gib,
        "changes": " and ".join(best.get("changes", [])),
        **{name: best.get(name, "") for name in columns},
        "smallest_bytes": found["smallest_bytes"],
        "date": datetime.date.today().isoformat(),
    }


def plans():
    for model in MODELS:
        for gib in (16, 24, 80):
            yield ask(model, gib, ["--effective-batch", str(EFFECTIVE_BATCH)])


def offload():
    for model, words in OFFLOAD.items():
        for gib in (16, 24, 48, 80):
            for link in ("", "pcie-4"):
                more = ["--link", link] if link else []
                yield {"link": link} | ask(model, gib, [*words.split(), *more], BEST + MORE)


def main(asked):
    for make in [globals()[name] for name in asked]:
        rows = []
        for row in make():
            rows.append(row)
            print(row, flush=True)
        path = ROOT / f"course/recorded/{make.__name__}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:] or ["plans", "offload"])
