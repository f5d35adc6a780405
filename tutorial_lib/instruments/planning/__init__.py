"""What to checkpoint under a budget: profile a model's stages, solve, run the plan."""

from tutorial_lib.instruments.planning.apply import apply, undo
from tutorial_lib.instruments.planning.choices import Choice, Fit
from tutorial_lib.instruments.planning.fit import OPTIMIZERS, PRECISIONS, fit
from tutorial_lib.instruments.planning.profile import Profile, profile
from tutorial_lib.instruments.planning.roofline import Speed
from tutorial_lib.instruments.planning.schedule import Plan
from tutorial_lib.instruments.planning.simulate import Event, Simulation, simulate
from tutorial_lib.instruments.planning.solve import floor_bytes, solve
from tutorial_lib.instruments.planning.stages import Skip, Stage

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
