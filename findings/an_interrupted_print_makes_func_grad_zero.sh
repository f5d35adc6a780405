#!/usr/bin/env bash
# PyTorch: after the print of a tensor was interrupted, torch.func.grad returns zeros.
#
# PyTorch 2.13.0 on CPU, IPython 9.15.0 (2.10.0 and 2.11.0 do the same). One expects that an error which is
# over changes nothing. `Tensor.__repr__` keeps the transforms of torch.func off by a guard in a local
# variable (`_str`, torch/_tensor_str.py). An error, or Ctrl-C while a large tensor is printed, takes
# that frame along in its traceback, and a notebook keeps the traceback of the last error. Meanwhile
# torch.func.grad and jacrev return zeros, without a word: a training step by them stands still.
# autograd.grad, vmap and jvp are right. It ends when another error has come and Python has collected
# its garbage.
#
# Seen: gradients before 2 2 2; after the interrupted print func.grad 0 0 0, jacrev 0 0 0,
# autograd.grad 2 2 2; after another error the same; once garbage is collected 2 2 2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "ipython==9.15.0"
cd "$folder"
OMP_NUM_THREADS=1 IPYTHONDIR="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import contextlib
import gc
import io

from IPython.core.interactiveshell import InteractiveShell

PRINT = """
import signal, torch
torch.set_printoptions(threshold=10**9)  # all numbers, as one asks for by mistake
signal.signal(signal.SIGALRM, signal.default_int_handler)  # as Ctrl-C
signal.setitimer(signal.ITIMER_REAL, 1.0)
print(torch.rand(5_000_000))
"""
GRADIENTS = """
import torch
square = lambda x: (x * x).sum()
one = torch.ones(3, requires_grad=True)
found = {
    "func.grad": torch.func.grad(square)(torch.ones(3)).tolist(),
    "jacrev": torch.func.jacrev(square)(torch.ones(3)).tolist(),
    "autograd.grad": torch.autograd.grad(square(one), one)[0].tolist(),
}
"""
shell = InteractiveShell.instance()


def gradients(when):
    shell.run_cell(GRADIENTS).raise_error()
    print(f"{when:30}{shell.user_ns['found']}")
    return shell.user_ns["found"]


right = dict.fromkeys(("func.grad", "jacrev", "autograd.grad"), [2.0] * 3)
assert gradients("before") == right
with contextlib.redirect_stdout(io.StringIO()):
    result = shell.run_cell(PRINT)
assert isinstance(result.error_in_exec, KeyboardInterrupt), result.error_in_exec
del result
wrong = right | dict.fromkeys(("func.grad", "jacrev"), [0.0] * 3)
assert gradients("after the interrupted print") == wrong
with contextlib.redirect_stdout(io.StringIO()):
    shell.run_cell("1 / 0")
gradients("after another error")
gc.collect()
assert gradients("after a collection") == right
PYTHON
