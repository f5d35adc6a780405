"""Print what `predict`, `measure` and `plan` say of strangers' functions (tests/strangers/).

python tests/benchmarks/strangers.py [NAMES ...]

Bytes are of a step of eight samples in float32; plans are for 1.05 and 0.7 of its peak and for the
smallest budget that is named: micro-batch x accumulation, and what recomputation adds. Seconds are
of a CPU, for the slowest of these plans.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stranger_gradients import NAMES, recipe
from test_strangers import all_planned, counted, predicted


def row(name):
    make_step = recipe(name).make_step
    seen, said = counted(make_step), predicted(make_step)
    plans = all_planned(name)
    words = [str(plans[key]) if key in plans else "-" for key in ("1.05", "0.7", "smallest")]
    seconds = max(plan.cpu_seconds for plan in plans.values())
    refusal = next((plan.refusal for plan in plans.values() if plan.refusal), "")
    verdict = "equal" if said == seen else f"{said / seen - 1:+.2%}"
    columns = [f"{said:>12,}{seen:>12,}", *(f"{word:>12}" for word in words), f"{seconds:>7.1f} s"]
    return f"{name:<28}{''.join(columns)}  {verdict} {refusal[:120]}"


def main(names):
    warnings.simplefilter("ignore")
    head = ("predicted", "counted", "1.05", "0.7", "smallest")
    print(f"{'':<28}{''.join(f'{word:>12}' for word in head)}{'plan':>9}")
    for name in names or NAMES:
        print(row(name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
