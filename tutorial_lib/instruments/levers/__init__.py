"""The levers of `tonight` and chapters 08 and 14c, found in `course/levers`."""

from tutorial_lib import content, load_when_used

__path__.append(str(content("levers", __name__)))
__all__, __getattr__ = load_when_used(
    __name__, {"pulling": "ORDER Lever filling_micro_batch pull_levers"}
)
