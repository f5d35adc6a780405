"""Print what `measure`, PyTorch's MemTracker and `predict` say of foreign models, and a verdict.

python course/recorded/make/foreign.py [--write] [NAMES ...]

With `--write` the table goes to course/recorded/foreign.csv. The models of `timm` are tried where
it is installed.
"""

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))

from foreign_models import KINDS
from test_foreign import TABLE, compared


def main(words):
    rows = []
    for name in [word for word in words if word != "--write"] or KINDS:
        rows.append(compared(name))
        print(rows[-1], flush=True)
    verdicts = [row.verdict for row in rows]
    print(", ".join(f"{verdicts.count(one)} {one}" for one in sorted(set(verdicts))))
    if "--write" in words:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0].as_data()), lineterminator="\n")
            writer.writeheader()
            writer.writerows(row.as_data() for row in rows)


if __name__ == "__main__":
    main(sys.argv[1:])
