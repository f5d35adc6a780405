"""What an install gets: one list of packages, in ranges that fit Colab, and a complete wheel."""

import importlib.metadata
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tutorial_lib import __version__
from tutorial_lib.school import bootstrap, installer, pythons, workbook
from tutorial_lib.school.commands import grade

# Colab has none of these, so an install of an extra there may bring any version.
NOT_ON_COLAB = {
    *("jupyterlab", "nbval", "pytest-xdist", "ruff", "mypy", "checkpoint-schedules", "dm-haiku"),
    *("myst-nb", "sphinx-book-theme", "latex2mathml", "vl-convert-python"),
    *("playwright", "axe-playwright-python"),
}
# Colab's ipywidgets is 7.7.1, and JupyterLab brings 8: hence not among the base dependencies.
LEFT_AS_THEY_ARE = {"ipywidgets", "ipython", "ipykernel", "jupyterlab", "notebook"}


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def colab(root):
    """Versions by name, as on Colab's GPU runtime."""
    lines = (root / "tests/colab/pip-freeze.gpu.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


@pytest.fixture(scope="module")
def constraints(root):
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


@pytest.fixture
def clone(root, tmp_path):
    """A copy to build from, since a build writes into its folder."""
    copy = tmp_path / "clone"
    waste = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "tutorial_lib", copy / "tutorial_lib", ignore=waste)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, copy)
    return copy


def base(project):
    return [Requirement(line) for line in project["dependencies"]]


def extras(project):
    lines = itertools.chain(*project["optional-dependencies"].values())
    return [Requirement(line) for line in lines if not line.startswith("training-that-fits[")]


def test_environment_yml_says_nothing_of_its_own(root, project):
    environment = yaml.safe_load((root / "environment.yml").read_text())
    conda, pip, lists = environment["dependencies"]
    assert conda == "python" + project["requires-python"]
    assert pip == "pip"
    assert lists == {"pip": ["-c constraints.txt", "-e .[test]"]}


def test_one_range_of_pythons(root, project):
    (_, oldest), (_, newest) = pythons.OLDEST, pythons.NEWEST
    assert SpecifierSet(project["requires-python"]) == SpecifierSet(f">=3.{oldest},<3.{newest + 1}")
    assert f"Python 3.{oldest} to 3.{newest}" in (root / "README.md").read_text()


def test_readme_links_lead_somewhere(root):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (root / "README.md").read_text())
    inside = [link for link in links if "://" not in link]
    assert [link for link in inside if not (root / link).exists()] == []
    assert inside


def test_every_direct_dependency_is_constrained_within_its_range(project, constraints):
    for wanted in base(project) + extras(project):
        assert wanted.specifier.contains(constraints[canonicalize_name(wanted.name)]), wanted


def test_every_range_holds_the_version_on_colab(project, colab):
    assert {one.name for one in base(project)} & LEFT_AS_THEY_ARE == set()
    for wanted in base(project) + extras(project):
        name = canonicalize_name(wanted.name)
        if name in NOT_ON_COLAB:
            assert name not in colab
        else:
            assert wanted.specifier.contains(colab[name]), wanted


def test_one_version_everywhere(root):
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    tag = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["tutorial"]["tag"]
    assert str(citation["version"]) == __version__
    assert tag == f"v{__version__}"
    released = citation.get("date-released", "not released")
    assert f"\n## {__version__} ({released})\n" in (root / "CHANGELOG.md").read_text()


def test_the_lock_holds_the_tested_versions_and_only_public_addresses(root, project, constraints):
    text = (root / "uv.lock").read_text()
    locked = {package["name"]: package["version"] for package in tomllib.loads(text)["package"]
              if package["name"] != project["name"]}  # fmt: skip
    assert {name: locked.get(name) for name in constraints} == constraints
    assert {
        name for one in base(project) + extras(project) if (name := one.name) not in locked
    } == set()
    hosts = set(re.findall(r"https?://([^/\"]+)", text))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_the_instruments_alone_bring_no_notebook(root, project):
    """All that `predict` and `plan` install, what their packages need in turn included."""
    packages = tomllib.loads((root / "uv.lock").read_text())["package"]
    needs = {package["name"]: package.get("dependencies", []) for package in packages}
    found, waiting = set(), [project["name"]]
    while waiting:
        found.add(name := waiting.pop())
        waiting += [one["name"] for one in needs[name] if one["name"] not in found]
    assert {"torch", "safetensors"} <= found
    assert found & {"jupyterlab", "notebook", "ipython", "ipykernel", "nbformat", "pytest"} == set()


@pytest.mark.skipif(sys.platform != "linux", reason="sed of the release's own system")
def test_on_pypi_the_readmes_links_and_pictures_have_full_addresses(root, tmp_path):
    release = yaml.safe_load((root / ".github/workflows/release.yml").read_text())
    steps = release["jobs"]["package"]["steps"]
    (rewrite,) = [step["run"] for step in steps if "full addresses" in step.get("name", "")]
    before = (root / "README.md").read_text()
    (tmp_path / "README.md").write_text(before)
    here = {"GITHUB_REPOSITORY": "someone/course", "GITHUB_REF_NAME": "v1"}
    subprocess.run(["bash", "-ec", rewrite], cwd=tmp_path, env={**os.environ, **here}, check=True)
    after = (tmp_path / "README.md").read_text()
    links = [re.findall(r"\]\(([^)]+)\)", text) for text in (before, after)]
    blob, raw = "github.com/someone/course/blob/v1", "raw.githubusercontent.com/someone/course/v1"
    for old, new in zip(*links, strict=True):
        place = f"https://{raw if old.endswith('.png') else blob}/{old}"
        assert new == (old if "://" in old else place)
    assert re.sub(r"\]\([^)]+\)", "", after) == re.sub(r"\]\([^)]+\)", "", before)


def test_binder_gets_notebooks_without_cuda_and_no_tests(root, project):
    lines = (root / ".binder/requirements.txt").read_text().splitlines()
    index, limits, course = [line.split()[1] for line in lines if not line.startswith("#")]
    assert index == installer.CPU_BUILDS
    assert (root / ".binder" / limits).resolve() == root / "constraints.txt"
    assert course == ".[course]"
    assert "course" in project["optional-dependencies"]
    _, version = (root / ".binder/runtime.txt").read_text().strip().split("-")
    assert SpecifierSet(project["requires-python"]).contains(version)


def test_a_codespace_sets_up_the_course_and_the_working_copy(root, monkeypatch):
    made = []
    monkeypatch.setattr(bootstrap, "python_with_course", lambda *words: made.append(words))
    monkeypatch.setattr(workbook, "update", lambda *words: made.append(words))
    container = json.loads((root / ".devcontainer/devcontainer.json").read_text())
    python, option, code = container["postCreateCommand"]
    assert (python, option) == ("python3", "-c")
    exec(code, {})
    assert made == [(root, "course"), (root,)]
    (opened,) = container["customizations"]["codespaces"]["openFiles"]
    assert opened == f"{workbook.FOLDER}/{workbook.START_PAGE}"


@pytest.mark.skipif(
    int(importlib.metadata.version("setuptools").split(".")[0]) < 77, reason="setuptools is too old"
)
def test_the_wheel_holds_the_package_and_nothing_else(clone, tmp_path):
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", tmp_path]
    command = [sys.executable, "-m", "pip", "wheel", *options, clone]
    subprocess.run(command, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in names if ".dist-info/" not in name}
    files = [path for path in (clone / "tutorial_lib").rglob("*") if path.is_file()]
    here = {path.relative_to(clone).as_posix() for path in files}
    assert packed == here
    assert "tutorial_lib/py.typed" in packed
    for name in ("LICENSE", "stix-two-math-license.txt"):
        assert any(".dist-info/" in path and path.endswith(f"/{name}") for path in names)


def test_the_package_alone_says_where_the_grader_is(clone):
    with pytest.raises(ValueError, match="needs solutions/ of the course's repository"):
        grade.find_grader(clone)


def test_the_package_alone_says_where_content_is(clone, run_python):
    """The checks of a lab, recorded rows, and what chapters draw."""
    checks = "the checks of lab03 are in labs/checks of the"
    said = {
        "from tutorial_lib import checks; checks.lab03": checks,
        "from tutorial_lib.checks import lab03": checks,
        **{
            f"from tutorial_lib.instruments{line}": f"tutorial_lib.instruments.{words} of the"
            for line, words in {
                " import recorded": "recorded is in course/recorded/rows",
                " import figures": "figures is in course/figures/drawn",
                " import ranks": "ranks is in course/ranks",
                ".widgets import plan_explorer": "figures is in course/figures/drawn",
            }.items()
        },
    }
    program = f"""
for line in {[*said]}:
    try:
        exec(line)
    except ModuleNotFoundError as error:
        print(error)
"""
    done = run_python("-c", program, cwd=clone, PYTHONPATH=str(clone))
    assert done.returncode == 0, done.stderr
    for line, words in zip(done.stdout.splitlines(), said.values(), strict=True):
        assert line.startswith(words)


@pytest.mark.weekly
@pytest.mark.network
def test_an_install_on_colab_brings_only_the_course(clone, colab, run_online, tmp_path):
    """Stubs of all that Colab has; pip may then want nothing but the course (no download)."""
    environment = tmp_path / "colab"
    newest = [f"python3.{pythons.NEWEST[1]}", "-m", "venv", environment]
    # Colab's Python where it is here (a name on PATH need not work), else this one.
    if shutil.which(newest[0]) is None or run_online(*newest).returncode:
        assert run_online(sys.executable, *newest[1:]).returncode == 0
    python = bootstrap.venv_python(environment)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = run_online(python, "-c", ask).stdout.strip()
    for name, version in colab.items():
        stub = Path(packages) / f"{name.replace('-', '_')}-{version}.dist-info"
        stub.mkdir(exist_ok=True)
        (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (stub / "RECORD").touch()
        (stub / "INSTALLER").write_text("pip\n")
    pip = [python, "-m", "pip", "install", "--dry-run"]
    assert wanted_by(run_online(*pip, clone)) == [f"{bootstrap.NAME}-{__version__}"]
    # The same eye sees a replacement where there is one.
    assert "torch-2.13.0" in " ".join(wanted_by(run_online(*pip, "torch==2.13.0")))


@pytest.mark.weekly
@pytest.mark.network
@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("", "tutorial_lib predict gpt2 --seq 8"),
        ("", "tutorial_lib plan gpt2 --budget 8GiB --effective-batch 8 --seq 8"),
        ("course", "jupyterlab --version"),
        ("grade", "tutorial_lib grade lab04 solutions --out report --only lab04_schedules"),
        ("author", "tutorial_lib build 00 --force"),
        ("site", "tutorial_lib site --out pages"),
    ],
)
def test_each_command_runs_with_its_own_extra_alone(root, run_online, tmp_path, extra, words):
    """`test` holds all extras, so that no other test sees what one of them lacks."""
    waste = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
    copy = shutil.copytree(root, tmp_path / "clone", ignore=waste)
    make = "from tutorial_lib.school import bootstrap as b; from pathlib import Path; "
    make += f"print(b.python_with_course(Path.cwd(), {extra!r}))"
    made = run_online(sys.executable, "-c", make, cwd=copy)
    assert made.returncode == 0, made.stdout
    again = run_online(sys.executable, "-S", "-c", make, cwd=copy)
    assert again.stdout == f"{bootstrap.venv_python(copy / '.venv')}\n"  # complete: nothing is done
    done = run_online(bootstrap.venv_python(copy / ".venv"), "-m", *words.split(), cwd=copy)
    assert done.returncode == 0, done.stdout


def wanted_by(done):
    lines = [line for line in done.stdout.splitlines() if line.startswith("Would install")]
    assert len(lines) == 1, done.stdout
    return lines[0].split()[2:]
