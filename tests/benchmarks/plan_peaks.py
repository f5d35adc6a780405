"""Run plans for many budgets on small models: gradients, and the peak planned and counted.

python tests/benchmarks/plan_peaks.py [BUDGETS] [MODELS ...]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from plan_models import MODELS, executed, profiled

from tutorial_lib.device import seed_everything


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


if __name__ == "__main__":
    seed_everything(0)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for chosen in sys.argv[2:] or MODELS:
        table(chosen, count)
