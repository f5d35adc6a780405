"""`python -m tutorial_lib site`: the executed course as static pages, for any host of files."""

from tutorial_lib.school.site.make import make_site

__all__ = ["make_site"]
