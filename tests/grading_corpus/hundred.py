"""Over a hundred submissions of the toy lab: hostile, broken, copied and honest ones.

Each has the points that it deserves, by exercise; None where the file is no notebook.
"""

import copy
import json

import toy

WRONG = "\ndef area(w, h):\n    return 1"
NOTHING, FIRST_LOST, ALL = (0, 0, 0), (0, 3, 5), (2, 3, 5)

# Stand before a wrong answer to 1.1: what they do must not earn its points, nor take away others'.
HOSTILE = {
    "loop": "while True: pass",
    "exit": "import os; os._exit(0)",
    "abort": "import os; os.abort()",
    "system exit": "raise SystemExit",
    "interrupt": "raise KeyboardInterrupt",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "recursion": "f = lambda: f()\nf()",
    "memory": "x = bytearray(2**36)",
    "memory by steps": "x = []\nwhile True: x.append(bytearray(2**24))",
    "fork bomb": "import os\nwhile True: os.fork()",
    "daemon": "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(600)",
    "threads": (
        "import threading, time\n"
        "for _ in range(500): threading.Thread(target=time.sleep, args=(600,)).start()"
    ),
    "kill parent": "import os; os.kill(os.getppid(), 9)",
    "kill all": "import os; os.kill(-1, 9)",
    "kill group": "import os; os.killpg(0, 9)",
    "stop itself": "import os; os.kill(os.getpid(), 19)",
    "deep parse": "x = " + "(" * 5000 + ")" * 5000,
    "long line": "x = '" + "a" * 40_000 + "'",
    "null byte": "x = '\0'",
    "print for ever": "while True: print('x' * 10**6)",
    "raw writes": "import os\nwhile True: os.write(1, b'x' * 10**6)",
    "fill the disk": "f = open('big', 'wb')\nwhile True: f.write(b'x' * 2**24)",
    "many files": "for i in range(10**6): open(f'{i}', 'w')",
    "deep folders": "import os\nwhile True: os.mkdir('d'); os.chdir('d')",
    "write home": "import os; open(os.path.expanduser('~/planted'), 'w').write('x')",
    "write above": "open('../../planted', 'w').write('x')",
    "write tmp": "open('/tmp/planted-by-a-submission', 'w').write('x')",
    "write library": "import toychecks as t; open(t.__file__, 'a').write('x')",
    "delete library": (
        "import toychecks, shutil, os; shutil.rmtree(os.path.dirname(toychecks.__file__))"
    ),
    "conftest": (
        "for d in ('.', '..', '../..'): open(d + '/conftest.py', 'w').write('raise SystemExit')"
    ),
    "network": "import socket; socket.create_connection(('1.1.1.1', 53), timeout=2)",
    "server": "import socket; s = socket.create_server(('', 8786))",
    "shell": "import subprocess; subprocess.run('touch ~/planted', shell=True, check=True)",
    "magic shell": "!touch planted\n%run planted",
    "read solutions": (
        "import os\nfor r, d, f in os.walk('/'):\n"
        "    if 'lab90_toy.ipynb' in f: text = open(r + '/lab90_toy.ipynb').read()"
    ),
    "environment": "import os; seed = int(os.environ['TUTORIAL_LIB_CHECK_SEED'])",
    "parent's memory": "import os; open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "patched judge": "import toychecks.lab90 as m; m._judge_area = lambda *a: None",
    "patched check": (
        "import toychecks.lab90 as m; object.__setattr__(m.area, 'judge', lambda *a: None)"
    ),
    "patched cases": (
        "import toychecks.lab90 as m; object.__setattr__(m.area, 'cases', lambda s: [])"
    ),
    "patched allclose": "import torch; torch.allclose = torch.equal = lambda *a, **k: True",
    "patched read": "import tutorial_lib.checks.vocabulary.read as r; r.integer = lambda v, n: v",
    "patched error": (
        "import tutorial_lib.checks.given.values as c\n"
        "c.CheckError = type('Quiet', (Exception,), {'__init__': lambda *a: None})"
    ),
    "patched wire": "import solutions.grader.wire as w; w.encode = lambda v: b'{}'",
    "patched builtins": "import builtins; builtins.isinstance = lambda *a: True",
    "patched json": "import json; json.dumps = lambda *a, **k: '{}'",
    "showtraceback": (
        "import IPython\nIPython.core.interactiveshell.InteractiveShell.showtraceback = print"
    ),
    "printed line": f"print({toy.PASSED['1.1']!r})",
    "outcome file": (
        "import glob, json\nfor f in glob.glob('/tmp/**/outcomes.jsonl', recursive=True):\n"
        "    open(f, 'a').write(json.dumps({'id': 'check-1-1', 'passed': True}))"
    ),
    "socket": (
        "import socket, glob\nfor f in glob.glob('/tmp/grade-*/*/socket'):\n"
        "    socket.socket(socket.AF_UNIX).connect(f)"
    ),
    "forged result": (
        "import os, struct\nfor fd in range(3, 50):\n"
        "    try: os.write(fd, struct.pack('<cQ', b'R', 2) + b'{}')\n    except OSError: pass"
    ),
    "half a message": (
        "import os, struct\nfor fd in range(3, 50):\n"
        "    try: os.write(fd, struct.pack('<cQ', b'R', 2**40))\n    except OSError: pass\n"
        "os._exit(0)"
    ),
    "at exit": "import atexit, os; atexit.register(os.abort)",
    "frames": "import sys; f = sys._getframe(1); f.f_locals.clear()",
    "collector": (
        "import gc\nfrom tutorial_lib.checks.given import RunHalf\n"
        "for c in gc.get_objects():\n"
        "    if isinstance(c, RunHalf): object.__setattr__(c, 'judge', lambda *a: None)"
    ),
    "import hook": "import sys; sys.meta_path.insert(0, None)",
    "modules": "import sys\nfor n in list(sys.modules): sys.modules[n] = None",
    "recursion limit": "import sys; sys.setrecursionlimit(10**9)\nf = lambda: f()\nf()",
    "signal": "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
}
# These break their own process for the answers below them, too: points are lost, and none are won.
HARM_THEMSELVES = {
    *("patched builtins", "patched json", "modules"),
    *("patched allclose", "patched error"),  # what the checks use: refused as exchanged
    *("forged result", "half a message"),
}
# In place of the answer to 1.1.
LIES = {
    "equal to all": (
        "class E(int):\n    __eq__ = lambda *a: True\n    __ne__ = lambda *a: False\n"
        "    __hash__ = int.__hash__\ndef area(w, h): return E(1)"
    ),
    "nan": "def area(w, h): return float('nan')",
    "a tensor": "import torch\ndef area(w, h): return torch.ones(10**7)",
    "a huge number": "def area(w, h): return 10 ** (10**6)",
    "deep list": "def area(w, h):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "itself": "def area(w, h):\n    x = []\n    x.append(x)\n    return x",
    "a lazy object": "class L:\n    def __getattr__(self, n): return self\narea = L()",
    "raises a check error": (
        "from tutorial_lib.checks.given import CheckError\n"
        f"def area(w, h): raise CheckError({toy.PASSED['1.1']!r})"
    ),
    "raises without words": (
        "class B(Exception):\n    def __str__(self): raise RuntimeError\ndef area(w, h): raise B"
    ),
    "exits": "import os\ndef area(w, h): os._exit(0)",
    "never returns": "def area(w, h):\n    while True: pass",
    "generator": "def area(w, h):\n    while True: yield 1",
    "surrogates": "def area(w, h): return '\\ud800' * 10**6",
    "a number as text": "def area(w, h): return str(w * h)",
}
# Right, in another way than the solution.
HONEST = {
    "lambda": "area = lambda w, h: w * h",
    "class": "class A:\n    def __call__(self, w, h): return w * h\narea = A()",
    "partial": (
        "import functools, operator\narea = functools.partial(lambda f, w, h: f(w, h), "
        "operator.mul)"
    ),
    "decorated": "import functools\n@functools.lru_cache\ndef area(w, h): return w * h",
    "numpy": "import numpy as np\ndef area(w, h): return np.int64(w) * h",
    "a loop": "def area(w, h): return sum(w for _ in range(h))",
    "prints": "def area(w, h):\n    print('here', w, h)\n    return w * h",
    "warns": "import warnings\ndef area(w, h):\n    warnings.warn('careful')\n    return w * h",
    "stderr": "import sys\ndef area(w, h):\n    print('x', file=sys.stderr)\n    return w * h",
    "twice": "def area(w, h): return 0\ndef area(w, h): return w * h",
    "helper": "def _times(a, b): return a * b\ndef area(w, h): return _times(w, h)",
    "types": (
        "from typing import TypeAlias\nN: TypeAlias = int\ndef area(w: N, h: N) -> N: return w * h"
    ),
    "unicode": "def fläche(w, h): return w * h\narea = fläche",
    "walrus": "def area(w, h): return (x := w) * h",
    "timed": "%%time\ndef area(w, h): return w * h",
    "pip": "!pip install torch\ndef area(w, h): return w * h",
    "matplotlib": "%matplotlib inline\ndef area(w, h): return w * h",
    "trailing error": "def area(w, h): return w * h\nprint(area(1))",
    "tabs": "def area(w, h):\n\treturn w * h",
    "windows lines": "def area(w, h):\r\n    return w * h\r\n",
    "future": "from __future__ import annotations\ndef area(w: X, h) -> X: return w * h",
    "own test": "def area(w, h): return w * h\nassert area(2, 3) == 6",
    "keywords": "def area(width=0, height=0, *rest, **more): return width * height",
    "set seed": (
        "import random, torch\nrandom.seed(0); torch.manual_seed(0)\ndef area(w, h): return w * h"
    ),
}
BROKEN = {
    "empty": b"",
    "spaces": b"   \n",
    "half": json.dumps(toy.full())[:900].encode(),
    "list": b"[1]",
    "number": b"7",
    "deep": b"[" * 10**5,
    "no cells": b"{}",
    "cells are text": b'{"cells": "x"}',
    "latin": '{"cells": "é"}'.encode("latin-1"),
    "zeros": b"\0" * 1000,
    "zip": b"PK\x03\x04" + b"x" * 500,
    "conflict": b'{\n<<<<<<< HEAD\n"cells": []\n=======\n>>>>>>> x\n}',
    "huge number": b'{"cells": [' + b"9" * 10**6 + b"]}",
    "many keys": b'{"cells": {' + b",".join(b'"%d": 0' % i for i in range(10**5)) + b"}}",
    "other notebook": json.dumps(toy.notebook([toy.code("x", "1 + 1")])).encode(),
}


def _text(notebook):
    return json.dumps(notebook).encode()


def _other_form(change):
    notebook = copy.deepcopy(toy.full())
    change(notebook)
    return _text(notebook)


def _without_ids(notebook):
    for cell in notebook["cells"]:
        del cell["id"]
        cell["metadata"] = {}


def _with_junk(notebook):
    notebook["cells"] += [None, 3, {}, {"cell_type": "code", "source": 5, "metadata": []}]


FORMS = {
    "reversed": lambda notebook: notebook["cells"].reverse(),
    "no ids": _without_ids,
    "junk": _with_junk,
    "no checks": lambda n: n.update(cells=[c for c in n["cells"] if "check" not in c["id"]]),
    "lines": lambda n: [c.update(source=c["source"].splitlines(True)) for c in n["cells"]],
    "old": lambda n: n.update(nbformat_minor=0),
    "kernel": lambda n: n.update(metadata={"kernelspec": {"name": "no-such-kernel"}}),
}


def submissions():
    """Give content and deserved points, by file name."""
    found = {}
    for name, code in HOSTILE.items():
        text = _text(toy.submission(a11=code + WRONG, a12=toy.DOUBLED, a21=toy.CUBE))
        found[f"hostile {name}"] = text, NOTHING if name in HARM_THEMSELVES else FIRST_LOST
    for name, code in LIES.items():
        text = _text(toy.submission(a11=code, a12=toy.DOUBLED, a21=toy.CUBE))
        found[f"lie {name}"] = text, FIRST_LOST
    for name, code in HONEST.items():
        found[f"honest {name}"] = (
            _text(toy.submission(a11=code, a12=toy.DOUBLED, a21=toy.CUBE)),
            ALL,
        )
    for name, change in FORMS.items():
        found[f"honest form {name}"] = _other_form(change), ALL
    for number in range(4):
        found[f"copy {number}"] = _text(toy.full()), ALL
    found["blank"] = _text(toy.submission()), NOTHING
    found |= {f"broken {name}": (content, None) for name, content in BROKEN.items()}
    return {f"{name}.ipynb": pair for name, pair in found.items()}
