"""What to checkpoint under a budget: profile a model's stages, solve, run the plan.

`chain` knows stages as numbers and solves, `run` profiles models and runs them by a plan, and
`fitting` searches recipes. Each imports only from those before it.
"""

from tutorial_lib import load_when_used

__all__, __getattr__ = load_when_used(
    __name__,
    {
        "chain.moves": "Move Span",
        "chain.host": "Host",
        "chain.offload": "solve_with_host",
        "chain.plan": "Plan",
        "chain.profiled": "Profile",
        "chain.simulate": "Event Simulation simulate",
        "chain.solve": "floor_bytes solve",
        "chain.stages": "Skip Stage",
        "fitting.candidates": "Candidate Fit",
        "fitting.judged": "judge",
        "fitting.search": "OPTIMIZERS fit",
        "run.apply": "apply undo",
        ".levers": "ORDER Lever filling_micro_batch pull_levers",
        "run.profile": "profile",
        "run.roofline": "Speed",
    },
)
