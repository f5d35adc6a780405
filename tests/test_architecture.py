"""The house's rules that can be read off the files: who imports whom, sizes, what stands where.

Docstrings and annotations of public functions are ruff's business (D, ANN): see test_style.
"""

import ast
import functools
import re
import subprocess
import textwrap
from graphlib import TopologicalSorter
from pathlib import Path

import nbformat
import pytest

from tutorial_lib.school import authoring
from tutorial_lib.school.marks import cell_mark

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "tutorial_lib"
# Where our modules are, and what their names begin with, below the library: notebooks write
# `checks.lab03` for content of `labs/`, and `recorded`, `figures`, `claims` for that of `course/`.
GRADER = "solutions.grader"
COURSE = {
    "instruments.recorded.": ROOT / "course/recorded/rows",
    "instruments.figures.": ROOT / "course/figures/drawn",
    "instruments.frameworks.": ROOT / "course/frameworks",
    "instruments.levers.": ROOT / "course/levers",
    "instruments.ranks.": ROOT / "course/ranks",
    "claims.": ROOT / "course/claims",
}
PLACES = {
    LIBRARY: "",
    ROOT / "labs/checks": "checks.",
    ROOT / "solutions/grader": f"{GRADER}.",
    **{place: begins for begins, place in COURSE.items()},
}
MODULES = sorted(path for place in PLACES for path in place.rglob("*.py"))

# Room by room: which other rooms it may import, inside functions too. CONTRIBUTING.md shows it:
# `python tests/test_architecture.py` prints the text.
LEARNERS = {
    "units": set(),
    "guesses": set(),
    "blanks": set(),
    "claims": set(),
    "data": set(),
    "device": {"units"},
    "models": set(),
    "memory.timeline": {"units"},  # a step's memory as data, which figures draw
    "plots": {"units", "memory.timeline"},
    "memory": {"units", "device", "memory.timeline", "plots"},
}
INSTRUMENTS = {
    "random_states": set(),
    "private_torch": {"device", "memory"},
    "cap": {"units", "device", "memory"},
    "segments": {"device", "memory", "private_torch", "random_states"},
    "frameworks": set(),
    "emulated": {"units"},
    "widgets": set(),
    "figures": {"units", "memory.timeline", "plots"},
    "predicting": {"device", "memory", "private_torch", "random_states"},
    "published": {"device", "memory", "private_torch"},
    "training": {"private_torch", "published", "segments"},
    "ranks": {"memory", "private_torch", "training"},
    "recorded": {"units", "cap", "device", "memory", "published", "training"},
    "planning": {
        *("units", "device", "memory", "memory.timeline"),
        *("private_torch", "random_states", "segments", "predicting", "training"),
    },
    "levers": {"units", "memory", "planning", "training"},
}
# The folders of `planning`: each imports from those before it.
PLANNING = ("chain", "run", "fitting")
CHECKS = {"checks": {"units", "blanks", "memory", "models", "private_torch"}}
LABS = {
    "labNN": {
        *("units", "memory", "models", "private_torch", "cap", "segments", "planning", "ranks"),
        "checks",
    }
}
SCHOOL = {
    "marks": set(),
    "pythons": set(),
    "installer": set(),
    "workbook": set(),
    "bootstrap": {"pythons", "installer"},
    "authoring": {"claims", "marks", "pythons"},
    "site": {"plots", "planning", "widgets", "authoring"},
    "commands": {
        *("units", "device", "memory", "segments", "published", "training", "planning"),
        *("emulated", "recorded", "pythons", "installer", "workbook", "bootstrap"),
        *("authoring", "site", "predicting"),
    },
}
SOLUTIONS = {"grader": {"units", "private_torch", "checks", "marks"}}
WINGS = {
    "": LEARNERS,
    "instruments": INSTRUMENTS,
    "checks": CHECKS,
    "labs": LABS,
    "school": SCHOOL,
    "solutions": SOLUTIONS,
}
# Arrows upward: `memory.predict`, `memory.capped` and what single chapters draw are loaded when
# they are first used, and the command `grade` loads the grader from the solutions.
UPWARD = {
    "memory": {"predicting", "cap"},
    "plots": {"figures"},
    "widgets": {"figures"},
    "planning": {"levers"},
    "commands": {"grader"},
}
# A chapter's imports load at most so many lines of ours (`checks` left out).
MOST_LINES = 2800
# What learners write; the library must not hold it under any such name.
ANSWERS = {"checkpoint", "ledger", "accumulate", "segment_sizes", "best_segments", "revolve"}

TOP_LEVEL = {
    *("README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "environment.yml"),
    *("pyproject.toml", "constraints.txt", ".gitattributes", ".gitignore"),
    *("CONTRIBUTING.md", ".github", ".pre-commit-config.yaml", ".binder", ".devcontainer"),
    *("uv.lock", ".ci", "course", "labs", "solutions", "tutorial_lib", "tests", "findings"),
}
MACHINE_PATHS = re.compile(r"/(?:work|root|farm|home/\w+)/|/tmp/\w|[A-Z]:\\Users")
# They look for such paths, or show what an error says.
MAY_NAME_PATHS = (
    "tests/test_",
    "tests/grading_corpus/",
    "tutorial_lib/school/authoring/outputs.py",
)


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path, *, types=False):
    """Names of our modules that a file imports, lazily too; for the type checker, where asked."""
    found = set()
    pending = [tree_of(path)]
    while pending:
        node = pending.pop()
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.ImportFrom | ast.Import):
            found |= named_in(node, name_of(path), is_package=path.stem == "__init__")
        pending += ast.iter_child_nodes(node)
    return found


def named_in(node, name="", *, is_package=False):
    """Return the names of our modules that an import of a module names."""
    found = {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if node.level:  # a lab's modules, which do not say where the lab is
            is_content = re.match(r"checks\.lab\d\d", name) or name.startswith(tuple(COURSE))
            assert is_content, f"{name}: a relative import"
            around = ["tutorial_lib", *name.split("."), *[""] * is_package][: -node.level]
            module = ".".join([*around, *filter(None, [module])])
        found = {module, *(f"{module}.{name}" for name in found)}
    begins = ("tutorial_lib", GRADER)
    ours = {name.removeprefix("tutorial_lib.") for name in found if name.startswith(begins)}
    return {name for name in ours if is_module(name)} - {"school", "instruments"}  # no rooms


def is_module(name):
    return file_of(name).exists()


def room_of(name):
    """Return wing and room of a module: `("", "memory")`, `("school", "marks")`."""
    if name == "memory.timeline":
        return "", name
    first, _, rest = name.partition(".")
    if re.match(r"lab\d\d", rest):
        return "labs", "labNN"
    if name.startswith(GRADER):
        return "solutions", "grader"
    wing = first if first in ("instruments", "school") else "checks" if first == "checks" else ""
    return wing, (rest if wing in ("instruments", "school") else first).partition(".")[0]


def name_of(path):
    """Return a module's name below the library, as in `memory.meter`."""
    place = next((place for place in PLACES if place in path.parents), path.parent)
    name = path.relative_to(place).with_suffix("").as_posix().replace("/", ".")
    return f"{PLACES.get(place, '')}{name}".removesuffix(".__init__")


def offenders(broken, paths=MODULES):
    """Return what breaks a rule in each module that does, by its path in the library."""
    found = {name_of(path): broken(path) for path in paths}
    return {name: what for name, what in found.items() if what}


def test_imports_go_to_allowed_rooms():
    def forbidden(path):
        wing, room = room_of(name_of(path))
        if not room or wing not in WINGS or (path.parent == LIBRARY and "__" in room):
            return set()  # the first file of a wing, and of the library
        imported = {room_of(name)[1] for name in imports_of(path)} - {room}
        return imported - WINGS[wing][room] - UPWARD.get(room, set())

    assert offenders(forbidden) == {}


def test_the_rooms_named_are_those_that_are_there():
    there = {room_of(name_of(path)) for path in MODULES if name_of(path) not in ("", "__main__")}
    named = {(wing, room) for wing, rooms in WINGS.items() for room in rooms}
    assert {pair for pair in there if pair[1]} - {("", "__init__")} == named


TITLES = {
    "": "tutorial_lib/: what learners import",
    "instruments": "tutorial_lib/instruments/: what measures, predicts and plans",
    "checks": "tutorial_lib/checks/: what the checks of all labs share",
    "labs": "labs/checks/: the checks of each lab, imported as checks.labNN",
    "school": "tutorial_lib/school/: what runs the school",
    "solutions": "solutions/grader/: what grades a class; `commands/grade` is the one arrow to it",
}


def drawing():
    """Return the text of CONTRIBUTING.md: a wing a block, each room with what it may import."""
    blocks = []
    for wing, rooms in WINGS.items():
        lines = [TITLES[wing]]
        for room, allowed in rooms.items():
            words = ", ".join(sorted(allowed)) or "-"
            if later := ", ".join(sorted(UPWARD.get(room, ()))):
                words += f"; when first used: {later}"
            lines += textwrap.wrap(
                words, 96, initial_indent=f"  {room:<17}", subsequent_indent=" " * 19
            )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def test_contributing_shows_who_imports_whom():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## Who imports whom")[2].partition("\n## ")[0]
    assert re.findall(r"```text\n(.*?)```", section, flags=re.S) == [drawing()]


def test_the_walks_of_contributing_pass_functions_that_are_there():
    """Each with the number of stays and returns that it says."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## Three walks")[2].partition("\n## ")[0]
    walks = re.search(r"```text\n(.*?)```", section, flags=re.S)[1].strip().split("\n\n")
    for walk in walks:
        said, *lines = walk.splitlines()
        stays = [line.split(maxsplit=1) for line in lines]
        names = [name for name, _ in stays]
        assert said.endswith(f": {len(names)} stays, {len(names) - len({*names})} returns")
        for name, functions in stays:
            there = {
                f"{getattr(outer, 'name', '')}.{node.name}".lstrip(".")
                for outer in ast.walk(tree_of(LIBRARY / name))
                for node in ast.iter_child_nodes(outer)
                if isinstance(node, ast.FunctionDef)
            }
            assert set(functions.split(", ")) <= there, name
    assert len(walks) == 3


def test_wings_import_downward_only():
    """What learners import, then what measures, what checks, what runs the school."""
    below, order = set(), {}
    for rooms in WINGS.values():
        below |= set(rooms)
        assert not [name for allowed in rooms.values() for name in allowed - below]
        order |= rooms
    assert list(TopologicalSorter(order).static_order())  # raises CycleError


def test_the_folders_of_planning_import_from_those_before():
    room = "instruments.planning"

    def forbidden(path):
        before = PLANNING[: PLANNING.index(path.parent.name) + 1]
        allowed = tuple(f"{room}.{folder}." for folder in before)
        named = {name for name in imports_of(path, types=True) if f"{name}.".startswith(f"{room}.")}
        named -= {f"{room}.{folder}" for folder in before}  # the folder itself, as in every import
        return {name for name in named if not name.startswith(allowed)}

    files = [path for path in MODULES if path.parent.parent == file_of(room).parent]
    assert {path.parent.name for path in files} == set(PLANNING)
    assert offenders(forbidden, files) == {}


def file_of(name):
    place = ROOT / "labs" if re.match(r"checks\.lab\d\d", name) else LIBRARY
    place = ROOT if name.startswith(GRADER) else place
    path = place / name.replace(".", "/")
    for begins, folder in COURSE.items():
        if name.startswith(begins):
            path = folder / name.removeprefix(begins).replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def loaded_by(names):
    """Return the modules that load with some: those around them, and their imports."""
    found, pending = set(), set(names)
    while pending:
        name = pending.pop()
        found.add(name)
        around = {name.rsplit(".", count)[0] for count in range(1, 1 + name.count("."))}
        tops = [node for node in tree_of(file_of(name)).body if not isinstance(node, ast.If)]
        imported = {
            one for node in tops if "Import" in type(node).__name__ for one in named_in(node, name)
        }
        pending |= (around | imported) - found
    return found


@pytest.mark.parametrize("number", [f"{number:02}" for number in range(17)])
def test_a_chapters_imports_load_little_of_the_library(number):
    (source,) = ROOT.glob(f"course/source/{number}_*.py")
    tops = tree_of(source).body
    names = loaded_by({one for n in tops if "Import" in type(n).__name__ for one in named_in(n)})
    lines = {
        name: len(file_of(name).read_text(encoding="utf-8").splitlines())
        for name in names
        if not name.startswith("checks")
    }
    assert not [name for name in names if name.startswith("school")]
    assert sum(lines.values()) <= MOST_LINES, lines


SHOWN = {"given", "same_training"}  # of the checks, to the process of an answer


def hidden_imports(path):
    """What a module imports of the checks that the process of an answer must not see."""
    names = {name for name in imports_of(path, types=True) if name.startswith("checks.")}
    packages = {name.rsplit(".", count)[0] for name in names for count in range(1, 4)}
    return {name for name in names - packages if SHOWN.isdisjoint(name.split("."))}


def test_what_an_answer_sees_of_the_checks_imports_nothing_else_of_them():
    checks = [path for path in MODULES if name_of(path).startswith("checks.")]
    shown = [path for path in checks if not SHOWN.isdisjoint(name_of(path).split("."))]
    assert {path.name for path in shown} > {"given.py", "half.py", "compare.py"}
    assert offenders(hidden_imports, [*shown, LIBRARY / "checks/__init__.py"]) == {}


def test_no_two_modules_import_each_other():
    """Lazy imports and those for the type checker count; a package's own parts may not need it."""
    graph = {}
    for path in MODULES:
        name = name_of(path)
        around = {name, *(name.rsplit(".", count)[0] for count in range(1, 1 + name.count(".")))}
        graph[name] = imports_of(path, types=True) - around
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError


@functools.cache
def own_names():
    """Names that are defined in the library."""
    names = set()
    for node in (node for path in MODULES for node in ast.walk(tree_of(path))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


NOT_OF_PYTORCH = {"_exit", "_getframe", "_replace", "_asdict", "_fields"}  # Python's
NOT_OF_PYTORCH |= {"_supports_sdpa"}  # transformers'


def private_names_of_others(path):
    """Names behind an underscore that stand after a dot, or in words, and are not the library's."""
    for node in ast.walk(tree_of(path)):
        words = []
        if isinstance(node, ast.Attribute):
            words = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            words = [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            words = [word for alias in node.names for word in alias.name.split(".")]
        elif isinstance(node, ast.Call):  # getattr(x, "_name"), mock.patch("torch._name")
            texts = [a.value if isinstance(a, ast.Constant) else "" for a in node.args[:2]]
            first, *second = (text if isinstance(text, str) else "" for text in (*texts, ""))
            words = [*(first.split(".") if first.startswith("torch.") else []), *second]
        names = {word for word in words if re.match(r"_[a-zA-Z]", word)}
        yield from names - own_names() - NOT_OF_PYTORCH


def test_one_room_alone_uses_private_names_of_pytorch():
    elsewhere = [path for path in MODULES if "private_torch" not in path.as_posix()]
    assert offenders(lambda path: set(private_names_of_others(path)), elsewhere) == {}


def test_sizes():
    def too_long(path):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, kinds)]
        lengths = [(node.name, node.end_lineno - node.lineno + 1) for node in functions]
        module = len(path.read_text(encoding="utf-8").splitlines())
        return [pair for pair in lengths if pair[1] > 60] + [module] * (module > 300)

    assert offenders(too_long) == {}


def defined_in(tree):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    made = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return {node.name for node in made if not (runs_an_answer(node) or judges_one(node))}


def runs_an_answer(node):
    """Tell whether a function is a run half, which bears the name of the answer that it calls."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    if not any(mark.startswith("run_half(") for mark in marks):
        return False
    used = {name.id for part in node.body for name in ast.walk(part) if isinstance(name, ast.Name)}
    return node.args.args[0].arg == "answer" and "answer" in used


def judges_one(node):
    """Tell whether a function is a judge, which bears that name too, and returns nothing."""
    if not any(ast.unparse(mark).startswith("check(") for mark in node.decorator_list):
        return False
    names = [argument.arg for argument in node.args.args[:2]]
    return names == ["case", "result"] and ast.unparse(node.returns) == "None"


def answers_of_the_labs():
    for path in sorted(ROOT.glob("solutions/*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            mark = cell_mark(cell.source) if cell.cell_type == "code" else None
            if mark and mark.kind == "exercise":
                # of the cell itself: every class has methods, and pack and forward are no secret
                yield from (getattr(node, "name", None) for node in ast.parse(cell.source).body)


def test_the_library_holds_no_answer():
    forbidden = ANSWERS | set(answers_of_the_labs())
    for path in MODULES:
        found = defined_in(tree_of(path)) & forbidden
        assert not found, f"{path}: {found} is what learners write"


@pytest.fixture(scope="module")
def tracked():
    """Files that git has or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is no git clone, so nothing says which files belong to it")
    return [line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def test_the_top_level_is_as_agreed(tracked):
    assert {name.split("/")[0] for name in tracked} <= TOP_LEVEL


def test_no_file_names_a_machine(tracked):
    for name in tracked:
        if name.startswith(MAY_NAME_PATHS):
            continue
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        found = MACHINE_PATHS.search(re.sub(r"base64,[\w+/=]+", "", text))
        assert not found, f"{name}: {text[found.start() - 40 : found.end() + 40]!r}"


def test_every_notebook_is_what_its_source_gives():
    assert authoring.check(ROOT) == []


if __name__ == "__main__":
    print(drawing(), end="")
