"""Does a training step run under a cap? Our answers against capped runs on real GPUs.

    .venv-cuda/bin/pip install --no-deps torchvision==0.28.0
    .venv-cuda/bin/python tests/benchmarks/fits.py            all rows
    .venv-cuda/bin/python tests/benchmarks/fits.py 'VGG*'     these models
    python tests/benchmarks/fits.py --table                   only print what is kept

`course/recorded/peers.csv` holds what xMem's authors published (Shi, Pezaros, Elkhatib, Middleware
2025, arXiv 2510.21048): for each row what NVML saw of a free run, and whether the same loop ran
again when PyTorch's share of the card was capped at each estimator's figure. Figures only; nothing
of their code. `fits.csv` beside it keeps our answers: the predicted peak, the emulated one, and
whether the loop ran under the cap on an emulated card.
"""

from __future__ import annotations

import csv
import fnmatch
import gc
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from published_steps import old_loss

from tutorial_lib import memory
from tutorial_lib.instruments.emulated import emulate, find_card, find_cuda_torch
from tutorial_lib.memory import private_torch

FOLDER = Path(__file__).resolve().parents[2] / "course" / "recorded"
ROOT = FOLDER.parents[1]
CARDS = {"RTX-3060": "rtx-3060", "RTX-4060": "rtx-4060", "A100-40GB": "a100-40"}
CAPS = ("xmem", "dnnmem", "schedtune")
ITERATIONS = 4
TOKENS = 128  # where the source does not say
PEAKS = ("requested", "allocated", "reserved")

IMAGES = {
    "ConvNeXtTiny": "convnext_tiny",
    "ConvNeXtBase": "convnext_base",
    "MnasNet": "mnasnet1_0",
    "MobileNetV2": "mobilenet_v2",
    "MobileNetV3Large": "mobilenet_v3_large",
    "MobileNetV3Small": "mobilenet_v3_small",
    "RegNetX400MF": "regnet_x_400mf",
    "RegNetY400MF": "regnet_y_400mf",
    "ResNet101": "resnet101",
    "VGG16": "vgg16",
    "VGG19": "vgg19",
}
_NEO = {"hidden_size": 768, "num_layers": 12, "num_heads": 12}
TEXT = {
    "EleutherAI/gpt-neo-125M": transformers.GPTNeoConfig(
        **_NEO, attention_types=[[["global", "local"], 6]]
    ),
    # T5 had no fused attention before version 5 of transformers.
    "T5-small": transformers.T5Config(decoder_start_token_id=0, attn_implementation="eager"),
    "cerebras/Cerebras-GPT-111M": transformers.GPT2Config(
        **{"n_layer": 10, "n_inner": 3072, "n_positions": 2048, "activation_function": "gelu"},
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    ),
    "distilbert/distilgpt2": transformers.GPT2Config(n_layer=6),
    "google/gemma-2-2b-it": transformers.Gemma2Config(),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": transformers.Qwen2Config(
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        vocab_size=151936,
        tie_word_embeddings=False,
    ),
}
OPTIMIZERS: dict[str, Any] = {
    name: getattr(torch.optim, name) for name in ("AdamW", "Adam", "SGD", "Adagrad", "RMSprop")
}


def make_step(row: dict[str, str], device: str):
    """Build a row's model and its loop's body, as the source describes them."""
    batch = int(row["batch"])
    if row["model"] in IMAGES:
        import torchvision

        classes = 10 if row["model"].startswith(("MobileNetV3", "MnasNet")) else 1000
        make = getattr(torchvision.models, IMAGES[row["model"]])
        with torch.device(device):
            model = make(num_classes=classes)
    else:
        config = TEXT[row["model"]]
        kinds = transformers.AutoModelForCausalLM, transformers.AutoModelForSeq2SeqLM
        with torch.device(device):
            model = kinds[config.is_encoder_decoder].from_config(config)
    optimizer = make_optimizer(row["optimizer"], model)
    kept: dict[str, Any] = {}  # a loop's variables live on until they are written anew

    def step() -> None:
        optimizer.zero_grad()
        if row["model"] in IMAGES:
            kept["images"] = torch.zeros(batch, 3, 86, 86).to(device)
            kept["labels"] = torch.zeros(batch, dtype=torch.long).to(device)
            kept["outputs"] = model(kept["images"])
            kept["loss"] = nn.functional.cross_entropy(kept["outputs"], kept["labels"])
        else:
            tokens = torch.zeros(batch, TOKENS, dtype=torch.long)
            words = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
            words["attention_mask"][1:, TOKENS // 2 :] = 0  # padded to the longest
            kept["words"] = {name: word.to(device) for name, word in words.items()}
            kept["labels"] = tokens.to(device)
            if model.config.is_encoder_decoder:
                kept["outputs"] = model(**kept["words"], labels=kept["labels"])
                kept["loss"] = kept["outputs"].loss
            else:
                kept["outputs"] = model(**kept["words"])
                kept["loss"] = old_loss(kept["outputs"].logits, kept["labels"])
        kept["loss"].backward()
        optimizer.step()

    return step, model, optimizer


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "Adafactor":
        return transformers.Adafactor(model.parameters(), lr=1e-3, relative_step=False)
    return OPTIMIZERS[name](model.parameters(), lr=1e-3)


def caps_of(row: dict[str, str], card_bytes: int) -> Iterator[tuple[str, float, bool]]:
    """Give each capped run: whose estimate, the share of the card, and whether it ran."""
    for name in CAPS:
        if row[f"{name}_cap_ran"]:
            share = round(int(row[f"{name}_bytes"]) / card_bytes, 2)
            yield name, share, row[f"{name}_cap_ran"] == "1"


def ran(row: dict[str, str], share: float) -> dict[str, int] | None:
    """Run a row's loop with a share of an emulated card: its peaks, or None out of memory."""
    torch.cuda.set_per_process_memory_fraction(share)
    torch.cuda.reset_peak_memory_stats()
    try:
        step, _, _ = make_step(row, "cuda")
        for _ in range(ITERATIONS):
            step()
    except torch.OutOfMemoryError:
        return None
    stats = torch.cuda.memory_stats()
    return {name: stats[f"{name}_bytes.all.peak"] for name in PEAKS}


def run_on_card(rows: list[dict[str, str]], out: Path) -> None:
    """Run rows free and under each cap, in a process on an emulated card."""
    total = torch.cuda.get_device_properties(0).total_memory
    found = []
    for row in rows:
        shares = {"free": 1.0, **{name: share for name, share, _ in caps_of(row, total)}}
        answers = {}
        for name, share in shares.items():
            answers[name] = ran(row, share)
            gc.collect()
            private_torch.release_cublas_workspaces()
            torch.cuda.empty_cache()
        found.append(answers)
        print(row["model"], row["batch"], answers, file=sys.stderr, flush=True)
        out.write_text(json.dumps(found))


def answer(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Ask `predict` and the emulated cards about all rows: one answer for each capped run."""
    torch_build, answers = find_cuda_torch(ROOT), []
    for card_name, key in CARDS.items():
        of_card = [row for row in rows if row["card"] == card_name]
        if not of_card:
            continue
        card = find_card(key)
        with tempfile.TemporaryDirectory() as folder:
            paths = Path(folder) / "rows.json", Path(folder) / "found.json"
            paths[0].write_text(json.dumps(of_card))
            command = ["python", __file__, "--inside", *map(str, paths)]
            emulate(command, card, torch_build, watch=False)
            found = json.loads(paths[1].read_text())
        for row, seen in zip(of_card, found, strict=True):
            predicted = int(memory.predict(lambda row=row: make_step(row, "cpu")).peak_bytes)
            free = seen["free"] or dict.fromkeys(PEAKS, 0)
            names = ("model", "optimizer", "batch", "card", "ground_nvml_bytes")
            shared = {name: row[name] for name in names} | {"predicted": predicted, **free}
            for name, share, it_ran in caps_of(row, card.memory):
                verdict = {"cap_of": name, "cap": int(share * card.memory), "ran": int(it_ran)}
                emulated_ran = int(seen[name] is not None)
                answers.append(shared | verdict | {"emulated_ran": emulated_ran})
    return answers


def print_table(answers: list[dict[str, str]]) -> None:
    """Print how many decisions each rule has right, and the misses of each.

    A free run that ran out on the emulated card has no peaks: zeros stand for them.
    """
    rules = {
        "emulated under the cap": lambda a: a["emulated_ran"] == "1",
        **{f"cap >= emulated {n}": lambda a, n=n: 0 < int(a[n]) <= int(a["cap"]) for n in PEAKS},
        "cap >= predicted": lambda a: int(a["cap"]) >= int(a["predicted"]),
        "cap >= seen of a free run": lambda a: int(a["cap"]) >= int(a["ground_nvml_bytes"]),
    }
    for name, rule in rules.items():
        wrong = [a for a in answers if rule(a) != (a["ran"] == "1")]
        others = [a for a in answers if a["cap_of"] != "xmem"]
        right = sum(rule(a) == (a["ran"] == "1") for a in others)
        print(
            f"{name:<28}{len(answers) - len(wrong):4} of {len(answers)}, "
            f"{right} of {len(others)} whose cap is not xMem's"
        )
        for a in wrong:
            margin = int(a["cap"]) / int(a["predicted"]) - 1
            said = "ran" if a["ran"] == "1" else "ran out"
            row = f"{a['model']} {a['optimizer']} {a['batch']}, cap of {a['cap_of']}"
            print(f"    {row}: {said}, the cap {margin:+.1%} from predicted")


def main(words: list[str]) -> None:
    warnings.simplefilter("ignore")
    if words[:1] == ["--inside"]:
        run_on_card(json.loads(Path(words[1]).read_text()), Path(words[2]))
        return
    if words != ["--table"]:
        rows = [row for row in read("peers") if is_named(row, words)]
        answers = [old for old in read("fits") if not is_named(old, words)] + answer(rows)
        with (FOLDER / "fits.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, answers[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(answers)
    print_table(read("fits"))


def read(name: str) -> list[dict[str, str]]:
    path = FOLDER / f"{name}.csv"
    return list(csv.DictReader(path.read_text("utf-8").splitlines())) if path.exists() else []


def is_named(row: dict[str, str], words: list[str]) -> bool:
    return not words or any(fnmatch.fnmatch(row["model"], word) for word in words)


if __name__ == "__main__":
    main(sys.argv[1:])
