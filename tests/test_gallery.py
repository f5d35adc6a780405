"""The gallery of broken runs: each case is as reported, and its cure removes it."""

import re
from pathlib import Path

import pytest
from torch.utils.checkpoint import CheckpointPolicy

from tutorial_lib.school import authoring

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "course" / "14b_gallery.ipynb"
SOURCE = (ROOT / "course" / "source" / "14b_gallery.py").read_text(encoding="utf-8")
NAMES = re.findall(r"^@case\(.*?^def (\w+)", SOURCE, re.M | re.S)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def gallery():
    return authoring.load_definitions(NOTEBOOK)


@pytest.mark.parametrize("name", NAMES)
def test_the_symptom_is_there_and_the_cure_removes_it(gallery, name):
    if name == "offload_recomputes" and not hasattr(CheckpointPolicy, "MUST_CPU_OFFLOAD"):
        pytest.skip("torch 2.10 has no policy of this name")
    assert gallery.changed(name) == ""


def test_the_registry_holds_what_the_page_promises(gallery):
    cases = gallery.CASES
    assert list(cases) == NAMES
    assert len({about["number"] for about in cases.values()}) >= 40
    judged = [about["shows"] for about in cases.values() if about["caught_by"] == gallery.JUDGE]
    assert len(judged) >= 10
    assert {cured for _, cured in judged} == {gallery.SAME}
    assert not [fault for fault, _ in judged if re.search(fault, "the same training")]


def test_the_readme_counts_the_cases():
    assert f" {len(NAMES)} faults, " in (ROOT / "README.md").read_text(encoding="utf-8")
