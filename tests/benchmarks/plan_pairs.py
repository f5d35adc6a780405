"""Ask `plan` for twelve pairs of model and budget, and keep the answers for chapter 14.

    python tests/benchmarks/plan_pairs.py

Each answer is the command's own, from a process of its own: seconds are its CPU seconds.
"""

import csv
import datetime
import json
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "course/recorded/plans.csv"
MODELS = ("gpt2-xl", "llama-2-7b", "sd21-unet", "sdxl-unet")
BUDGETS_GIB = (16, 24, 80)
EFFECTIVE_BATCH = 64
BEST = ("precision", "optimizer", "micro_batch", "accumulation", "overhead", "peak_bytes")


def ask(model, gib):
    words = [model, "--budget", f"{gib}GiB", "--effective-batch", str(EFFECTIVE_BATCH), "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "tutorial_lib", "plan", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    best = found["best"] or {}
    return {
        "model": model,
        "budget_gib": gib,
        **{name: best.get(name, "") for name in BEST},
        "smallest_bytes": found["smallest_bytes"],
        "cpu_seconds": round(after.ru_utime - before.ru_utime),
        "date": datetime.date.today().isoformat(),
    }


def main():
    rows = []
    for model in MODELS:
        for gib in BUDGETS_GIB:
            rows.append(ask(model, gib))
            print(rows[-1], flush=True)
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
