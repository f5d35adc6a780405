"""CPU seconds and peaks of `memory.predict`: here, in another checkout, and PyTorch's MemTracker.

    python course/recorded/make/predict_speed.py [--beside FOLDER] [--models gpt2,...] [--layers]

With --beside, a line says whether both give the same: timeline, phases, lines of code, warnings.
Each model is predicted by each in turn, in a process of its own and with one thread. Imports and a
first prediction come before the clock; the least of three is shown. MemTracker runs two steps under
fake tensors, since a step's peak needs the optimizer's states, and it is given the same step.
--layers shows how the time grows with GPT-2 of 12 to 96 layers.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODELS = "gpt2,gpt2-xl,vit-l-16,sd21-unet,llama-3-8b,resnet152,olmoe-1b-7b"
RUN = """
import hashlib, json, re, sys, time, torch, warnings
torch.set_num_threads(1)
name, seq, layers, tool = json.loads(sys.argv[1])
from tutorial_lib import memory
from tutorial_lib.instruments.training import Recipe
overrides = {"n_layer": layers} if layers else {}
recipe = Recipe(name, 8, seq=seq, overrides=overrides)

def ours():
    return memory.predict(recipe.make_step, kernels="cpu").peak_bytes

def said():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        reports = [memory.predict(recipe.make_step, kernels=k, lines=True) for k in ("cpu", "cuda")]
    lives = [(one.phase_starts, one.timeline) for one in reports]
    words = repr((lives, [str(one.message) for one in told]))
    return hashlib.sha256(re.sub(r"[^ '(]*/", "", words).encode()).hexdigest()[:16]

def tracker():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    with FakeTensorMode():
        step, model, optimizer = recipe.make_step()
        tracked = MemTracker()
        tracked.track_external(model, optimizer)
        with tracked:
            step()
            tracked.reset_mod_stats()
            step()
        snapshot = tracked.get_tracker_snapshot("peak")
        return sum(one["Total"] for one in snapshot.values())

run, seconds = (ours, []) if tool == "ours" else (tracker, [])
for _ in range(4 if tool == "ours" else 1):
    began = time.process_time()
    peak = run()
    seconds.append(time.process_time() - began)
print(json.dumps([min(seconds[1:] or seconds), int(peak), tool == "ours" and said()]))
"""


def run(folder, model, tool, layers=0):
    """Return CPU seconds, the peak's bytes and a digest, or None and the error's last line."""
    seq = 512 if model.startswith(("gpt2", "llama", "olmoe")) else None
    settings = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    asked = json.dumps([model, seq, layers, tool])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, asked],
        env=settings,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1], ""
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="another checkout of the course")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--tracker", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args()
    ways = {"here": (ROOT, "ours")}
    ways |= {"beside": (asked.beside.resolve(), "ours")} if asked.beside else {}
    ways |= {"MemTracker": (ROOT, "tracker")} if asked.tracker else {}
    rows = [(model, 0) for model in asked.models.split(",")]
    rows = [("gpt2", n) for n in (12, 24, 48, 96)] if asked.layers else rows
    for model, layers in rows:
        digests = []
        for name, (folder, tool) in ways.items():
            seconds, peak, digest = run(folder, model, tool, layers)
            digests += [digest] if tool == "ours" else []
            words = peak if seconds is None else f"{seconds:7.2f} CPU s  {peak:,} bytes"
            print(f"{model:12} {layers or '':3} {name:10} {words}", flush=True)
        if len(digests) > 1:
            print(f"{model:12} {layers or '':3} {'the same' if len({*digests}) == 1 else 'differ'}")


if __name__ == "__main__":
    main()
