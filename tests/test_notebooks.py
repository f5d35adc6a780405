"""`pytest --nbval` with the options of pyproject.toml: what it compares, and what it lets differ.

The notebooks themselves run under it in the same run: see `test` in tutorial_lib/__main__.py.
"""

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

from tutorial_lib.school.authoring import frame

ROOT = Path(__file__).resolve().parents[1]
FIGURE = 'from IPython.display import HTML\nHTML(\'<img alt="{alt}" src="data:x;base64,{data}">\')'


def shown(html):
    text = {"text/html": html, "text/plain": "<IPython.core.display.HTML object>"}
    return nbformat.v4.new_output("execute_result", data=text, execution_count=1)


def test_bytes_of_a_figure_may_differ_and_its_words_and_numbers_may_not(root, run_python, tmp_path):
    bar = shown('<img alt="a bar" src="data:x;base64,AAAA">')
    number = nbformat.v4.new_output("stream", name="stdout", text="498\n")
    cells = {  # each with the output that was stored
        FIGURE.format(alt="a bar", data="AAAA"): (bar, "PASSED"),
        FIGURE.format(alt="a bar", data="BB+/9="): (bar, "PASSED"),
        FIGURE.format(alt="two bars", data="AAAA"): (bar, "FAILED"),
        "print(498)": (number, "PASSED"),
        "print(499)": (number, "FAILED"),
    }
    made = [
        nbformat.v4.new_code_cell(source, execution_count=1, outputs=[stored])
        for source, (stored, _) in cells.items()
    ]
    notebook = nbformat.v4.new_notebook(cells=made)
    notebook.metadata.kernelspec = {"name": "no-such-kernel", "display_name": "x"}
    path = tmp_path / "notebook.ipynb"
    nbformat.write(notebook, path)
    done = run_python("-m", "pytest", "-c", root / "pyproject.toml", "--nbval", "-rA", path)
    verdicts = re.findall(r"^(PASSED|FAILED) \S*::Cell (\d)", done.stdout, re.M)
    wanted = [verdict for _, verdict in cells.values()]
    assert [verdict for verdict, _ in sorted(verdicts, key=lambda one: one[1])] == wanted


def budgets(root):
    """Minutes on top of each chapter and lab, by stem."""
    for source in sorted(root.glob("*/source/*.py")):
        found = re.search(r"\*\*Budget:\*\* (\d+) minutes, \d+ [GM]iB", source.read_text("utf-8"))
        yield source.stem, found and found[1]


# Minutes of a chapter, counted: fitted to the estimates of two readers for chapters 01 to 15.
WORDS_A_MINUTE, LINES_READ, LINES_WRITTEN, MINUTES_A_GUESS = 100, 5, 2, 2
LINES_FOUND = {"06c_planned_schedules": (0.5,), "14_putting_it_together": (0.5,)}  # by a clock
OFF = 0.15  # what a stated number may be above that count; 5 minutes of a short one
TABLES = ("14b_gallery", "16_claims_court")  # of many rows, to look things up in
TITLED = "# @title "  # of folded cells, which are run and not read
_BLANK = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)
_NOT_READ = re.compile(r"<details>.*?</details>|\]\(.*?\)", re.DOTALL)


def lines_of(code):
    return sum(line.strip()[:1] not in ("", "#") for line in code.splitlines())


def counted_minutes(text, lines_written=LINES_WRITTEN):
    """Minutes that a source takes: a lab's exercises say theirs, a chapter's text is counted."""
    guesses = len(re.findall(r"^guess = None", text, re.MULTILINE))
    if exercises := re.findall(r"· (\d+) minutes", text):
        return sum(map(int, exercises)) + MINUTES_A_GUESS * guesses
    words, read, written = 0, 0, 0
    for cell in re.split(r"^# %% ", text, flags=re.MULTILINE):
        head, _, body = cell.partition("\n")
        if head.startswith("[markdown]"):
            body = re.sub(r"\$.*?\$", " x ", _NOT_READ.sub("", body), flags=re.DOTALL)
            words += len(re.findall(r"[A-Za-z0-9][\w'.-]*", body))
        elif "claims.Verdict" not in body and 'id="imports"' not in head and TITLED not in body:
            written += sum(map(lines_of, _BLANK.findall(body)))
            read += lines_of(_BLANK.sub("", body))
    minutes = words / WORDS_A_MINUTE + read / LINES_READ + written / lines_written
    return minutes + MINUTES_A_GUESS * guesses


def test_stated_minutes_are_the_counted_ones(root):
    far = {}
    for stem, minutes in budgets(root):
        text = next(root.glob(f"*/source/{stem}.py")).read_text("utf-8")
        least, slow = (counted_minutes(text, *n) for n in ((), LINES_FOUND.get(stem, ())))
        most = max(least + 5, slow * (1 + OFF))
        if stem not in TABLES and not round(least, 1) <= int(minutes) <= most:
            far[stem] = minutes, round(least), round(most)
    assert far == {}


def on_one_line(page):
    return re.sub(r"\n(?:#(?!#))? *", " ", page.read_text(encoding="utf-8"))


def linked(text):
    """Notebooks that a text links to with minutes beside, by stem."""
    return set(re.findall(r"\]\((?:\.\./)?(?:\w+/)?(\w+)\.ipynb\) \((\d+)\)", text))


def test_every_notebook_has_a_budget_and_the_readme_says_the_same(root):
    assert linked(on_one_line(root / "README.md")) == set(budgets(root))


@pytest.mark.parametrize("page", ["README.md", "course/source/00_start_here.py"])
def test_the_three_ways_in_take_what_they_say(root, page):
    text = on_one_line(root / page).partition("## Three ways in ")[2].partition(" ## ")[0]
    minutes = {name: int(found) for name, found in budgets(root)}
    evening = [
        minutes["00_start_here"],
        *map(int, re.findall(r"the first exercise \((\d+)\)", text)),
    ]
    for name, heading, said in re.findall(r"(\w+)\.ipynb\) up to \*([^*]+)\* \((\d+)\)", text):
        source = (root / f"course/source/{name}.py").read_text(encoding="utf-8")
        assert abs(counted_minutes(source[: source.index(f"# ## {heading}\n")]) - int(said)) < 3
        evening.append(int(said))
    lab = (root / "solutions/source/lab06_exact_accumulation.py").read_text(encoding="utf-8")
    assert evening[1] == int(re.search(r"· (\d+) minutes", lab)[1])
    assert len(evening) == 4
    assert f"**An evening** ({round(sum(evening) / 60)} hours)" in text
    assert f"**Tonight** ({minutes['tonight']} minutes)" in text
    # without companions (06c, 07d and 10d are chapters) and the appendix, 15
    core = [n for name, n in minutes.items() if re.match(r"(?!15)\d\d_|lab|06c|07d|10d", name)]
    (said,) = re.findall(r"\*\*The course\*\* \(about (\d+) hours", text)
    assert abs(sum(core) / 60 - int(said)) < 0.5


def test_the_next_links_lead_from_the_first_notebook_through_all_chapters_and_labs(root):
    here, seen, settings = "course/tonight.ipynb", [], frame.Settings("someone/course", "v1")
    while here not in seen:
        seen.append(here)
        cell = frame.next_cell(root, here, settings)
        assert "(https://github.com/someone/course/issues/new?template=stuck.md)" in cell.source
        link = re.search(r"\]\(\.\./(.*)\)", cell.source)
        if link is None:
            break
        here = link[1]
        assert (root / here).is_file()
    there = {
        path.relative_to(root).as_posix()
        for folder in ("course", "labs")
        for path in root.glob(f"{folder}/*.ipynb")
    }
    companions = {name for name in there if re.match(r"course/\d\d[a-z]", name)}
    assert there - companions <= set(seen) <= there  # 10d, a chapter, is among them
    for name in companions:
        assert "**Next:**" in frame.next_cell(root, name, settings).source
    unknown = frame.Settings(frame.PLACEHOLDER, "main")
    assert "*Where to ask* in the README" in frame.next_cell(root, name, unknown).source
    assert (root / ".github/ISSUE_TEMPLATE/stuck.md").is_file()
    assert seen.index("labs/lab01_ledger.ipynb") == 3


NOTEBOOKS = sorted(path for at in ("course", "solutions") for path in ROOT.glob(f"{at}/*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_takes_of_our_modules_is_there(path):
    """In the cells that only a GPU runs too."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    sources = [re.sub(r"(?m)^[%!].*", "", cell.source) for cell in cells]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    imports = [
        node
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tutorial_lib")
    ]
    ours = {}
    for node in imports:
        package = importlib.import_module(node.module)
        for name in node.names:
            found = getattr(package, name.name, None)
            found = found or importlib.import_module(f"{node.module}.{name.name}")
            if isinstance(found, ModuleType):
                ours[name.asname or name.name] = found
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            ours.pop(node.id, None)  # the notebook's own from then on
        elif isinstance(node, ast.arg):
            ours.pop(node.arg, None)
    missing = [
        f"{node.value.id}.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ours
        and not hasattr(ours[node.value.id], node.attr)
    ]
    assert missing == []
