"""The page of the learner's wing: its calls run, and print what it says."""

import ast
import doctest
import re
from collections import Counter

import pytest

WING = ("units", "device", "data", "guesses", "blanks", "claims", "models", "memory", "plots")
NUM_CALLS = 15


@pytest.fixture(scope="module")
def program(root):
    text = (root / "tutorial_lib" / "README.md").read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.S))


def calls_of(source):
    """Give the calls of the learner's wing by their full names, as in `models.gpt.GPT`."""
    tree, names = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tutorial_lib"):
            inside = f"{node.module}.".partition(".")[2]
            names |= {alias.asname or alias.name: inside + alias.name for alias in node.names}
    called = (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    for first, dot, rest in (name.partition(".") for name in called):
        if names.get(first, "").startswith(WING):
            yield names[first] + dot + rest


def test_every_call_prints_what_the_page_says(program):
    test = doctest.DocTestParser().get_doctest(program, {}, "README.md", None, 0)
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)
    assert all(len(one.want.splitlines()) <= 2 for one in test.examples)


def test_the_calls_are_those_that_notebooks_make_most(root, program):
    counts = Counter(
        call
        for folder in ("course", "solutions")
        for path in sorted((root / folder / "source").glob("*.py"))
        for call in calls_of(path.read_text(encoding="utf-8"))
    )
    shown = doctest.DocTestParser().get_examples(program)
    calls = set(calls_of("\n".join(one.source for one in shown)))
    assert {call for call, _ in counts.most_common(NUM_CALLS)} == calls
