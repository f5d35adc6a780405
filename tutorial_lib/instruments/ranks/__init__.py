"""Several ranks of one training, on one machine: real processes, or threads where none may start.

`start(2).run(function)` runs a function, a notebook's own as well, in processes joined by gloo.
`in_threads(function, 2)` does the same in this process, for checks: it needs neither sockets nor
new processes, and says who waits for whom instead of hanging. `traffic` counts collectives. These
are content of chapters 13 to 14b and of lab 06, found in `course/ranks`. `pretend(8)` makes this
process one rank of eight that are not there, for predictions.
"""

from tutorial_lib import content, load_when_used

__path__.append(str(content("ranks", __name__)))
__all__, __getattr__ = load_when_used(
    __name__,
    {
        "collectives": "Traffic traffic",
        "processes": "Ranks start",
        "threads": "in_threads",
        ".training.pretended": "pretend",
    },
)
