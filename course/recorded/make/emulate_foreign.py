"""Run training scripts that others wrote on an emulated card: random weights, random data.

    python course/recorded/make/emulate_foreign.py [--card t4] [--folder FOLDER] [NAMES ...]

Needs `.venv-cuda` (emulate --setup) and the network once, for the packages and the page that
hold the scripts: they are kept in FOLDER. Each script runs for three updates with a batch that
fits a T4, and with one that does not.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.instruments.emulated import Emulated, emulate, find_card, find_cuda_torch
from tutorial_lib.units import human_bytes

ROOT = Path(__file__).resolve().parents[3]
# Without what they depend on: PyTorch and transformers are those of .venv-cuda.
PACKAGES = (
    *("trl==1.16.0", "datasets==5.2.0", "pyarrow", "dill", "multiprocess", "xxhash", "aiohttp"),
    *("open_clip_torch==3.3.0", "torchvision==0.28.0", "timm==1.0.31", "ftfy"),
    *("webdataset==1.0.2", "braceexpand"),
)
PAGE = (
    "https://raw.githubusercontent.com/huggingface/diffusers/"
    "005c3c108d89fbf09b5903821bc7b66054f2f7ec/docs/source/en/tutorials/basic_training.md"
)
STEPS = 3
# Written by `prepare_model`, in the environment of the scripts: Qwen2-0.5B, as TRL's help has it.
MODEL = """
import sys, torch, transformers
from tokenizers import Tokenizer, models, pre_tokenizers
words = {word: number for number, word in enumerate(["<unk>", "<eos>", *map(str, range(1000))])}
bare = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
bare.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=bare, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
)
config = transformers.Qwen2Config(
    hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
    intermediate_size=4864, vocab_size=151936, tie_word_embeddings=True, use_cache=False,
)
torch.set_default_dtype(torch.bfloat16)
transformers.Qwen2ForCausalLM(config).save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
"""


@dataclass(frozen=True)
class Trainer:
    """A script that nobody here wrote.

    Args:
        source: Where it stands.
        words: Its command line, in FOLDER; `{batch}` is the batch.
        batches: One that fits a T4, and one that does not.
    """

    source: str
    words: str
    batches: tuple[int, int]


TRAINERS = {
    "trl-sft": Trainer(
        "trl/scripts/sft.py of TRL, which trains by transformers' Trainer",
        "-m trl.scripts.sft --model_name_or_path qwen2-0.5b --dataset_name texts --packing "
        "--max_length 1024 --per_device_train_batch_size {batch} --learning_rate 2.0e-5 "
        "--gradient_accumulation_steps 1 --report_to none --output_dir out-sft",
        (1, 16),
    ),
    "diffusers-tutorial": Trainer(
        "docs/source/en/tutorials/basic_training.md of diffusers: UNet2DModel and Accelerate",
        "tutorial-{batch}.py",
        (16, 128),
    ),
    "open-clip": Trainer(
        "open_clip_train/main.py of OpenCLIP, with its own synthetic data",
        "-m open_clip_train.main --dataset-type synthetic --train-num-samples 8192 --epochs 1 "
        "--model ViT-B-32 --precision amp --workers 1 --batch-size {batch} --logs out-clip",
        (128, 2048),
    ),
}


def prepare(folder: Path, python: Path) -> None:
    """Fetch the packages and the page, and make a model, texts and images; once."""
    if not (folder / "packages").is_dir():
        install = [python, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*install, folder / "packages", *PACKAGES], check=True)
    page = folder / "basic_training.md"
    if not page.is_file():
        urllib.request.urlretrieve(PAGE, page)
    if not (folder / "qwen2-0.5b").is_dir():
        subprocess.run([python, "-c", MODEL, folder / "qwen2-0.5b"], check=True)
    rng = random.Random(0)
    (folder / "texts").mkdir(exist_ok=True)
    texts = (" ".join(str(rng.randrange(1000)) for _ in range(600)) for _ in range(400))
    lines = "".join(f'{{"text": "{text}"}}\n' for text in texts)
    (folder / "texts" / "train.jsonl").write_text(lines)
    draw(folder / "images", rng)
    for batch in TRAINERS["diffusers-tutorial"].batches:
        (folder / f"tutorial-{batch}.py").write_text(as_script(page.read_text(), batch))


def draw(folder: Path, rng: random.Random) -> None:
    """Make images of noise, as many as the largest batch has."""
    from PIL import Image

    folder.mkdir(exist_ok=True)
    for number in range(max(TRAINERS["diffusers-tutorial"].batches)):
        Image.frombytes("RGB", (64, 64), rng.randbytes(64 * 64 * 3)).save(folder / f"{number}.png")


def as_script(page: str, batch: int) -> str:
    """Take the code out of the page; only the data, the hub and the batch are others."""
    blocks = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    blocks = [block for block in blocks if "notebook_login" not in block]
    prompted = re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", "\n".join(blocks), re.MULTILINE)
    last = next(n for n, line in enumerate(prompted) if line.startswith("notebook_launcher("))
    code = "\n".join(prompted[: last + 1])
    for old, new in {
        "push_to_hub = True": "push_to_hub = False",
        "huggan/smithsonian_butterflies_subset": "images",
        "train_batch_size = 16": f"train_batch_size = {batch}",
    }.items():
        code = code.replace(old, new)
    return code


def run(name: str, batch: int, card: str, folder: Path) -> Emulated:
    """Run one script in FOLDER, away from the hub."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "MPLBACKEND": "agg"}
    os.environ["PYTHONPATH"] = str(folder / "packages")
    os.chdir(folder)
    command = ["python", *TRAINERS[name].words.format(batch=batch).split()]
    return emulate(command, find_card(card), find_cuda_torch(ROOT), steps=STEPS)


def as_row(name: str, batch: int, result: Emulated) -> str:
    """Write peaks and their moment in a line of a table."""
    process = result.processes[0] if result.processes else {"peaks": {}, "moment": None}
    peaks = [human_bytes(size) for size in process["peaks"].values()]
    moment = process["moment"] or {"phase": "unknown", "line": ""}
    end = "out of memory" if result.ran_out else f"status {result.exit_status}"
    return " | ".join([name, str(batch), end, *peaks, moment["phase"], moment["line"]])


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAMES", help=", ".join(TRAINERS))
    parser.add_argument("--card", default="t4")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "foreign")
    options = parser.parse_args(words)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, find_cuda_torch(ROOT).packages.parents[2] / "bin" / "python")
    rows = []
    for name in options.names or TRAINERS:
        for batch in TRAINERS[name].batches:
            rows.append(as_row(name, batch, run(name, batch, options.card, folder)))
            print(rows[-1], flush=True)
    print(
        "\nscript | batch | end | requested | allocated | reserved | moment | line", *rows, sep="\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
