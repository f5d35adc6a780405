"""Verdicts on the sources' claims: what a chapter shows, what `build` collects, what it refuses."""

import json

import nbformat
import pytest

from tutorial_lib import claims
from tutorial_lib.school.authoring import AuthoringError, verdicts

SENTENCE = "Three quarters of the activations go, and not three quarters of the peak."


def verdict(claim="A10", word="holds if", number="75.0%", **others):
    return claims.Verdict(claim, word, SENTENCE, number, "counted", "cell-a", **others)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"claim": "Z99"}, "claim 'Z99' is unknown"),
        ({"word": "maybe"}, "'maybe' is unknown: there are holds, holds if, wrong"),
        ({"number": "most of it"}, "no figure in the number 'most of it'"),
    ],
)
def test_a_verdict_without_a_figure_or_with_unknown_words_is_refused(fault, says):
    with pytest.raises(claims.ClaimError, match=says):
        verdict(**fault)


RESULT = (verdict(),)


def written(root, folder="course", stem="01_toy", *, code=None, shown=RESULT):
    """Write an executed notebook that shows verdicts."""
    code = (
        code or 'claims.Verdicts(claims.Verdict("A10", "holds if", "...", f"{share:.1%}", "", ""))'
    )
    data = claims.Verdicts(*shown)._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data=data, execution_count=1)
    cells = [nbformat.v4.new_code_cell("share = 0.75", id="cell-a")]
    cells.append(nbformat.v4.new_code_cell(code, id="verdicts", outputs=[output] if shown else []))
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "course/claims").mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), root / folder / f"{stem}.ipynb")
    return root


def test_a_changed_number_changes_the_file_and_a_stale_file_is_named(tmp_path):
    root = written(tmp_path)
    assert verdicts.update(root)
    assert not verdicts.update(root)
    assert not verdicts.stale(root)
    written(root, shown=[verdict(number="74.9%")])
    assert "is not what the notebooks show" in verdicts.stale(root)[0]
    assert verdicts.update(root)
    assert '"number": "74.9%"' in (root / verdicts.COLLECTED).read_text()


TYPED = 'claims.Verdict("A10", "holds if", "...", "75 %", "counted", "cell-a")'


@pytest.mark.parametrize(
    ("notebook", "says"),
    [
        ({"code": TYPED}, "a number is typed"),
        ({"shown": ()}, "'A10' has no result: run the notebook"),
        ({"shown": [verdict("A11")]}, "'A10' has no result"),
    ],
)
def test_typed_numbers_and_chapters_that_were_not_run_stop_the_build(tmp_path, notebook, says):
    with pytest.raises(AuthoringError, match=says):
        verdicts.update(written(tmp_path, **notebook))


def test_a_cell_that_does_not_exist_and_a_contradiction_stop_the_build(tmp_path):
    written(tmp_path)
    written(tmp_path, stem="02_toy", shown=[verdict(word="wrong")])
    with pytest.raises(AuthoringError, match="course/01_toy says 'holds if', and course/02_toy"):
        verdicts.update(tmp_path)
    elsewhere = claims.Verdict("A10", "holds if", SENTENCE, "75%", "counted", "cell-b")
    with pytest.raises(AuthoringError, match="no cell 'cell-b'"):
        verdicts.update(written(tmp_path, stem="02_toy", shown=[elsewhere]))


def test_the_court_has_every_claim_in_order_or_says_which_are_missing(tmp_path):
    path = tmp_path / "verdicts.json"
    rows = [
        {
            "claim": claim,
            "verdict": "holds",
            "sentence": "So.",
            "number": "1",
            "how": "counted",
            "cell": "a",
            "notebook": "course/01_toy",
        }
        for claim in claims.claims()
    ]
    path.write_text(json.dumps(rows[::-1]))
    court = claims.court(path)
    assert [v.claim for v in court] == list(claims.claims())
    html = court._repr_mimebundle_()["text/html"]
    assert "href='../course/01_toy.ipynb'" in html
    assert (html.count("<style>"), html.count("style=")) == (1, 0)  # a rebuild's diff is read
    assert [line[:8] for line in html.splitlines()[3:-1]] == ["<tr><td>"] * len(court)
    path.write_text(json.dumps(rows[2:]))
    with pytest.raises(claims.ClaimError, match="No verdict on A01, A02"):
        claims.court(path)


def test_the_readme_counts_the_verdicts(root):
    verdicts_of = {found.claim: found.verdict for found in claims.court()}
    holds, condition, wrong = (list(verdicts_of.values()).count(word) for word in claims.VERDICTS)
    said = (
        f"{len(verdicts_of)} claims of tutorials, settled: {holds} hold, {condition} hold under a "
        f"condition, {wrong} are wrong"
    )
    assert said in " ".join((root / "README.md").read_text(encoding="utf-8").split())
