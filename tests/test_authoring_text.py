"""Stored outputs and prose: what build refuses in them, and what passes."""

import re

import nbformat
import pytest

from tutorial_lib.school.authoring import outputs, prose, run


def notebook_with(output, source="x", tags=()):
    cell = nbformat.v4.new_code_cell(source, id="c", outputs=[output], metadata={"tags": [*tags]})
    return nbformat.v4.new_notebook(cells=[cell])


def printed(text, name="stdout"):
    return nbformat.v4.new_output("stream", text=text, name=name)


def shown(**data):
    data = {key.replace("_", "/", 1): value for key, value in data.items()}
    return nbformat.v4.new_output("display_data", data=data)


ALWAYS = [
    (printed("in /home/ann/course"), "a path"),
    (printed("at '/home/me/x.py'"), "a path"),
    (printed("wrote /tmp/a.json"), "a path"),
    (printed("/root/.cache"), "a path"),
    (printed("C:\\Users\\ann"), "a path"),
    (shown(text_plain="lib/site-packages/torch"), "a path"),
    (shown(text_html='<img alt="a" src="/home/x.png">'), "a path"),
    (printed("2026-11-20T20:12"), "a time stamp"),
    (printed("Fri Nov 20 20:12:01"), "a time stamp"),
    (shown(text_plain="<object at 0x104f2d0>"), "a memory address"),
    (printed("0x7f3a5c0b1d30"), "a memory address"),
    (printed("warning", name="stderr"), "stderr"),
    (nbformat.v4.new_output("error", ename="ValueError", evalue="x", traceback=[]), "an error"),
]
DURATIONS = ["12.3 ms", "took 4s", "2.00 min", "7 µs", "12 it/s", "3 seconds", "1e-3 s"]


@pytest.mark.parametrize(("output", "what"), ALWAYS)
def test_outputs_of_one_machine_are_refused_marked_or_not(output, what):
    for source in ("x", "# NBVAL_IGNORE_OUTPUT\nx"):
        found = outputs.problems(notebook_with(output, source), "n.ipynb")
        assert len(found) == 1
        assert found[0].startswith("n.ipynb, cell 'c': the output")
        assert what in found[0]


@pytest.mark.parametrize("text", DURATIONS)
def test_durations_are_refused_in_compared_cells_only(text):
    for output in (printed(text), shown(text_html=f"<td>{text}</td>")):
        assert "a duration" in outputs.problems(notebook_with(output), "n")[0]
        assert outputs.problems(notebook_with(output, "# NBVAL_IGNORE_OUTPUT\nx"), "n") == []


@pytest.mark.parametrize(
    "output",
    [
        printed("4718592 B in 24 storages, 1.50 GiB, 12 steps, x[3] min(2)"),
        printed("see https://example.org/home/page and a/tmp/b"),
        shown(text_html='<img alt="bars" src="data:image/png;base64,iVBOR3s/home/4ms/tmp">'),
        shown(text_html="<style>.a{transition: 0.3s}</style><p style='x: 2s'>4 B</p>"),
        shown(image_png="/tmp/12 ms", text_plain="a figure"),
        printed("measured 2026-08-25 on a T4"),
    ],
)
def test_outputs_that_stay_the_same_pass(output):
    assert outputs.problems(notebook_with(output), "n") == []


def test_widget_views_go_where_a_static_figure_stands_beside():
    view = "application/vnd.jupyter.widget-view+json"
    both, alone = {view: {"model_id": "1"}, "text/plain": "bars"}, {view: {"model_id": "2"}}
    cell = nbformat.v4.new_code_cell("x", id="c", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("display_data", data=data) for data in (both, alone)]
    before = nbformat.v4.new_notebook(cells=[cell])
    after = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", id="c")])
    assert run.keep_outputs(after, before)
    assert [list(output.data) for output in after.cells[0].outputs] == [["text/plain"], [view]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```mermaid\ngraph\n```", "mermaid is blank"),
        ("![](figure.svg)", "has no alt text"),
        ("![ ][ref]", "has no alt text"),
        ('<img src="x.svg">', "has no alt text"),
        ('<img src="x.svg" alt="">', "has no alt text"),
        ("costs $x + 1 bytes", r"a lone `\$`"),
        ("one $a$ two $b\n\nthree $", r"a lone `\$`"),
        ("$$ x = 1 $", r"a lone `\$`"),
    ],
)
def test_prose_that_some_viewer_breaks_is_refused(text, message):
    found = prose.problems([("here", text)])
    assert len(found) >= 1
    assert re.search(rf"^here: .*{message}", found[0])


@pytest.mark.parametrize(
    "text",
    [
        "```python\ncost = '$'\n# no heading\n```",
        "`$HOME` and `![](x)` and \\$5",
        "$a + b$ and\n$$\nx = 1\n$$",
        "![bars by category](figure.svg)",
        "<img\n  alt='bars' src='x.svg'>",
        "<details>\n<summary>Hint</summary>\n\n$x$\n</details>",
    ],
)
def test_prose_that_reads_everywhere_passes(text):
    assert prose.problems([("here", text)]) == []
