"""What eleven trainers do with a window of micro-batches, asked of the libraries themselves.

    python course/recorded/make/habits.py                    each in a temporary environment
    python course/recorded/make/habits.py --python PATH NAME...      these rows, run by PATH

Each program in `habits/` puts one library through the experiment of `habits/experiment.py` and
prints a row; `course/recorded/habits.csv` keeps them. An empty cell is one that the library leaves
to the loop of whoever uses it, or that was not asked of it.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "habits.csv"
PROGRAMS = Path(__file__).resolve().parent / "habits"
CELLS = ("divides_by", "short_window", "clips", "schedule", "ema", "logs", "replays_dropout")
FIELDS = ("trainer", "version", *CELLS)
TORCH = ("torch==2.13.0", "numpy==2.4.6")
FACE = ("transformers==5.23.0", "accelerate==1.15.0")
ROWS = {
    "Trainer, its model takes the count": ("trainer.py told", (*TORCH, *FACE)),
    "Trainer, its model doesn't": ("trainer.py alone", (*TORCH, *FACE)),
    "Accelerate": ("accelerate_loop.py", (*TORCH, *FACE)),
    "TRL's SFTTrainer": ("trl_sft.py", (*TORCH, *FACE, "trl==1.16.0")),
    "sentence-transformers": ("sentences.py", (*TORCH, *FACE, "sentence-transformers==6.2.0")),
    "Lightning": ("lightning_trainer.py", (*TORCH, "lightning==2.6.6")),
    "Ignite": ("ignite_trainer.py", (*TORCH, "pytorch-ignite==0.5.5")),
    "fastai, one sample a batch": ("fastai_learner.py 1", (*TORCH, "fastai==2.8.12")),
    "fastai, eight samples a batch": ("fastai_learner.py 8", (*TORCH, "fastai==2.8.12")),
    "Keras on PyTorch": ("keras_fit.py torch", (*TORCH, "keras==3.15.1")),
    "Keras on TensorFlow": (
        "keras_fit.py tensorflow",
        (*TORCH, "keras==3.15.1", "tensorflow==2.21.0"),
    ),
    "DeepSpeed": ("deepspeed_engine.py", (*TORCH, "deepspeed==0.19.8")),
    "Composer": ("composer_trainer.py", ("torch==2.7.0", "numpy<2.4", "mosaicml==0.32.1")),
    "open_clip": (
        "open_clip_loop.py",
        ("torch==2.14.1", "torchvision==0.29.1", "open_clip_torch==3.3.0"),
    ),
}


def ask(trainer, python):
    """Return one row, from the program's last line."""
    command = [python, "-W", "ignore", *ROWS[trainer][0].split()]
    done = subprocess.run(command, cwd=PROGRAMS, capture_output=True, text=True)
    _, found, row = done.stdout.rpartition("ROW ")
    if not found:
        sys.exit(f"{trainer}: {' '.join(command)} printed no row. {done.stderr[-2000:]}")
    return {"trainer": trainer, **json.loads(row)}


def ask_anew(trainer):
    """Return one row, from an environment made for it."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin/python")
        install = [python, "-m", "pip", "install", "--quiet", *ROWS[trainer][1]]
        subprocess.run(install, check=True)
        return ask(trainer, python)


def main():
    """Ask, and write each row as soon as it is there."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("trainers", nargs="*", metavar="NAME", help="rows of the table")
    words.add_argument("--python", help="an interpreter that has the libraries")
    given = words.parse_args()
    known = {}
    if OUT.exists():
        with OUT.open(encoding="utf-8", newline="") as file:
            known = {row["trainer"]: row for row in csv.DictReader(file)}
    for trainer in given.trainers or ROWS:
        known[trainer] = ask(trainer, given.python) if given.python else ask_anew(trainer)
        print(known[trainer], flush=True)
        with OUT.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(known[name] for name in ROWS if name in known)


if __name__ == "__main__":
    main()
