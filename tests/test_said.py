"""What commands say beside their answer."""

from tutorial_lib.school.said import foreseen, of_own_code, sign_of_life


def test_an_error_of_no_line_of_the_users_is_left_alone():
    assert of_own_code(KeyError("x")) is None
    assert foreseen(ValueError("a sentence")) == "a sentence"


def test_work_without_a_terminal_is_one_line(capsys):
    with sign_of_life("Predicting gpt2"):
        pass
    assert capsys.readouterr().err == "Predicting gpt2 ...\n"
