"""The checks of lab 02, the measurement clinic."""

from tutorial_lib.checks.core import calls_of
from tutorial_lib.checks.lab02.ex2_1 import step_seconds
from tutorial_lib.checks.lab02.ex2_2 import slowdown
from tutorial_lib.checks.lab02.ex2_3 import steady_peak
from tutorial_lib.checks.lab02.ex2_4 import activation_bytes
from tutorial_lib.checks.lab02.ex2_5 import find_leaks
from tutorial_lib.checks.lab02.ex2_6 import profile_step
from tutorial_lib.checks.lab02.machine import PretendGPU

__all__ = [
    "PretendGPU",
    "activation_bytes",
    "find_leaks",
    "profile_step",
    "slowdown",
    "steady_peak",
    "step_seconds",
]

case = calls_of(__name__)
