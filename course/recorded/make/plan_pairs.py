"""Ask `plan` for nine pairs of model and budget, and keep the answers for chapter 14c.

    python course/recorded/make/plan_pairs.py

Each answer is the command's own. Where nothing fits that keeps weights and states in float32, the
row is what fits otherwise, and says what that changes.
"""

import contextlib
import csv
import datetime
import io
import json
from pathlib import Path

from tutorial_lib.school.commands.main import run

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "course/recorded/plans.csv"
MODELS = ("gpt2-xl", "llama-2-7b", "sd21-unet")
BUDGETS_GIB = (16, 24, 80)
EFFECTIVE_BATCH = 64
BEST = ("precision", "optimizer", "micro_batch", "accumulation", "overhead", "peak_bytes")


def ask(model, gib):
    words = [model, "--budget", f"{gib}GiB", "--effective-batch", str(EFFECTIVE_BATCH), "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run(["plan", *words])
    found = json.loads(printed.getvalue())
    best = found["best"] or found["otherwise"] or {}
    return {
        "model": model,
        "budget_gib": gib,
        "changes": " and ".join(best.get("changes", [])),
        **{name: best.get(name, "") for name in BEST},
        "smallest_bytes": found["smallest_bytes"],
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
