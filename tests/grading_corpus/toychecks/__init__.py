"""Checks of a toy lab: what tests of the grader grade."""
