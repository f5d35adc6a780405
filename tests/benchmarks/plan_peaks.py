"""Run plans for many budgets on small models: gradients, and the peak planned and counted.

python tests/benchmarks/plan_peaks.py [BUDGETS] [MODELS ...]
python tests/benchmarks/plan_peaks.py sides     (all ways beside the plan, by chapter 07c's cells)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nbformat
from plan_models import MODELS, executed, profiled

from tutorial_lib.device import seed_everything

CHAPTER = Path(__file__).resolve().parent.parent.parent / "course" / "07c_side_by_side.ipynb"


def table(name, num_budgets):
    """Print a row for each budget from the floor to keeping everything."""
    model, loss, profile, floor, whole = profiled(name)
    print(f"{name}: {len(profile.stages)} stages, {floor:,} to {whole:,} bytes")
    ratios = []
    for step in range(num_budgets):
        budget = floor + (whole - floor) * step // (num_budgets - 1)
        plan, same, peak = executed(model, loss, profile, budget)
        ratios.append(peak / plan.peak_bytes)
        print(
            f"  budget {budget / whole:6.1%}  planned {plan.peak_bytes / budget:6.1%} of it  "
            f"counted {ratios[-1]:7.2%} of planned  time {plan.overhead:+6.1%}  "
            f"forwards at most {max(plan.forward_executions):2}  "
            f"gradients {'equal' if same else 'DIFFER'}"
        )
    print(f"  counted / planned from {min(ratios):.4f} to {max(ratios):.4f}")


def sides():
    """Print the tables that chapter 07c makes of all ways, of the plan, and of the compiler."""
    names = {}
    for cell in nbformat.read(CHAPTER, 4).cells:
        if cell.cell_type == "code" and cell.id.startswith(("imports", "cpu-", "sides-", "guess-")):
            before = names.get("table")
            exec(cell.source, names)
            if names.get("table") is not before:
                print(cell.id, names["table"].to_string(), sep="\n")


if __name__ == "__main__":
    seed_everything(0)
    words = sys.argv[1:]
    if words == ["sides"]:
        sides()
    else:
        for chosen in words[1:] or MODELS:
            table(chosen, int(words[0]) if words else 20)
