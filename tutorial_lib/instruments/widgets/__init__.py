"""Explorers: sliders over the course's figures, and the figure alone without a front end."""

from tutorial_lib import load_when_used

__all__, __getattr__ = load_when_used(
    __name__,
    {
        "explorer": "VIEW Control Explorer",
        "ledgers": "memory_calculator published_calculator",
        "progress": "doing",
        "schedules": "plan_explorer schedule_stepper",
        "snapshots": "snapshot_triage",
    },
)
