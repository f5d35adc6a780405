"""Explorers of what a training step does in which order: schedules, plans."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tutorial_lib.plots.base import CourseFigure
from tutorial_lib.units import human_bytes

from .explorer import Control, Explorer
from .planning import plans
from .planning import schedule as draw_schedule


def schedule_stepper(schedules: Mapping[str, Sequence[Any]], *, unit: int = 0) -> Explorer:
    """Step through schedules, one run of a stage after the other.

    Args:
        schedules: Name of each, and its events, as `planning.simulate(...).events` gives them.
        unit: Show bytes as multiples of this many; 0 for bytes.

    Raises:
        ValueError: When there is no schedule, or one without events.
    """
    if not schedules:
        raise ValueError("schedules is empty: give the events of at least one.")
    longest = max(map(len, schedules.values()))

    def last(values: Mapping[str, Any]) -> int:
        return len(schedules[values["name"]])

    def draw(name: str, step: int) -> CourseFigure:
        return draw_schedule(schedules[name], step=step, title=name, unit=unit)

    controls = {
        "name": Control("schedule", list(schedules), next(iter(schedules)), menu=True),
        "step": Control("step", range(1, longest + 1), 1, last=last),
    }
    return Explorer(draw, controls)


def plan_explorer(solve: Callable[[int], Any], budgets: Sequence[int]) -> Explorer:
    """Drag a budget of memory, and see the plan for it among the plans for the others.

    Args:
        solve: From a budget in bytes to a plan, as `planning.solve` makes it. It is asked for every
            budget beforehand; the `ValueError` of one that is too small is shown in its place.
        budgets: In bytes; the slider goes from the smallest to the largest. It begins in the
            middle of those that have a plan.

    Raises:
        ValueError: When there is no budget, or no plan for any.
    """
    found: dict[str, Any] = {}
    for budget in sorted(budgets):
        try:
            found[human_bytes(budget)] = solve(budget)
        except ValueError as error:
            found[human_bytes(budget)] = str(error)
    solved = {name: plan for name, plan in found.items() if not isinstance(plan, str)}
    if not solved:
        raise ValueError(f"none of the {len(budgets)} budgets has a plan: try larger ones.")

    def draw(budget: str) -> CourseFigure | str:
        plan = found[budget]
        return plan if isinstance(plan, str) else plans(list(solved.values()), plan, budget)

    middle = list(solved)[len(solved) // 2]
    return Explorer(draw, {"budget": Control("budget", list(found), middle)})
