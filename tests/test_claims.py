"""Verdicts on the sources' claims: what a chapter shows, what `build` collects, what it refuses."""

import json
import re
from dataclasses import replace

import nbformat
import pytest

from tutorial_lib import claims
from tutorial_lib.school.authoring import AuthoringError, verdicts

SENTENCE = "Three quarters of the activations go, and not three quarters of the peak."
TRIED = {"A10": {"saved": {"activations": 75.0, "peak": 58.5}}}


def verdict(claim="A10", word="holds if", number="75.0%", tried=None, **others):
    tried = TRIED.get(claim, {}) if tried is None else tried
    return claims.Verdict(claim, word, SENTENCE, number, "counted", "a", tried=tried, **others)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"claim": "Z99"}, "claim 'Z99' is unknown"),
        ({"word": "maybe"}, "'maybe' is unknown: there are holds, holds if, nearly, partly, wrong"),
        ({"claim": "A07"}, "'holds if' is unknown: there are built"),
        ({"claim": "C09"}, "'holds if' is unknown: there are shown"),
        ({"number": "most of it"}, "no figure in the number 'most of it'"),
        ({"word": "wrong"}, "the verdict is 'wrong', and the values .* allow 'holds if'"),
        ({"tried": {}}, r"A10: tried has values for \[\], and needs \['saved'\]"),
        ({"claim": "A11"}, "A11: nothing says how wide the condition is: give held"),
        ({"claim": "A11", "tried": TRIED["A10"]}, r"values for \['saved'\], and needs \[\]"),
    ],
)
def test_a_verdict_without_a_figure_or_with_unknown_words_is_refused(fault, says):
    with pytest.raises(claims.ClaimError, match=says):
        verdict(**fault)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([47.6, 83.9], "holds"),  # 50 to 80 %, and 5 % beyond either edge
        ([47.4, 83.9], "holds if"),
        ([84.1], "nearly"),
        ([42.6, 10.0], "nearly"),
        ([42.4, 92.1, 0.0, -30.0], "wrong"),
    ],
)
def test_the_values_decide_the_word(values, word):
    tried = {"saved": dict(zip("abcd", values, strict=False))}
    assert claims.word("A04", tried) == word
    assert verdict("A04", word, tried=tried).tried == tried


@pytest.mark.parametrize(
    ("of_parts", "word"),
    [
        # 24 GB at once, 8 as 4 x 4 and 5 checkpointed stand in one quotation
        (({"a": 24, "b": 1}, {"a": 8, "b": 1}, {"a": 5, "b": 1}), "holds if"),
        (({"a": 24, "b": 27}, {"b": 8, "a": 16}, {"a": 5, "b": 5.5}), "nearly"),
        (({"a": 24, "b": 1}, {"a": 16, "b": 8}, {"a": 5, "b": 5}), "partly"),
        (({"a": 24}, {"b": 8}, {"c": 5}), "partly"),  # no condition has tried them together
        (({"a": 26, "b": 60}, {"a": 16, "b": 9}, {"a": 6, "b": 3}), "wrong"),
    ],
)
def test_figures_of_one_quotation_need_one_condition(of_parts, word):
    parts = [figure["part"] for figure in claims.figures("A13")]
    assert claims.word("A13", dict(zip(parts, of_parts, strict=True))) == word


RESULT = (verdict(),)


def written(root, folder="course", stem="01_toy", *, code=None, shown=RESULT):
    """Write an executed notebook that shows verdicts."""
    code = code or 'claims.Verdict("A10", "holds if", "...", f"{share:.1%}", "", "")'
    data = claims.Verdicts(*shown)._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data=data, execution_count=1)
    printed = nbformat.v4.new_output("stream", text="of the activations: 75.0 or 74.9 %")
    cells = [nbformat.v4.new_code_cell("share = 0.75", id="a", outputs=[printed])]
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


@pytest.mark.parametrize(
    ("number", "missing"),
    [
        ("75%", []),  # as it is written, but for a sign, zeros at its end and separators
        ("-74.9 %", []),
        ("75.0 of 1,024 bytes in float32", ["1,024"]),
        ("7 or 5, True", ["7", "5", "True"]),
    ],
)
def test_a_number_that_the_linked_cell_does_not_show_stops_the_build(tmp_path, number, missing):
    root = written(tmp_path, shown=[verdict(number=number)])
    if not missing:
        assert verdicts.update(root)
        return
    with pytest.raises(AuthoringError, match=f"{', '.join(missing)} of '{number}' is not in"):
        verdicts.update(root)


def test_all_numbers_of_the_court_are_in_the_output_of_the_linked_cells(root):
    rows, problems = verdicts.collect(root)
    assert len(rows) == 88
    assert not problems


TYPED = 'claims.Verdict("A10", "holds if", "...", "75 %", "counted", "cell-a")'


@pytest.mark.parametrize(
    ("notebook", "says"),
    [
        ({"code": TYPED}, "a number is typed"),
        ({"shown": ()}, "'A10' has no result: run the notebook"),
        ({"shown": [verdict("A11", held=(1, 2, "sizes"))]}, "'A10' has no result"),
    ],
)
def test_typed_numbers_and_chapters_that_were_not_run_stop_the_build(tmp_path, notebook, says):
    with pytest.raises(AuthoringError, match=says):
        verdicts.update(written(tmp_path, **notebook))


def test_a_cell_that_does_not_exist_and_a_contradiction_stop_the_build(tmp_path):
    written(tmp_path)
    other = verdict(word="holds", tried={"saved": {"activations": 75.0}})
    written(tmp_path, stem="02_toy", shown=[other])
    with pytest.raises(AuthoringError, match="course/01_toy says 'holds if', and course/02_toy"):
        verdicts.update(tmp_path)
    elsewhere = replace(verdict(), cell="cell-b")
    with pytest.raises(AuthoringError, match="no cell 'cell-b'"):
        verdicts.update(written(tmp_path, stem="02_toy", shown=[elsewhere]))


def test_a_stored_verdict_that_its_own_values_contradict_stops_the_build(tmp_path):
    root = written(tmp_path)
    path = root / "course/01_toy.ipynb"
    path.write_text(path.read_text().replace("75.0,", "60.0,"))
    with pytest.raises(AuthoringError, match="and the values that were tried allow 'wrong'"):
        verdicts.update(root)


def test_the_court_has_every_claim_in_order_or_says_which_are_missing(tmp_path):
    path = tmp_path / "verdicts.json"
    words = {"code": "built", "topic": "shown"}
    about = {"sentence": "So.", "number": "1", "how": "counted", "cell": "a"}
    rows = [
        {"claim": claim, "verdict": words.get(kind, "holds"), "notebook": "course/01_toy"}
        | {"tried": {f["part"]: {"b": f["low"]} for f in claims.figures(claim)}}
        | about
        for claim, kind in claims.claims("kind").items()
    ]
    path.write_text(json.dumps(rows[::-1]))
    court = claims.court(path)
    assert [v.claim for v in court] == list(claims.claims())
    assert court.headline == (
        "37 claims (37 holds), 12 published measurements (12 holds); besides, 25 topics shown and "
        "11 code examples built"
    )
    html = court._repr_mimebundle_()["text/html"]
    assert "href='../course/01_toy.ipynb'" in html
    assert (html.count("<style>"), html.count("style=")) == (1, 0)  # a rebuild's diff is read
    assert [line[:8] for line in html.splitlines()[3:-1]] == ["<tr><td>"] * len(court)
    path.write_text(json.dumps(rows[2:]))
    with pytest.raises(claims.ClaimError, match="No verdict on A01, A02"):
        claims.court(path)


def test_the_readme_counts_the_verdicts(root):
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    total, each = re.match(r"(\d+) claims \((.*?)\)", claims.court().headline).groups()
    count = {word: number for number, word in re.findall(r"(\d+) ([a-z ]+)", each)}
    assert count.keys() == {"holds", "holds if", "partly", "wrong"}
    assert (
        f"Of {total} claims in five tutorials, {count['holds']} hold as they stand, "
        f"{count['holds if']} hold under a condition that we name, {count['partly']} hold partly, "
        f"and {count['wrong']} are wrong."
    ) in said
