"""Unusual but honest submissions: what students and their editors do to a notebook.

`ANY` changes the cells of any solved lab, and must cost no point. `TOY` are answers to the toy
lab, each with the cells that stand before the answer to 1.2; all are worth all points.
"""

import copy
import random

import answers
from toy import code, full, notebook, text


def is_answer(cell):
    return "".join(cell["source"]).startswith("# exercise")


def source_of(cell):
    return "".join(cell["source"])


def without_ids(cells):
    return [{k: v for k, v in cell.items() if k != "id"} | {"metadata": {}} for cell in cells]


def colab(cells):
    bare = without_ids(cells)
    return [new | {"metadata": {"id": old["id"]}} for new, old in zip(bare, cells, strict=True)]


def without_marks(cells):
    for cell in cells:
        if is_answer(cell):
            cell["source"] = source_of(cell).split("\n", 1)[1]
    return without_ids(cells)


def answers_only(cells):
    return [cell for cell in cells if is_answer(cell)]


def merged(cells):
    return [code("all", "\n\n".join(source_of(c) for c in cells if c["cell_type"] == "code"))]


def shuffled(cells):
    random.Random(0).shuffle(cells)
    return cells


def each_line(change):
    def changed(cells):
        for cell in cells:
            cell["source"] = change(source_of(cell))
        return cells

    return changed


def before_each_answer(source):
    def changed(cells):
        for i in reversed([i for i, cell in enumerate(cells) if is_answer(cell)]):
            cells.insert(i, code(f"own-{i}", source))
        return cells

    return changed


def in_each_answer(source):
    def changed(cells):
        for cell in filter(is_answer, cells):
            cell["source"] = source_of(cell) + "\n" + source
        return cells

    return changed


def answers_twice(cells):
    return [twin for cell in cells for twin in ([cell, dict(cell)] if is_answer(cell) else [cell])]


def first_try_is_broken(cells):
    tried = []
    for cell in cells:
        if is_answer(cell):
            mark = source_of(cell).split("\n")[0]
            tried.append(cell | {"source": f"{mark}\ndef unfinished("})
        tried.append(cell)
    return tried


def texts_exchanged(cells):
    """Two by two, also the marks: a cell's id says another exercise than its text."""
    mine = [cell for cell in cells if is_answer(cell)]
    for one, other in zip(mine[::2], mine[1::2], strict=False):
        one["source"], other["source"] = source_of(other), source_of(one)
    return cells


def marks_exchanged(cells):
    mine = [cell for cell in cells if is_answer(cell)]
    marks = [source_of(cell).split("\n")[0] for cell in mine]
    for cell, mark in zip(mine, marks[-1:] + marks[:-1], strict=True):
        cell["source"] = "\n".join([mark, *source_of(cell).split("\n")[1:]])
    return cells


def marks_written_anew(cells):
    for cell in filter(is_answer, cells):
        mark, rest = source_of(cell).split("\n", 1)
        cell["source"] = f"%%time\n## My {mark[2:].title()}:\n{rest}"
    return without_ids(cells)


def in_the_cell_below(cells):
    """The answer is in a cell of the student's own, between its cell and the check."""
    moved = []
    for cell in cells:
        moved.append(cell)
        if is_answer(cell):
            mark, rest = source_of(cell).split("\n", 1)
            moved[-1] = cell | {"source": f"{mark}\n# see below"}
            moved.append(code(f"below-{mark[11:]}", rest))
    return moved


def setup_reformatted(cells):
    for cell in cells:
        if cell["cell_type"] == "code" and not source_of(cell).startswith("#"):
            cell["source"] = "# my notes\n" + source_of(cell).replace(" = ", "  =  ")
    return cells


ANY = {
    "ids lost": without_ids,
    "colab": colab,
    "marks and ids lost": without_marks,
    "answers only": answers_only,
    "all in one cell": merged,
    "shuffled": shuffled,
    "line ends of Windows": each_line(lambda source: source.replace("\n", "\r\n")),
    "line ends of old Macs": each_line(lambda source: source.replace("\n", "\r")),
    "blank lines around": each_line(lambda source: f"\n\n{source}\n\n"),
    "source as lines": each_line(lambda source: source.splitlines(keepends=True)),
    "trials that raise": before_each_answer("print(undefined)\nraise ValueError"),
    "trials that never end": before_each_answer("while True:\n    pass"),
    "trials that exit": before_each_answer("import sys\nsys.exit()"),
    "trials that plot": before_each_answer("import matplotlib.pyplot as plt\nplt.plot([1])"),
    "shell and magics": before_each_answer("!pip install x\n%matplotlib inline\n%timeit 1\n?print"),
    "bash": before_each_answer("%%bash\necho 'def f(:'"),
    "prints in an answer": in_each_answer("print('done')"),
    "magics in an answer": in_each_answer("%time x_ = 1\n!ls"),
    "an answer awaits": in_each_answer("import asyncio\nawait asyncio.sleep(0)"),
    "answers twice": answers_twice,
    "a broken try before": first_try_is_broken,
    "the notebook twice": lambda cells: cells + copy.deepcopy(cells),
    "texts exchanged": texts_exchanged,
    "marks exchanged": marks_exchanged,
    "marks written anew": marks_written_anew,
    "in the cell below": in_the_cell_below,
    "set-up reformatted": setup_reformatted,
}

# Cells before 1.2, and the answer to it, with a cell below that behind `#%% below`; and to 1.1.
TOY, AREAS = (
    {title: cells for number, _, title, _, cells in answers.read("../unusual") if number == asked}
    for asked in ("1.2", "1.1")
)


def toy_submission(name):
    """One of `ANY`, `TOY` or `AREAS`, as an answer to the toy lab."""
    if name in ANY:
        return notebook(ANY[name](copy.deepcopy(full()["cells"])))
    whole = full()
    if name in AREAS:
        whole["cells"][2]["source"] = f"# exercise 1.1\n{AREAS[name][0]}"
        return whole
    *own, last = TOY[name]
    answer, *below = last.split("#%% below\n")
    place = next(i for i, cell in enumerate(whole["cells"]) if cell["id"] == "answer-doubled")
    whole["cells"][place]["source"] = f"# exercise 1.2\n{answer}"
    after = [code(f"below-{i}", source) for i, source in enumerate(below)]
    whole["cells"][place + 1 : place + 1] = after
    whole["cells"][place:place] = [code(f"own-{i}", source) for i, source in enumerate(own)]
    whole["cells"].insert(place, text("why", "# My notes"))
    return whole


ALL = [*ANY, *TOY, *AREAS]
