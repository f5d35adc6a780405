"""Over a hundred submissions of the toy lab: hostile, broken, copied and honest ones.

Each has the points that it deserves, by exercise; None where the file is no notebook.
"""

import copy
import json

import answers
import toy

WRONG = "\ndef area(w, h):\n    return 1"
NOTHING, FIRST_LOST, ALL = (0, 0, 0), (0, 3, 5), (2, 3, 5)

# Stand before a wrong answer to 1.1: what they do must not earn its points, nor take away others'.
HOSTILE = answers.by_title("../hundred", "hostile") | {
    "deep parse": "x = " + "(" * 5000 + ")" * 5000,
    "long line": "x = '" + "a" * 40_000 + "'",
    "null byte": "x = '\0'",
}
# These break their own process for the answers below them, too: points are lost, and none are won.
HARM_THEMSELVES = {
    *("patched builtins", "patched json", "modules"),
    *("patched allclose", "patched error"),  # what the checks use: refused as exchanged
    *("forged result", "half a message"),
}
# In place of the answer to 1.1.
LIES = answers.by_title("../hundred", "lie")
# Right, in another way than the solution.
HONEST = answers.by_title("../hundred", "honest") | {
    "windows lines": "def area(w, h):\r\n    return w * h\r\n",
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
