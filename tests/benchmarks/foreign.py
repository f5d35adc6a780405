"""Print what `measure`, PyTorch's MemTracker and `predict` say of foreign models, and a verdict.

python tests/benchmarks/foreign.py [NAMES ...]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from foreign_models import KINDS
from test_foreign import compared

if __name__ == "__main__":
    counts = {}
    for name in sys.argv[1:] or KINDS:
        row = compared(name)
        counts[row.verdict] = counts.get(row.verdict, 0) + 1
        print(row, flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
