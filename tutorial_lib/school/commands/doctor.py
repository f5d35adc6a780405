"""Show what this machine has: Python, GPU, versions, free disk."""

from __future__ import annotations

import argparse
import json
import sys

from tutorial_lib.school import bootstrap, pythons

PACKAGES = (
    "torch", "numpy", "matplotlib", "transformers", "diffusers", "scikit-learn",
    "jupyterlab", "ipykernel", "ipywidgets", "nbval",
)  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--json", action="store_true", help="print JSON, for a program to read")


def run(options: argparse.Namespace) -> int:
    """Show what a bug report needs; without packages, what can be said, and what to do next.

    No names of users or folders are shown, other than the Python in use.
    """
    facts, refusal = bootstrap.facts(bootstrap.ROOT), None
    try:
        facts.update(_of_packages())
    except ImportError:
        refusal = pythons.refusal(sys.version_info[:2], f"This ({sys.executable})")
        facts["next"] = refusal or "run `python -m tutorial_lib lab`: it sets everything up."
    if options.json:
        print(json.dumps(facts, indent=1))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            print(f"{name:<{width}} {value}")
    return 2 if refusal else 0


def _of_packages() -> dict[str, str]:
    from importlib import metadata

    from tutorial_lib import device

    best = device.pick()
    facts = {
        "device": device.describe(best),
        "tier": device.tier(best),
        "bfloat16 in hardware": "yes" if device.supports_bfloat16(best) else "no",
    }
    for name in PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts["torch"] = device.versions()["torch"]  # with the CUDA that it was built for
    return facts
