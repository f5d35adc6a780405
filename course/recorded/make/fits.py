"""Does a training step run under a cap? Our answers and four estimators' against real GPUs.

    .venv-cuda/bin/pip install --no-deps torchvision==0.28.0
    .venv-cuda/bin/pip install --no-deps --target OLD transformers==4.51.3 \
        'huggingface_hub<1' 'tokenizers<0.22'
    PYTHONPATH=OLD .venv-cuda/bin/python course/recorded/make/fits.py            all rows
    PYTHONPATH=OLD .venv-cuda/bin/python course/recorded/make/fits.py 'VGG*'     these models
    PYTHONPATH=OLD .venv-cuda/bin/python course/recorded/make/fits.py --cudnn    and cuDNN is asked
    python course/recorded/make/fits.py --table                                  what is kept

`course/recorded/peers.csv` holds what xMem's authors published (Shi, Pezaros, Elkhatib, Middleware
2025, arXiv 2510.21048, github.com/Stone-ResearchLife/xMem, MIT): for each row what NVML saw of a
free run, and whether the same loop ran again when PyTorch's share of the card was capped at each
estimator's figure. Figures only; nothing of their code. They ran PyTorch 2.6 and, for text,
transformers 4.51.3 (`paper_container/config.py` there); the model classes are that version's here.
`fits.csv` beside it keeps our answers: the predicted peak, the emulated one, and whether the loop
ran under the cap on an emulated card; and, where cuDNN was asked, the same with its workspaces.
"""

from __future__ import annotations

import csv
import fnmatch
import gc
import json
import math
import statistics
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
from tutorial_lib import memory
from tutorial_lib.instruments.emulated import Card, emulate, find_card, find_cuda_torch
from tutorial_lib.memory import private_torch

FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parents[1]
CARDS = {"RTX-3060": "rtx-3060", "RTX-4060": "rtx-4060", "A100-40GB": "a100-40"}
CAPS = ("xmem", "dnnmem", "schedtune")
ESTIMATES = tuple(f"{name}_bytes" for name in (*CAPS, "llmem"))
ITERATIONS = 4
TOKENS = 128  # lines of WikiText, cut there; in a large batch one is always as long
TRANSFORMERS = "4.51.3"
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
    "T5-small": transformers.T5Config(decoder_start_token_id=0),
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
        if transformers.__version__ != TRANSFORMERS:
            raise SystemExit(
                f"transformers is {transformers.__version__}, and the source's rows of text are of "
                f"{TRANSFORMERS}: put that first on PYTHONPATH, as the head of this file says."
            )
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
            words["labels"] = tokens.clone()
            kept["words"] = {name: word.to(device) for name, word in words.items()}
            kept["outputs"] = model(**kept["words"])
            kept["loss"] = kept["outputs"].loss
        kept["loss"].backward()
        optimizer.step()

    return step, model, optimizer


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "Adafactor":
        return transformers.Adafactor(model.parameters(), lr=1e-3, relative_step=False)
    return OPTIMIZERS[name](model.parameters(), lr=1e-3)


def caps_of(row: dict[str, str], card_bytes: int) -> Iterator[tuple[str, float, bool]]:
    """Yield each capped run: whose estimate, the share of the card, and whether it ran."""
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


def ask_card(rows: list[dict[str, str]], card: Card, *, cudnn: bool) -> list[dict[str, Any]]:
    """Run rows on an emulated card: for each the peaks of the free run and of the capped ones."""
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / "rows.json", Path(folder) / "found.json"
        paths[0].write_text(json.dumps(rows))
        command = ["python", __file__, "--inside", *map(str, paths)]
        emulate(command, card, find_cuda_torch(ROOT), watch=False, cudnn=cudnn)
        found: list[dict[str, Any]] = json.loads(paths[1].read_text())
    return found


def answer(rows: list[dict[str, str]], *, cudnn: bool) -> list[dict[str, Any]]:
    """Ask `predict` and the emulated cards about all rows: one answer for each capped run."""
    answers = []
    for card_name, key in CARDS.items():
        of_card = [row for row in rows if row["card"] == card_name]
        images = [row for row in of_card if cudnn and row["model"] in IMAGES]
        card = find_card(key)
        plain = iter(ask_card(of_card, card, cudnn=False) if of_card else [])
        asked = iter(ask_card(images, card, cudnn=True) if images else [])
        for row in of_card:
            seen, with_cudnn = next(plain), next(asked) if row in images else None
            predicted = int(memory.predict(lambda row=row: make_step(row, "cpu")).peak_bytes)
            names = ("model", "optimizer", "batch", "card", "ground_nvml_bytes")
            shared = {name: row[name] for name in names} | {"predicted": predicted}
            shared |= seen["free"] or dict.fromkeys(PEAKS, 0)
            for name, share, it_ran in caps_of(row, card.memory):
                verdict = {"cap_of": name, "cap": int(share * card.memory), "ran": int(it_ran)}
                verdict["emulated_ran"] = int(seen[name] is not None)
                answers.append(shared | verdict | asked_of(with_cudnn, name))
    return answers


def asked_of(seen: dict[str, Any] | None, cap_of: str) -> dict[str, Any]:
    """Return what a run that asks cuDNN adds to an answer: nothing where it was not asked."""
    if seen is None:
        return {"reserved_cudnn": "", "emulated_ran_cudnn": ""}
    free = seen["free"] or {"reserved": 0}
    ran_too = int(seen[cap_of] is not None)
    return {"reserved_cudnn": free["reserved"], "emulated_ran_cudnn": ran_too}


def print_table(answers: list[dict[str, str]]) -> None:
    """Print how many decisions each rule has right, its misses, and how far off free runs are.

    A free run that ran out on the emulated card has no peaks: zeros stand for them.
    """
    theirs = {key_of(row): row for row in read("peers")}
    answers = [answer | theirs[key_of(answer)] for answer in answers]
    rules = {
        "emulated under the cap": lambda a: a["emulated_ran"] == "1",
        "emulated, cuDNN asked": lambda a: a["emulated_ran_cudnn"] == "1",
        **{f"cap >= {n}": lambda a, n=n: 0 < int(a[n]) <= int(a["cap"]) for n in PEAKS},
        **{
            f"cap >= {n}": lambda a, n=n: int(a["cap"]) >= float(a[n] or "inf")
            for n in ("predicted", "ground_nvml_bytes", *ESTIMATES)
        },
    }
    for name, rule in rules.items():
        judged = [a for a in answers if "cuDNN" not in name or a["emulated_ran_cudnn"]]
        wrong = [a for a in judged if rule(a) != (a["ran"] == "1")]
        others = [a for a in judged if a["cap_of"] != "xmem"]
        right = sum(rule(a) == (a["ran"] == "1") for a in others)
        print(
            f"{name:<28}{len(judged) - len(wrong):4} of {len(judged)}, "
            f"{right} of {len(others)} whose cap is not xMem's"
        )
        for a in wrong:
            margin = int(a["cap"]) / int(a["predicted"]) - 1
            said = "ran" if a["ran"] == "1" else "ran out"
            row = f"{a['model']} {a['optimizer']} {a['batch']}, cap of {a['cap_of']}"
            print(f"    {row}: {said}, the cap {margin:+.1%} from predicted")
    print("off from what NVML saw of a free run: in the median, of nine in ten, at worst")
    free = {key_of(a): a for a in answers if int(a["reserved"])}.values()
    for name in ("predicted", *PEAKS, "reserved_cudnn", *ESTIMATES):
        off = sorted(abs(int(a[name]) / int(a["ground_nvml_bytes"]) - 1) for a in free if a[name])
        nine = off[math.ceil(0.9 * len(off)) - 1]
        print(f"{name:<28}{statistics.median(off):7.1%}{nine:8.1%}{off[-1]:8.1%}, {len(off)} runs")


def key_of(row: dict[str, str]) -> tuple[str, ...]:
    """Return what tells a row of the source from all others."""
    return tuple(row[name] for name in ("model", "optimizer", "batch", "card"))


def main(words: list[str]) -> None:
    warnings.simplefilter("ignore")
    if words[:1] == ["--inside"]:
        run_on_card(json.loads(Path(words[1]).read_text()), Path(words[2]))
        return
    cudnn, words = "--cudnn" in words, [word for word in words if word != "--cudnn"]
    if words != ["--table"]:
        rows = [row for row in read("peers") if is_named(row, words)]
        answers = answer(rows, cudnn=cudnn)
        answers = [old for old in read("fits") if not is_named(old, words)] + answers
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
