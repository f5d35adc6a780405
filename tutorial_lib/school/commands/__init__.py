"""The commands of `python -m tutorial_lib`: one table, one parser, one module for each command.

A command's module has `options`, which adds what it takes to a parser, and `run`, which gives the
exit status. Its docstring is the first thing that `COMMAND --help` shows.
"""
