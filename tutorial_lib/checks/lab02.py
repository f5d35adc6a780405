"""The checks of lab 02, the measurement clinic."""

from tutorial_lib.checks.calls import calls_of
from tutorial_lib.checks.lab02_leaks import find_leaks
from tutorial_lib.checks.lab02_machine import PretendGPU
from tutorial_lib.checks.lab02_peak import steady_peak
from tutorial_lib.checks.lab02_profile import profile_step
from tutorial_lib.checks.lab02_saved import activation_bytes
from tutorial_lib.checks.lab02_time import slowdown, step_seconds

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
