"""Explorers: a figure with sliders, and the figure alone without a front end; beside `figures`."""

from tutorial_lib import load_when_used

__all__, __getattr__ = load_when_used(
    __name__,
    {
        ".figures.doing_now": "doing",
        ".figures.explorer": "VIEW Control Explorer",
        ".figures.ledgers": "memory_calculator published_calculator",
        ".figures.schedules": "plan_explorer schedule_stepper",
        ".figures.snapshots": "snapshot_triage",
    },
)
