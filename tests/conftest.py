"""What several test files share."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tutorial_lib.school import installer

torch.set_num_threads(1)  # as checks do: sums come out the same to the last bit

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config):
    """Hide a GPU from all tests but those of `-m gpu`: what they say is about the CPU."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(scope="session")
def root():
    """The course's folder."""
    return ROOT


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The toy lab that the grader is tried on."""
    import toy

    from solutions.grader.lab import load_lab

    return load_lab(toy.make_course(tmp_path_factory.mktemp("course")), "lab90")


@pytest.fixture(scope="module", autouse=True)
def thawed_after_a_file():
    """Collect what a file's tests left."""
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def quick_collections():
    """A meter collects garbage: it need not look again through all that is imported."""
    gc.freeze()


@pytest.fixture
def run_online():
    """Run a program that asks a package index; skips the test where none answers."""

    def run(*command, cwd=ROOT):
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,  # an install takes minutes on a machine that does other things too
        )
        if done.returncode and installer.explain(done.stdout, ROOT, "").startswith("No package"):
            pytest.skip("no package index answers here")
        return done

    return run


@pytest.fixture
def run_python():
    """Run this Python; `bare` hides every installed package."""

    def run(*words, cwd=ROOT, bare=False, **changes):
        return subprocess.run(
            [sys.executable, *(["-S"] if bare else []), *(str(word) for word in words)],
            cwd=cwd,
            env={**os.environ, **changes},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def memory_fractions(monkeypatch):
    """What PyTorch's C++ allocator is told of a GPU of 80 GiB that is not there, and of which."""
    told = []
    gpu = SimpleNamespace(name="Some GPU", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    tell = {
        "_cuda_setMemoryFraction": lambda fraction, index: told.append((fraction, index)),
        "_cuda_getMemoryFraction": lambda _: told[-1][0] if told else 1.0,
    }
    for name, function in tell.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    return told


@pytest.hookimpl(optionalhook=True)  # where xdist is not
def pytest_xdist_make_scheduler(config, log):
    """Send each file to one worker, and of the wrong answers each exercise, which are many.

    In the order that they are collected in: notebooks, which take long, first, and the wrong
    answers' small portions last. By the number of tests, a file of three slow ones would end alone.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False

    class ByFileAndExercise(LoadFileScheduling):
        def _split_scope(self, nodeid):
            exercise = re.search(r"\[(lab\d+-\d+\.\d+)", nodeid)
            return super()._split_scope(nodeid) + (f"::{exercise[1]}" if exercise else "")

    return ByFileAndExercise(config, log)
