"""A guess beside what was measured."""

import math

import pytest

from tutorial_lib import claims
from tutorial_lib.claims.asked import VIEW
from tutorial_lib.guesses import beside, keep, kept, questions


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        (None, ""),
        (5, "   (you guessed 5, 0.5 times the result)"),
        (10.2, "   (you guessed 10.2, almost exactly)"),
        (10, "   (you guessed 10, exactly)"),
        ("half", "   (your guess, 'half', isn't a number: write one, as in guess = 2.5)"),
        (True, "   (your guess, True, isn't a number: write one, as in guess = 2.5)"),
        (math.nan, "   (your guess, nan, isn't a number: write one, as in guess = 2.5)"),
    ],
)
def test_a_guess_is_compared_and_nothing_else_stops_the_cell(guess, words):
    assert beside(guess, 10.0) == words


def test_each_question_has_three_choices_one_answer_and_a_claim():
    assert len(questions()) == 10
    for asked in questions():
        assert list(asked) == ["question", "a", "b", "c", "answer", "claim"]
        assert asked["answer"] in ("a", "b", "c")
        assert asked["claim"] in claims.claims()


def test_answers_are_kept_by_when_they_were_given(tmp_path):
    path = tmp_path / "my_answers.json"
    assert keep("before", {1: None, 2: None}, path).startswith("No answers yet")
    assert not path.exists()
    assert keep("before", {1: "a", 2: None}, path) == "1 of 10 answers are kept in my_answers.json."
    keep("after", {1: "c", 2: "a"}, path)
    assert kept(path) == {"before": {"1": "a"}, "after": {"1": "c", "2": "a"}}


@pytest.mark.parametrize("letter", ["d", "", 2, "A"])
def test_a_letter_that_is_none_is_named_and_nothing_is_kept(tmp_path, letter):
    path = tmp_path / "my_answers.json"
    said = keep("before", {3: letter}, path)
    assert said == f"Question 3: {letter!r} is no answer. Write 'a', 'b' or 'c', or None."
    assert kept(path) == {}


def test_a_front_end_gets_buttons_that_keep_and_remember_and_others_the_same_text(tmp_path):
    pytest.importorskip("ipywidgets")
    path = tmp_path / "my_answers.json"
    said = keep("before", dict.fromkeys(range(1, 11)), path)
    bundle = said._repr_mimebundle_()
    assert bundle["text/plain"] == repr(str(said))
    assert set(bundle) == {"text/plain", "text/html", VIEW}
    assert bundle["text/html"].count("<li>") == 10  # where no buttons show
    assert all(f"{letter}: " in bundle["text/html"] for letter in "abc")
    *rows, words = said._buttons().children
    assert "press a choice" in words.value
    assert "None" not in words.value
    assert [row.value for row in rows[1::2]] == [None] * 10
    rows[1].value = "b"
    rows[5].value = "c"
    assert kept(path) == {"before": {"1": "b", "3": "c"}}
    assert "2 of 10 answers are kept" in words.value
    again = keep("before", {2: "a"}, path)._buttons().children
    assert [row.value for row in again[1:8:2]] == [None, "a", None, None]
