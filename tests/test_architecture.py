"""The house's rules that can be read off the files: who imports whom, sizes, what stands where.

Docstrings and annotations of public functions are ruff's business (D, ANN): see test_style.
"""

import ast
import functools
import re
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import nbformat
import pytest

from tutorial_lib.school import authoring
from tutorial_lib.school.marks import cell_mark

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "tutorial_lib"
MODULES = sorted(LIBRARY.rglob("*.py"))
CHECKS = sorted((LIBRARY / "checks").rglob("*.py"))

# Room by room: which other rooms it may import, inside functions too.
ALLOWED = {
    "units": set(),
    "guesses": set(),
    "frameworks": set(),
    "claims": set(),
    "timeline": {"units"},
    "private_torch": set(),
    "data": set(),
    "strategies": set(),
    "device": {"units"},
    "ranks": {"private_torch"},
    "models": {"device", "private_torch"},
    "training": {"models", "ranks", "strategies"},
    "plan": {
        *("units", "private_torch", "timeline", "device", "memory"),
        *("models", "strategies"),
        *("training", "plots"),
    },
    "recorded": {"units", "device", "memory", "models", "training"},
    "emulated": {"units"},
    "plots": {"units", "timeline"},
    "memory": {
        *("units", "device", "timeline", "plots", "private_torch"),
    },
    "widgets": {"units", "plots", "memory"},
    "checks": {"units", "private_torch", "memory", "models", "ranks", "plan"},
    "__init__": {"memory"},
    "__main__": {"school.pythons", "school.commands"},
    # what runs the school; no room above may import one of these
    "school.__init__": set(),
    "school.marks": set(),
    "school.pythons": set(),
    "school.installer": set(),
    "school.bootstrap": {"school.pythons", "school.installer"},
    "school.authoring": {"units", "claims", "school.marks", "school.pythons"},
    "school.site": {"claims", "plan", "widgets", "school.authoring"},
    "school.grading": {"units", "private_torch", "checks", "school.marks"},
    "school.emulate": {"emulated", "school.bootstrap", "school.installer"},
    "school.emulated_tests": {"device", "school.grading", "school.marks"},
    "school.record": {"device", "recorded", "school.emulate"},
    "school.changed": {"school.bootstrap"},
    "school.teach": {"school.grading", "school.authoring", "school.site"},
    "school.options": {"units", "training", "memory"},
    "school.said": {"models", "training"},
    "school.plan": {
        *("units", "plan", "training", "memory", "emulated"),
        *("school.options", "school.said"),
    },
    "school.cli": {
        *("units", "device", "training", "memory", "plots", "strategies"),
        *("school.bootstrap", "school.emulate", "school.options", "school.plan", "school.teach"),
        "school.said",
    },
    "school.commands": {
        *("school.pythons", "school.installer", "school.bootstrap", "school.changed", "school.cli"),
        *("school.emulate", "school.record", "school.workbook"),
    },
    "school.workbook": set(),
}
# The one room whose parts have an order of their own.
WITHIN_MEMORY = {
    "report": {"units", "timeline", "plots"},
    "lines": set(),
    "storages": {"timeline"},
    "saved": {"units", "storages", "lines"},
    "autocast": set(),
    "workspace": set(),
    "kernels": {"autocast", "storages", "workspace"},
    "allocator": {"device", "report"},
    "steps": {"units", "timeline", "report"},
    "meter": {"units", "device", "timeline", "report", "storages", "lines", "steps", "allocator"},
    "corrections": {"storages"},
    "values": {"storages", "lines"},
    "predict": {"meter", "report", "kernels", "corrections", "values", "lines"},
    "magic": {"meter", "report"},
    "cap": {"units", "device", "storages"},
    "__init__": {"timeline", "allocator", "cap", "meter", "predict", "report", "saved"},
}
# Tested under another name.
TESTED_BY = {
    "__init__.py": "test_main.py",
    "private_torch/__init__.py": "test_private_torch.py",
    "private_torch/operations.py": "test_private_torch.py",
    "private_torch/patches.py": "test_private_torch.py",
    "timeline.py": "test_report.py",
    "school/__init__.py": "test_main.py",
    "school/commands.py": "test_main.py",
    "school/emulate.py": "test_emulated.py",
    "school/emulated_tests.py": "test_emulated.py",
    "school/options.py": "test_cli.py",
    "school/pythons.py": "test_bootstrap.py",
    "school/installer.py": "test_bootstrap.py",
    "school/record.py": "test_recorded.py",
    "school/teach.py": "test_cli.py",
    "school/site/__init__.py": "test_site.py",
    "school/site/conf.py": "test_site.py",
    "school/site/make.py": "test_site.py",
    "memory/__init__.py": "test_architecture.py",
    "checks/__init__.py": "test_architecture.py",
    "models/__init__.py": "test_architecture.py",
    "training/__init__.py": "test_architecture.py",
    "memory/allocator.py": "test_meter.py",
    "memory/steps.py": "test_foreign.py",
    "memory/lines.py": "test_saved.py",
    "memory/values.py": "test_predict.py",
    "memory/workspace.py": "test_kernels.py",
    "models/catalogue.py": "test_published.py",
    "models/described.py": "test_cli.py",
    "models/entry.py": "test_published.py",
    "models/libraries.py": "test_published.py",
    "models/published_batches.py": "test_published.py",
    "models/published_steps.py": "test_published.py",
}
# What learners write; the library must not hold it under any such name.
ANSWERS = {"checkpoint", "ledger", "accumulate", "segment_sizes", "best_segments", "revolve"}

TOP_LEVEL = {
    *("README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "environment.yml"),
    *("pyproject.toml", "constraints.txt", ".gitattributes", ".gitignore"),
    *("CONTRIBUTING.md", ".github", ".pre-commit-config.yaml"),
    *(".ci", "course", "labs", "solutions", "tutorial_lib", "tests"),
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
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        pending += ast.iter_child_nodes(node)
    assert not any(name.startswith(".") for name in found), f"{path}: a relative import"
    ours = {name.removeprefix("tutorial_lib.") for name in found if name.startswith("tutorial_lib")}
    return {name for name in ours if is_module(name)} - {"school"}  # a wing, and no room


def is_module(name):
    path = LIBRARY / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def room_of(path):
    """The module or package at the top, or in the wing of its own: `memory`, `school.cli`."""
    return room_named(path.relative_to(LIBRARY).with_suffix("").as_posix().replace("/", "."))


def room_named(name):
    return ".".join(name.split(".")[: 2 if name.startswith("school.") else 1])


def offenders(broken, paths=MODULES):
    """Give what breaks a rule in each module that does, by its path in the library."""
    found = {path.relative_to(LIBRARY).as_posix(): broken(path) for path in paths}
    return {name: what for name, what in found.items() if what}


def test_imports_go_to_allowed_rooms():
    assert not {room_of(path) for path in MODULES} - set(ALLOWED), "say here what it may import"

    def forbidden(path):
        room = room_of(path)
        return {room_named(name) for name in imports_of(path)} - {room} - ALLOWED[room]

    assert offenders(forbidden) == {}


def test_imports_within_memory():
    def forbidden(path):
        seen = {name.removeprefix("memory.") for name in imports_of(path)} - {"memory"}
        seen = {name for name in seen if not name.startswith("private_torch")}  # all may use it
        return seen - WITHIN_MEMORY[path.stem]

    assert offenders(forbidden, sorted((LIBRARY / "memory").glob("*.py"))) == {}


def test_what_learners_import_uses_nothing_of_the_school():
    rooms = [room for room in ALLOWED if not room.startswith(("school", "__"))]
    assert not [one for room in rooms for one in ALLOWED[room] if one.startswith("school")]
    for path in MODULES:
        if room_of(path) in rooms:
            assert "tutorial_lib.school" not in path.read_text(encoding="utf-8"), path


def test_the_allowed_imports_go_downward_only():
    rooms = {room: allowed for room, allowed in ALLOWED.items() if not room.startswith("__")}
    assert list(TopologicalSorter(rooms).static_order())  # raises CycleError
    assert list(TopologicalSorter(WITHIN_MEMORY).static_order())


SHOWN = {"given", "same_training"}  # of the checks, to the process of an answer


def hidden_imports(path):
    """What a module imports of the checks that the process of an answer must not see."""
    names = {name for name in imports_of(path, types=True) if name.startswith("checks.")}
    packages = {name.rsplit(".", count)[0] for name in names for count in range(1, 4)}
    return {name for name in names - packages if SHOWN.isdisjoint(name.split("."))}


def test_what_an_answer_sees_of_the_checks_imports_nothing_else_of_them():
    names = {path: path.relative_to(LIBRARY / "checks").with_suffix("").parts for path in CHECKS}
    shown = [path for path in CHECKS if not SHOWN.isdisjoint(names[path])]
    assert {path.name for path in shown} > {"given.py", "half.py", "compare.py"}
    assert offenders(hidden_imports, [*shown, LIBRARY / "checks/__init__.py"]) == {}


@pytest.mark.parametrize(
    ("line", "is_hidden"),
    [
        ("from tutorial_lib.checks.lab01 import given", False),
        ("from tutorial_lib.checks.lab01.given import make_chain", False),
        ("from tutorial_lib.checks.lab01 import metered", True),
        ("from tutorial_lib.checks.lab01 import parameter_bytes", True),
        ("import tutorial_lib.checks.vocabulary.read", True),
        ("from tutorial_lib.checks.vocabulary import Exercise", True),
    ],
)
def test_an_import_of_a_judge_is_seen(line, is_hidden, tmp_path):
    (tmp_path / "given.py").write_text(f"{line}\n")
    assert bool(hidden_imports(tmp_path / "given.py")) == is_hidden


def test_no_two_modules_import_each_other():
    """Lazy imports and those for the type checker count; a package's own parts may not need it."""
    graph = {}
    for path in MODULES:
        name = path.relative_to(LIBRARY).with_suffix("").as_posix().replace("/", ".")
        name = name.removesuffix(".__init__")
        around = {name, *(name.rsplit(".", count)[0] for count in range(1, 1 + name.count(".")))}
        graph[name] = imports_of(path, types=True) - around
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_a_lazy_import_is_seen(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "def f():\n    from tutorial_lib.school import grading\n    import tutorial_lib.school.cli"
    )
    assert imports_of(path) == {"school.grading", "school.cli"}


@functools.cache
def own_names():
    """Names that are defined in the library."""
    return frozenset(_own_names())


def _own_names():
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.id if isinstance(node, ast.Name) else node.attr


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
    elsewhere = [path for path in MODULES if path.parent.name != "private_torch"]
    assert offenders(lambda path: set(private_names_of_others(path)), elsewhere) == {}


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch.nn import _reduction",
        "from torch.utils._pytree import tree_leaves",
        "key = tensor.untyped_storage()._cdata",
        "mock.patch.object(nn.init, '_no_grad_normal_', None)",
        "mock.patch('torch.cuda._lazy_call')",
    ],
)
def test_a_private_name_is_seen(line, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(f"{line}\n")
    assert len(set(private_names_of_others(path))) == 1


def test_sizes():
    def too_long(path):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, kinds)]
        lengths = [(node.name, node.end_lineno - node.lineno + 1) for node in functions]
        module = len(path.read_text(encoding="utf-8").splitlines())
        return [pair for pair in lengths if pair[1] > 60] + [module] * (module > 300)

    assert offenders(too_long) == {}


def test_every_module_has_a_test_file():
    def is_untested(path):
        name = path.relative_to(LIBRARY)
        if name.as_posix() in TESTED_BY:
            return not (ROOT / "tests" / TESTED_BY[name.as_posix()]).exists()
        words = [part.removesuffix(".py").strip("_") for part in name.parts]
        return not any([*ROOT.glob(f"tests/test_{word}*.py")] for word in words if word != "init")

    assert offenders(is_untested) == {}


def defined_in(tree):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    made = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return {node.name for node in made if not runs_an_answer(node)}


def runs_an_answer(node):
    """Tell whether a function is a run half, which bears the name of the answer that it calls."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    if not any(mark.startswith("run_half(") for mark in marks):
        return False
    used = {name.id for part in node.body for name in ast.walk(part) if isinstance(name, ast.Name)}
    return node.args.args[0].arg == "answer" and "answer" in used


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


def test_every_chapter_and_lab_is_built():
    sources = {path.stem for path in ROOT.glob("*/source/*.py")}
    chapters = {path.stem for path in ROOT.glob("course/*.ipynb")}
    labs = {path.stem for path in ROOT.glob("labs/*.ipynb")}
    assert labs == {path.stem for path in ROOT.glob("solutions/*.ipynb")}
    assert sources == chapters | labs
