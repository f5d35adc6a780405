"""A guess beside what was measured."""

import math

import pytest

from tutorial_lib.guesses import beside


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        (None, ""),
        (5, "   (you guessed 5, 0.5 times that)"),
        (12.5, "   (you guessed 12.5, 1.2 times that)"),
        ("half", "   (your guess, 'half', is no number: write one, as in guess = 2.5)"),
        (True, "   (your guess, True, is no number: write one, as in guess = 2.5)"),
        (math.nan, "   (your guess, nan, is no number: write one, as in guess = 2.5)"),
    ],
)
def test_a_guess_is_compared_and_nothing_else_stops_the_cell(guess, words):
    assert beside(guess, 10.0) == words


def test_a_guess_beside_nothing_has_no_ratio():
    assert beside(3, 0) == "   (you guessed 3)"
