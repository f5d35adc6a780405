"""The halves that run the answers of lab 05, and the host that its notebook uses."""

from tutorial_lib.checks.lab05.given.host import Host, offloading
from tutorial_lib.checks.lab05.given.modules import checkpoint_only, keep_matmuls
from tutorial_lib.checks.lab05.given.numbers import cost_of_keeping, fewest_flops

__all__ = [
    "Host",
    "checkpoint_only",
    "cost_of_keeping",
    "fewest_flops",
    "keep_matmuls",
    "offloading",
]
