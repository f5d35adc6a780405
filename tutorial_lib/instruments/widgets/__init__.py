"""Explorers: sliders over the course's figures, and the figure alone without a front end."""

from tutorial_lib.instruments import load_when_used

_HOMES = {
    "VIEW": "explorer",
    "Control": "explorer",
    "Explorer": "explorer",
    "batch_explorer": "schedules",
    "doing": "progress",
    "memory_calculator": "ledgers",
    "plan_explorer": "schedules",
    "published_calculator": "ledgers",
    "schedule_stepper": "schedules",
    "snapshot_triage": "snapshots",
}
__all__ = list(_HOMES)
__getattr__ = load_when_used(__name__, _HOMES)
