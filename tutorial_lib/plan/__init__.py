"""What to checkpoint under a budget: profile a model's stages, solve, run the plan."""

from tutorial_lib.plan.schedule import Plan
from tutorial_lib.plan.simulate import Event, Simulation, simulate
from tutorial_lib.plan.solve import solve
from tutorial_lib.plan.stages import Skip, Stage

__all__ = ["Event", "Plan", "Simulation", "Skip", "Stage", "simulate", "solve"]
