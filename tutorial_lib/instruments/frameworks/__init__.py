"""Other frameworks beside PyTorch, for chapter 15, found in `course/frameworks`."""

from tutorial_lib import content, load_when_used

__path__.append(str(content("frameworks", __name__)))
__all__, __getattr__ = load_when_used(
    __name__, {"cells_and_meter": "import_tensorflow leave_out_cells tensorflow_step"}
)
