"""What to checkpoint under a budget: profile a model's stages, solve, run the plan.

`chain` knows stages as numbers and solves, `run` profiles models and runs them by a plan, and
`fitting` searches recipes. Each imports only from those before it.
"""

from tutorial_lib.instruments import load_when_used

_HOMES = {
    "OPTIMIZERS": "fitting.search",
    "ORDER": "fitting.levers",
    "Candidate": "fitting.candidates",
    "Event": "chain.simulate",
    "Fit": "fitting.candidates",
    "Lever": "fitting.levers",
    "Plan": "chain.plan",
    "Profile": "chain.profiled",
    "Simulation": "chain.simulate",
    "Skip": "chain.stages",
    "Speed": "run.roofline",
    "Stage": "chain.stages",
    "apply": "run.apply",
    "filling_micro_batch": "fitting.levers",
    "fit": "fitting.search",
    "floor_bytes": "chain.solve",
    "judge": "fitting.judged",
    "profile": "run.profile",
    "pull_levers": "fitting.levers",
    "simulate": "chain.simulate",
    "solve": "chain.solve",
    "undo": "run.apply",
}
__all__ = list(_HOMES)
__getattr__ = load_when_used(__name__, _HOMES)
