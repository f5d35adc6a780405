"""Blanks of the chapters: what a reader writes, and what runs while it is not written."""

import contextlib
import functools
import importlib
import io

import pytest
from test_wrong_answers import DAILY_RIGHT, DAILY_WRONG
from written import written_and_given

from solutions.answers import ROOT
from solutions.answers.known import changed
from solutions.grader.submissions.slice_cells import cut, used_names
from tutorial_lib import blanks
from tutorial_lib.instruments import ranks
from tutorial_lib.school import marks
from tutorial_lib.school.authoring.answers import take_apart_blanks
from tutorial_lib.school.authoring.files import read_notebook
from tutorial_lib.school.authoring.run import execute
from tutorial_lib.school.authoring.source import read_source
from tutorial_lib.school.commands.test import changed_files

# Chapter 16 computes nothing of its own: there the reader answers the ten questions again.
CORE = [*(f"{number:02}" for number in range(16)), "06c", "10d", "11c"]
WRITTEN = ("02", "04", "05", "06c", "07", "08", "09", "10d", "13", "14")  # a quarter is written
FEWEST_WRONG = 3
FILLED = sorted(path.stem[2:] for path in ROOT.glob("solutions/answers/chapters/ch*.py"))
CHANGED = "\n".join(changed_files(ROOT, "HEAD~1"))
# Bodies that every blank might get, and that every check has to answer in words.
BROKEN = {
    "raises": 'raise KeyError("lost")',
    "gives_none": "return None",
    "gives_text": 'return ""',
}


class Written:
    limit = 3

    @staticmethod
    def forward(x):
        return x


class HalfWritten(Written):
    @staticmethod
    def backward(x):
        raise NotImplementedError("your turn: write this body")


def blank(x):
    raise NotImplementedError


def blank_within(x):
    @contextlib.contextmanager
    def inner():
        raise NotImplementedError

    return inner


def written(x):
    return x


@pytest.mark.parametrize(
    ("yours", "kept"),
    [
        (written, True),
        (functools.cache(written), True),
        (Written, True),
        (blank, False),
        (blank_within, False),
        (contextlib.contextmanager(blank), False),
        (HalfWritten, False),
    ],
)
def test_our_lines_run_only_where_yours_are_blank_and_say_so(capsys, yours, kept):
    def ours(x):
        return -x

    assert blanks.unless_written(yours)(ours) is (yours if kept else ours)
    assert capsys.readouterr().out == ("" if kept else "ours is blank above: ours runs instead.\n")


def source_of(root, number):
    (path,) = root.glob(f"course/source/{number}_*.py")
    return path


@pytest.mark.parametrize("number", CORE)
def test_each_core_chapter_has_blanks_of_a_few_lines(root, number):
    cells = read_source(source_of(root, number))
    found = take_apart_blanks(cells)
    assert len(found) >= 2
    lines = {name: sum(map(len, answer.secrets)) for name, answer in found.items()}
    assert all(2 <= count <= 12 for count in lines.values()), lines
    assert sum("**Write.**" in cell.text for cell in cells) >= 2


@pytest.mark.parametrize("number", WRITTEN)
def test_a_quarter_of_the_code_is_its_readers(root, number):
    written, given = written_and_given(source_of(root, number))
    assert written >= (written + given) / 4


def half(x):
    return {}[x]


def torch_refuses(x):
    raise AssertionError("Expected a tensor")


@pytest.mark.parametrize(
    ("yours", "said"),
    [
        (half, "This check of `half` stopped at KeyError: 4. It needs to return half of x."),
        (torch_refuses, "This check of `half` stopped at AssertionError: Expected a tensor."),
        (lambda x: None, "half(4) must be 2."),
    ],
)
def test_a_check_says_in_words_what_is_wrong(capsys, yours, said):
    with pytest.raises(AssertionError) as refused:
        exec(
            '@check("half", "return half of x")\n'
            'def halves():\n    assert half(4) == 2, "half(4) must be 2."',
            {"check": blanks.check, "half": yours},
        )
    assert str(refused.value).startswith(said)
    alone = getattr(refused.value, "_render_traceback_", lambda: None)()
    assert alone == (["AssertionError: half(4) must be 2."] if "must" in said else None)
    assert capsys.readouterr().out == ""


def ran(root, number, *, filled=False):
    """Run a chapter's copy to work in; which of its blanks our lines stood in for, in order."""
    path = source_of(root, number)
    notebook = read_notebook(root / f"course/blank/{path.stem}.ipynb")
    read = read_notebook(root / f"course/{path.stem}.ipynb")
    solved = {cell.id: cell.source for cell in read.cells}
    names = list(take_apart_blanks(read_source(path)))
    for cell in notebook.cells:
        if filled and cell.id in names:
            cell.source = solved[cell.id]
    execute(notebook, root / "course", path.stem)
    said = {
        cell.id: "".join(output.get("text", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    return names, [name for name in names if "is blank above" in said[f"{name}-ours"]]


@pytest.mark.weekly
@pytest.mark.parametrize("number", CORE)
def test_a_chapter_runs_to_its_end_with_every_blank_unfilled(root, number):
    names, stood_in = ran(root, number)
    if number != "15":  # whose cells for a framework that is not here are left out
        assert stood_in == names


@pytest.mark.weekly
@pytest.mark.parametrize("number", ["04", "09"])
def test_a_chapter_runs_on_what_its_reader_wrote(root, number):
    _, stood_in = ran(root, number, filled=True)
    assert stood_in == []


@functools.cache
def code_cells(number):
    """A chapter's code by cell id, in order and with our solutions; and its blanks."""
    cells = [c for c in read_source(source_of(ROOT, number)) if c.kind == "code"]
    found = take_apart_blanks(cells)
    return {c.id: found[c.id].solution if c.id in found else c.text for c in cells}, found


def fillings(number):
    return importlib.import_module(f"solutions.answers.chapters.ch{number}").FILLINGS


@functools.cache
def above(number, blank, used):
    """Cut a chapter's cells above a blank down to what makes the names that are used."""
    texts, _ = code_cells(number)
    before = list(texts)[: list(texts).index(blank)]
    steps = [{"exercise": None, "source": texts[cell]} for cell in before]
    *kept, _ = cut([*steps, {"exercise": blank, "source": "\n".join(used)}])
    return compile("\n".join(kept), number, "exec")


@pytest.fixture(scope="module", autouse=True)
def ranks_are_started_once():
    """A chapter's processes work for all fillings, and are started anew where one ended them."""
    start, kept = ranks.start, {}

    def started(num_ranks):
        if num_ranks not in kept or not kept[num_ranks]._end.alive:
            kept[num_ranks] = start(num_ranks)
        return kept[num_ranks]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "start", started)
        yield
    for group in kept.values():
        group.stop()


def verdict(number, blank, filling):
    """Run a blank's check on a filling, and what both need from above; what it prints or says."""
    texts, _ = code_cells(number)
    if missing := marks.missing_packages(texts.values()):
        pytest.skip(f"chapter {number} needs {missing}")
    check, printed = texts[f"check-{blank}"], io.StringIO()
    namespace = {"__name__": f"chapter {number}"}
    used = used_names(f"{texts[blank]}\n{filling}\n{check}")
    exec(above(number, blank, frozenset(used)), namespace)
    exec(filling, namespace)
    with contextlib.redirect_stdout(printed), contextlib.chdir(ROOT / "course"):
        try:
            exec(check, namespace)
        except AssertionError as error:
            return str(error)
    return printed.getvalue()


def each_filling(kind, daily=3):
    """Parametrise with the fillings of a kind: the first few daily, of a new chapter all of them.

    A check that takes everything, or none, or says other words, shows in the first few. One that
    misses a single mistake has been edited, and its chapter is among the files that changed.
    """
    found = [
        pytest.param(number, blank, name, marks=[] if is_daily else [pytest.mark.weekly])
        for number in FILLED
        for blank, filled in fillings(number).items()
        for place, name in enumerate(kind(filled))
        for is_daily in [place < daily or f"/{number}_" in CHANGED or f"/ch{number}.py" in CHANGED]
    ]
    return pytest.mark.parametrize(("number", "blank", "name"), found)


def wrong_in(filled):
    return [name for name, change in filled.items() if change.refused_with]


def right_in(filled):
    return [name for name, change in filled.items() if not change.refused_with]


@pytest.mark.parametrize("number", FILLED)
def test_below_each_blank_is_its_check_and_three_mistakes_are_known(number):
    texts, found = code_cells(number)
    assert list(fillings(number)) == list(found)
    for below, blank in zip(list(texts)[1:], texts, strict=False):
        assert blank not in found or below == f"check-{blank}"
    few = {name for name, them in fillings(number).items() if len(wrong_in(them)) < FEWEST_WRONG}
    assert few == set()


@each_filling(lambda _: ["ours"])
def test_ours_passes_and_prints_one_line(number, blank, name):
    said = verdict(number, blank, code_cells(number)[1][blank].solution)
    assert said.endswith(" passes.\n"), said
    assert said.count("\n") == 1


@each_filling(wrong_in, DAILY_WRONG)
def test_a_wrong_filling_is_refused_in_words_that_fit_it(number, blank, name):
    change, others = fillings(number)[blank][name], fillings(number)[blank]
    said = verdict(number, blank, changed(code_cells(number)[1][blank].solution, *change.parts))
    assert change.refused_with in said
    meant = {o.refused_with for o in others.values() if o.refused_with} - {change.refused_with}
    assert not [words for words in meant if words in said], said


@each_filling(right_in, DAILY_RIGHT)
def test_another_right_filling_passes(number, blank, name):
    parts = fillings(number)[blank][name].parts
    said = verdict(number, blank, changed(code_cells(number)[1][blank].solution, *parts))
    assert said.endswith(" passes.\n"), said


@each_filling(lambda _: BROKEN)
def test_a_filling_that_raises_or_gives_something_else_is_told_what_is_needed(number, blank, name):
    empty = code_cells(number)[1][blank].blank
    stub = 'raise NotImplementedError("your turn: write this body")'
    said = verdict(number, blank, empty.replace(stub, BROKEN[name]))
    assert not said.endswith(" passes.\n")
    assert len(said.split()) > 5, said
