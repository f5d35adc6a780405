"""Findings: what a person is asked to read in an answer."""

import ast
import json

import pytest
import toy

from tutorial_lib.school.grading.lab import load_lab
from tutorial_lib.school.grading.results import Graded
from tutorial_lib.school.grading.submissions.cells import read_cells
from tutorial_lib.school.grading.submissions.inspect_submission import inspect_submission
from tutorial_lib.school.grading.submissions.match_cells import match_answers
from tutorial_lib.school.grading.submissions.reader import read_submission
from tutorial_lib.school.grading.submissions.review import findings, imported

LABS = ("lab01", "lab02", "lab03", "lab04", "lab05", "lab06", "lab07", "lab08", "lab09")
# What the set-up of a lab imports.
COURSE = """import os, sys, torch, gc
from torch import nn, Tensor
from tutorial_lib import checks, memory"""
TRICKS = {
    "import torch as t; t.Tensor.backward = None": "t.Tensor.backward = ...",
    "from torch import Tensor as T\nT.backward = None": "T.backward = ...",
    "t = torch\nu = t\nu.sum = max": "u.sum = ...",
    "for torch.sum in [max]: pass": "torch.sum = ...",
    "del torch.sum": "torch.sum = ...",
    "setattr(torch, 'sum', max)": "setattr(torch, ...)",
    "type(x).forward = f": "type(x).forward = ...",
    "x.__class__ = Fake": "x.__class__ = ...",
    "object.__setattr__(torch, 'sum', max)": "__setattr__",
    "torch.__dict__['sum'] = max": "__dict__",
    "vars(torch)['sum'] = max": "vars",
    "globals()['a'] = 1": "globals",
    "getattr(torch, 'su' + 'm')": "getattr with a computed name",
    "setattr(x, name, 1)": "setattr with a computed name",
    "getattr(torch, '_C')": "_C",
    "match torch:\n    case object(_C=c): pass": "_C",
    "for m in (torch, 1): pass": "hands on torch",
    "f(nn)": "hands on torch.nn",
    "torch._C._autograd": "torch._C._autograd",
    "from torch._C import x; x()": "torch._C.x",
    "tensor._version": "_version",
    "self = f; self.__globals__": "__globals__",
    "from torch.utils.checkpoint import checkpoint as c; c(f)": "torch.utils.checkpoint.checkpoint",
    "torch.utils.checkpoint.checkpoint(f)": "torch.utils.checkpoint.checkpoint",
    "torch.ops.aten.add(1, 2)": "torch.ops.aten.add",
    "class M(torch.overrides.TorchFunctionMode): pass": "torch.overrides.TorchFunctionMode",
    "class M:\n    def __torch_dispatch__(self): pass": "__torch_dispatch__",
    "checks.lab01.ex1_1": "tutorial_lib.checks.lab01.ex1_1",
    "memory.storages.StorageLog": "tutorial_lib.memory.storages.StorageLog",
    "from tutorial_lib.school import grading; grading": "tutorial_lib.school.grading",
    "from unittest import mock; mock.patch": "unittest.mock.patch",
    "import importlib as i; i.reload(torch)": "importlib",
    "__import__('os')": "__import__",
    "x = __builtins__": "__builtins__",
    "import builtins; builtins.print": "builtins",
    "run = exec; run('a')": "exec",
    "[eval][0]('a')": "eval",
    "code = compile('1', '', 'eval')": "compile",
    "import types; types.FunctionType(c, {})": "types.FunctionType",
    "get_ipython().run_cell('a')": "get_ipython",
    "sys._getframe(1).f_locals": "f_locals",
    "e.__traceback__.tb_frame": "tb_frame",
    "import inspect; inspect.stack()": "inspect",
    "import traceback; traceback.walk_stack(None)": "traceback",
    "gc.get_objects()": "gc.get_objects",
    "from gc import get_referrers as r; r(x)": "gc.get_referrers",
    "import ctypes; ctypes.CDLL(None)": "ctypes",
    "sys.modules['torch']": "sys.modules",
    "from sys import modules; modules['a']": "sys.modules",
    "os.fork()": "os.fork",
    "open('/proc/self/maps')": "open",
    "import threading; threading.Thread()": "threading",
    "'{0.__globals__}'.format(f)": ".__globals__",
    "f'{eval(name)} is left'": "eval",
    "f.__closure__[0]": "__closure__",
    "import operator; operator.attrgetter(n)(torch)": "operator.attrgetter",
}
HONEST = [
    "import inspect",  # and never used
    "model.eval(); step = torch.compile(model); x.modules()",
    "import re; re.compile('x')",
    "import math, time\nfrom functools import partial\nmath.pi, time.time(), partial(max, 1)",
    "import numpy as np; np.zeros(3)",
    "p.grad = None; p.requires_grad = False; block.forward = wrapped",
    "class Box(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self._x = 1\n    def forward(self): return self._x",
    "from torch.autograd.graph import saved_tensors_hooks\nsaved_tensors_hooks(f, g)",
    "class F(torch.autograd.Function): pass",
    "memory.measure(f); gc.collect(); print(1, file=sys.stderr)",
    "from torch.utils.data import DataLoader; DataLoader(x)",
    "getattr(layer, 'bias', None); hasattr(x, 'y'); setattr(layer, 'bias', None)",
    "wrapper.__name__ = f.__name__; isinstance(x, type(y))",
    "'It checks what is left of __init__ here.'",
    "dtype = torch.float32; loss_fn = nn.functional.mse_loss; loss_fn(a, b)",
    "with torch.no_grad():\n    y = model(x)",
]


def seen(source, allowed=()):
    tree, course = ast.parse(source), imported(ast.parse(COURSE))
    allowed = {"torch", "torch.nn", "torch.Tensor", "tutorial_lib.memory", *allowed}
    return [one.what for one in findings(tree, {**course, **imported(tree)}, allowed)]


@pytest.mark.parametrize("source", TRICKS)
def test_a_trick_is_found(source):
    assert any(what.startswith(TRICKS[source]) for what in seen(source)), seen(source)


@pytest.mark.parametrize("source", HONEST)
def test_an_everyday_line_is_none(source):
    assert seen(source) == []


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return load_lab(toy.make_course(tmp_path_factory.mktemp("course")), "lab90")


def looked(lab, notebook):
    answers = inspect_submission(lab, match_answers(lab, read_cells(notebook)))
    return Graded("", "graded", notes=answers.notes).with_findings(lab, answers)


def test_the_student_is_not_told_what_was_noticed(lab):
    result = looked(lab, toy.submission(a11=f"import ctypes\nctypes.CDLL\n{toy.AREA}"))
    assert list(result.findings) == ["1.1"]
    (line,) = result.findings["1.1"]
    assert line == "line 3: ctypes.CDLL: is outside what the lab and its solution use"
    assert result.notes == []


def test_cells_of_the_students_own_are_looked_at_too(lab):
    notebook = toy.submission(a21=f"helper()\n{toy.CUBE}")
    own = "def helper(): return eval('1')\nexec('print(1)')"
    notebook["cells"].insert(7, toy.code("mine", own))
    assert [line.split(": ")[1] for line in looked(lab, notebook).findings["2.1"]] == [
        "eval",
        "exec",
    ]
    files = toy.submission(a11=f"import helpers\nhelpers.f()\n{toy.AREA}")
    files["cells"].insert(2, toy.code("mine", "%%writefile helpers.py\nimport ctypes\nctypes.x"))
    assert [line.split(": ")[1] for line in looked(lab, files).findings["1.1"]] == ["ctypes.x"]


def test_a_changed_constant_of_the_course_is_noted_where_an_answer_uses_it(lab):
    notebook = toy.full()
    for change, said in (("FACTOR = 3", True), ("FACTOR  =  2 # same", False), ("seen = 1", False)):
        notebook["cells"][1]["source"] = f"import sys\nimport torch, math\n{change}"
        notes = looked(lab, notebook).notes
        assert ["FACTOR was changed in a cell of the course" in note for note in notes] == [
            True
        ] * said


@pytest.mark.parametrize("text", ["(" * 40_000, "-" * 40_000 + "1", "a" + ".a" * 20_000, "f(" * 90])
def test_what_cannot_be_parsed_is_a_finding_where_it_earns_points(lab, text):
    answers = read_submission(lab, json.dumps(toy.submission(a11=f"x = {text}")).encode())
    assert Graded("", "graded").with_findings(lab, answers).findings == {}
    earned = {check.id: PASSED for check in lab.checks}
    result = Graded("", "graded", earned).with_findings(lab, answers)
    assert list(result.findings) in (["1.1"], ["1.1", "1.2", "2.1"])
    assert "not Python" in result.findings["1.1"][0]


class PASSED:
    passed = True


@pytest.mark.parametrize("name", LABS)
def test_a_solution_and_a_blank_have_nothing_to_read(root, name):
    lab = load_lab(root, name)
    for folder in ("labs", "solutions"):
        text = (root / folder / lab.path.name).read_text(encoding="utf-8")
        result = looked(lab, json.loads(text))
        assert (result.findings, result.notes) == ({}, [])
