"""Authoring: build, verify and hand out the notebooks of the course from their sources.

One file a notebook is edited by hand, `source/NN_topic.py`; `build` writes everything else.
"""

from tutorial_lib.school.authoring.build import build, check, stamp
from tutorial_lib.school.authoring.definitions import load_definitions
from tutorial_lib.school.authoring.files import AuthoringError
from tutorial_lib.school.authoring.handout import make_zip

__all__ = ["AuthoringError", "build", "check", "load_definitions", "make_zip", "stamp"]
