"""Run chapter 14's steps on an emulated card, and add what came out to `llama_case.json`.

    python -m tutorial_lib emulate --card rtx-4090 -- python course/recorded/make/llama_case.py
    python -m tutorial_lib emulate --card h200 -- python course/recorded/make/llama_case.py

On the first card `snapshots/llama.py` runs out of memory, and its snapshot says who held it. The
levers are those that the chapter's source has.
"""

import contextlib
import gc
import json
import linecache
import pickle
import runpy
import tempfile
from collections import Counter
from pathlib import Path

import torch

RECORDED = Path(__file__).resolve().parents[1]

from tutorial_lib import memory
from tutorial_lib.school.authoring.answers import take_apart_blanks
from tutorial_lib.school.authoring.source import read_source

TABLE = RECORDED / "snapshots/llama_case.json"
SOURCE = RECORDED.parent / "source/14_putting_it_together.py"
LEFT_OUT = ("guess", "check-", "died", "snapshot")


def died() -> dict[str, object] | None:
    """Run the script; bytes by line of Python when memory ran out, or None where it did not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "llama.pickle"
        try:
            with memory.snapshot(path):
                runpy.run_path(str(RECORDED / "snapshots/llama.py"))
        except torch.OutOfMemoryError as error:
            said = str(error).split(" GPU ")[0]
        else:
            return None
        events = pickle.loads(path.read_bytes())["device_traces"][0]
    living: dict[int, dict] = {}
    for event in events:
        if event["action"] == "oom":
            break
        if event["action"] == "alloc":
            living[event["addr"]] = event
        else:
            living.pop(event["addr"], None)
    held: Counter[str] = Counter()
    for event in living.values():
        held[line_of(event["frames"])] += event["size"]
    return {"message": said, "held": dict(held.most_common(12))}


def line_of(frames: list[dict]) -> str:
    """File, number and text of the innermost line that is neither PyTorch's nor this course's."""
    for frame in frames:
        name = frame["filename"]
        if name.endswith(".py") and not any(
            f"/{own}/" in name for own in ("torch", "tutorial_lib")
        ):
            text = linecache.getline(name, frame["line"]).strip()
            return f"{Path(name).name}:{frame['line']}  {text}"
    return "(backward)"


def peaks() -> dict[str, int | None]:
    """Allocated peak of each lever's second step; None where the card's memory ran out."""
    found: dict[str, int | None] = {}
    cells = [cell for cell in read_source(SOURCE) if cell.kind == "code"]
    blanks = take_apart_blanks(cells)
    space: dict = {"__name__": "chapter 14", "guess": None}

    def pull(name: str, same: bool = True, **lever: object) -> float:
        space["plan"].update(lever)
        space["plans"][name] = dict(space["plan"])
        space["HOST"] = "cpu"
        try:
            with torch.device("cuda"):
                step, *_ = space["make_step"](space["plan"])
                step()
                torch.cuda.reset_peak_memory_stats()
                step()
            found[name] = torch.cuda.max_memory_allocated()
        except torch.OutOfMemoryError:
            found[name] = None
        step = _ = None
        gc.collect()
        torch.cuda.empty_cache()
        print(name, found[name], flush=True)
        return 0.0

    for cell in cells:
        if cell.id == "waterfall":
            break
        if not cell.id.startswith(LEFT_OUT):
            exec(blanks[cell.id].solution if cell.id in blanks else cell.text, space)
        if cell.id == "pull":
            space |= {"pull": pull, "first_loss": lambda plan: 0.0}
    return found


def main() -> None:
    """Write what this card says into the table."""
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {"peaks": {}}
    card = torch.cuda.get_device_name()
    with contextlib.chdir(RECORDED.parent):
        if (end := died()) is not None:
            table.setdefault("died", {"card": card} | end)
        table["peaks"][card] = peaks()
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
