"""What to checkpoint under a budget: profile a model's stages, solve, run the plan."""

from tutorial_lib.plan.apply import apply, undo
from tutorial_lib.plan.choices import Choice, Fit
from tutorial_lib.plan.fit import OPTIMIZERS, PRECISIONS, fit
from tutorial_lib.plan.profile import Profile, profile
from tutorial_lib.plan.roofline import Speed
from tutorial_lib.plan.schedule import Plan
from tutorial_lib.plan.simulate import Event, Simulation, simulate
from tutorial_lib.plan.solve import floor_bytes, solve
from tutorial_lib.plan.stages import Skip, Stage

__all__ = [
    "OPTIMIZERS",
    "PRECISIONS",
    "Choice",
    "Event",
    "Fit",
    "Plan",
    "Profile",
    "Simulation",
    "Skip",
    "Speed",
    "Stage",
    "apply",
    "fit",
    "floor_bytes",
    "profile",
    "simulate",
    "solve",
    "undo",
]
