"""Explorers: sliders over the course's figures, and the figure alone without a front end."""

from tutorial_lib.widgets.explorer import VIEW, Control, Explorer
from tutorial_lib.widgets.ledgers import memory_calculator, published_calculator
from tutorial_lib.widgets.schedules import batch_explorer, plan_explorer, schedule_stepper
from tutorial_lib.widgets.snapshots import snapshot_triage

__all__ = [
    "VIEW",
    "Control",
    "Explorer",
    "batch_explorer",
    "memory_calculator",
    "plan_explorer",
    "published_calculator",
    "schedule_stepper",
    "snapshot_triage",
]
