"""Answers that gain memory points without saving memory, and honest ones that look unusual.

Each defines `checkpoint(function, *args)`, as lab 03 asks for it; the toy lab's `frugal` holds the
memory exam for it.
"""

HOOKS = """
import os, torch
from torch.autograd.graph import saved_tensors_hooks
def checkpoint(function, *args):
    with saved_tensors_hooks(pack, unpack):
        return function(*args)
"""
PLAIN = "def checkpoint(function, *args):\n    return function(*args)\n"
LIBRARY = (
    "def checkpoint(function, *args):\n    return borrowed(function, *args, use_reentrant=False)\n"
)
PATCHED_METERS = """
import tutorial_lib.memory as memory, resource, torch
from tutorial_lib.memory import meter, report, storages
for module in (memory, meter):
    module.watch = module.measure = lambda *a, **k: None
storages.StorageLog.alive_bytes = lambda self: 1
torch.UntypedStorage.nbytes = lambda self: 1
resource.setrlimit(resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS))
"""
BYTES = """
def pack(t):
    return t.numpy().tobytes(), t.dtype, t.shape
def unpack(kept):
    return torch.frombuffer(bytearray(kept[0]), dtype=kept[1]).reshape(kept[2])
"""
KEEPER = """
import multiprocessing, threading, mmap, ctypes
kept = []
def unpack(number):
    data, dtype, shape = kept[number]
    return torch.frombuffer(bytearray(read(data)), dtype=dtype).reshape(shape)
def pack(t):
    kept.append((write(t.detach().numpy().tobytes()), t.dtype, t.shape))
    return len(kept) - 1
"""

CHEATS = {
    # nothing is recomputed
    "plain": PLAIN,
    "patched meters": PATCHED_METERS + PLAIN,
    "a hook that recomputes for show": "import torch\n"
    "def checkpoint(function, *args):\n"
    "    y = function(*args)\n"
    "    def again(grad):\n"
    "        with torch.enable_grad():\n"
    "            function(*[a.detach() for a in args])\n"
    "    y.register_hook(again)\n"
    "    return y\n",
    # the library's own, under another name
    "an alias": "from torch.utils.checkpoint import checkpoint as borrowed\n" + LIBRARY,
    "its module by sys.modules": "import sys\n"
    "borrowed = sys.modules['torch.utils.checkpoint'].checkpoint\n" + LIBRARY,
    "its generator": "import torch.utils.checkpoint as c\n"
    "def checkpoint(function, *args):\n"
    "    steps = c._checkpoint_without_reentrant_generator(function, True, None, False, *args)\n"
    "    next(steps)\n    y = function(*args)\n    next(steps, None)\n    return y\n",
    "its hooks": "import torch.utils.checkpoint as c\n"
    "def checkpoint(function, *args):\n"
    "    frame = c._CheckpointFrame(lambda: function(*args), True, None, None)\n"
    "    with c._checkpoint_hook(frame):\n        return function(*args)\n",
    "its old form": "from torch.utils.checkpoint import CheckpointFunction\n"
    "def checkpoint(function, *args):\n"
    "    return CheckpointFunction.apply(function, True, *args)\n",
    "its source, run again": "import torch.utils.checkpoint as c\n"
    "names = {'__name__': 'mine'}\nexec(open(c.__file__).read(), names)\n"
    "borrowed = names['checkpoint']\n" + LIBRARY,
    "reloaded": "import importlib, torch.utils.checkpoint as c\n"
    "borrowed = importlib.reload(c).checkpoint\n" + LIBRARY,
    "imported anew": "import sys\ndel sys.modules['torch.utils.checkpoint']\n"
    "from torch.utils.checkpoint import checkpoint as borrowed\n" + LIBRARY,
    "its compiled file": "import marshal, glob, torch.utils, types\n"
    "path = glob.glob(torch.utils.__path__[0] + '/__pycache__/checkpoint.*.pyc')[0]\n"
    "names = {'__name__': 'mine'}\nexec(marshal.loads(open(path, 'rb').read()[16:]), names)\n"
    "borrowed = names['checkpoint']\n" + LIBRARY,
    "among all objects": "import gc, types\ngc.unfreeze()\n"
    "borrowed = [f for f in gc.get_objects() if isinstance(f, types.FunctionType)\n"
    "    and f.__qualname__ == 'checkpoint' and 'torch' in f.__module__][0]\n" + LIBRARY,
    "another package's": "import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as c\n"
    "def checkpoint(function, *args):\n"
    "    return c.CheckpointWrapper(function, c.CheckpointImpl.NO_REENTRANT)(*args)\n",
    # kept elsewhere
    "bytes": HOOKS + BYTES,
    "bytes, compressed": HOOKS
    + BYTES.replace("t.numpy().tobytes()", "zip(t)")
    + "import zlib\ndef zip(t):\n    return zlib.compress(t.numpy().tobytes(), 1)\n"
    + "_frombuffer = torch.frombuffer\n"
    "torch.frombuffer = lambda b, dtype: _frombuffer(bytearray(zlib.decompress(b)), dtype=dtype)\n",
    "half precision": HOOKS
    + "def pack(t):\n    return t.half()\ndef unpack(t):\n    return t.float()\n",
    "a quarter of the precision": HOOKS
    + "def pack(t):\n    return t.to(torch.float8_e5m2)\ndef unpack(t):\n    return t.float()\n",
    "shared memory": HOOKS + "def pack(t):\n    return t.clone().share_memory_()\n"
    "def unpack(t):\n    return t\n",
    "files": HOOKS + KEEPER + "def write(data):\n    name = str(len(kept))\n"
    "    open(name, 'wb').write(data)\n    return name\n"
    "def read(name):\n    return open(name, 'rb').read()\n",
    "files in /dev/shm": HOOKS + KEEPER + "def write(data):\n    name = f'/dev/shm/ga{len(kept)}'\n"
    "    open(name, 'wb').write(data)\n    return name\n"
    "def read(name):\n    return open(name, 'rb').read()\n",
    "memfd": HOOKS + KEEPER + "def write(data):\n    fd = os.memfd_create('x')\n"
    "    os.write(fd, data)\n    return fd\n"
    "def read(fd):\n    return os.pread(fd, 2**22, 0)\n",
    "anonymous maps": HOOKS + KEEPER + "def write(data):\n    place = mmap.mmap(-1, len(data))\n"
    "    place[:] = data\n    return place\ndef read(place):\n    return place[:]\n",
    "pipes": HOOKS + KEEPER + "import fcntl\ndef write(data):\n    ends = []\n"
    "    for start in range(0, len(data), 2**20):\n        r, w = os.pipe()\n"
    "        fcntl.fcntl(w, 1031, 2**20)\n        os.write(w, data[start:start + 2**20])\n"
    "        ends.append(r)\n    return ends\n"
    "def read(ends):\n    return b''.join(os.read(r, 2**20) for r in ends)\n",
    "a child holds it": HOOKS + KEEPER + "def write(data):\n    r, w = os.pipe()\n"
    "    if not os.fork():\n        os.write(w, data)\n        os._exit(0)\n    return r\n"
    "def read(r):\n    data = b''\n    while part := os.read(r, 2**20):\n        data += part\n"
    "    return data\n",
    "another Python holds it": HOOKS + KEEPER + "import subprocess, sys\n"
    "def write(data):\n    cat = subprocess.Popen([sys.executable, '-c',\n"
    "        'import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d)'],\n"
    "        stdin=-1, stdout=-1)\n    cat.stdin.write(data); cat.stdin.close()\n    return cat\n"
    "def read(cat):\n    return cat.stdout.read()\n",
    "spawned": HOOKS + KEEPER + "def write(data):\n"
    "    here, there = multiprocessing.get_context('fork').Pipe()\n"
    "    multiprocessing.get_context('fork').Process(target=there.send, args=(data,)).start()\n"
    "    return here\ndef read(here):\n    return here.recv()\n",
    "symbolic links": HOOKS + KEEPER + "import base64\ndef write(data):\n"
    "    text = base64.b64encode(data).decode().replace('/', '_')\n    place = str(len(kept))\n"
    "    for start in range(0, len(text), 4000):\n"
    "        os.symlink(text[start:start + 4000], f'{place}-{start}')\n"
    "    return place, len(text)\n"
    "def read(where):\n    text = ''.join(os.readlink(f'{where[0]}-{n}')\n"
    "        for n in range(0, where[1], 4000))\n"
    "    return base64.b64decode(text.replace('_', '/'))\n",
    # the limit itself
    "the limit lifted": "import resource\n"
    "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))\n" + PLAIN,
    "the limit lifted by ctypes": "import ctypes\nlibc = ctypes.CDLL(None)\n"
    "libc.setrlimit(9, (ctypes.c_ulong * 2)(2**40, 2**40))\n" + PLAIN,
    "room reserved before": "import mmap, torch\nroom = mmap.mmap(-1, 2**29)\n" + PLAIN,
    "threads with arenas of their own": HOOKS + "import threading\n"
    "def pack(t):\n    found = []\n"
    "    thread = threading.Thread(target=lambda: found.append(t.clone()))\n"
    "    thread.start(); thread.join()\n    return found[0]\ndef unpack(t):\n    return t\n",
    # what stands around the answer
    "the exam's loss": "import sys, tutorial_lib.checks.given.exam as e\n"
    "e.gradients = lambda chain: {'gradients': [p * 0 for p in chain.parameters()]}\n" + PLAIN,
    "a smaller exam": "import tutorial_lib.checks.given.exam as e\ne.ROWS = 64\n" + PLAIN,
    "frames": "import sys\ndef checkpoint(function, *args):\n"
    "    frame = sys._getframe()\n"
    "    while frame:\n        frame.f_locals.pop('limits', None)\n        frame = frame.f_back\n"
    "    return function(*args)\n",
    "a result of its own": "import os, struct, json\ndef checkpoint(function, *args):\n"
    "    text = json.dumps({'dict': {'gradients': []}}).encode()\n"
    "    content = struct.pack('<Q', len(text)) + text\n"
    "    head = struct.pack('<cQ', b'R', len(content))\n"
    "    for fd in range(3, 64):\n        try: os.write(fd, head + content)\n"
    "        except OSError: pass\n    os._exit(0)\n",
}

FUNCTION = """
import torch
class Discard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function = function
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return function(*tensors)
    @staticmethod
    def backward(ctx, grad):
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.enable_grad():
            y = ctx.function(*inputs)
        torch.autograd.backward(y, grad)
        return None, *(t.grad for t in inputs)
checkpoint = Discard.apply
"""
FILLING = """
def checkpoint(function, *args):
    found, count = [], [0]
    def again():
        def collect(t):
            found.append(t.detach())
            return len(found)
        with torch.enable_grad(), saved_tensors_hooks(collect, lambda n: None):
            function(*args)
    def pack(t):
        count[0] += 1
        return count[0] - 1
    def unpack(number):
        if not found:
            again()
        return found[number]
    with saved_tensors_hooks(pack, unpack):
        return function(*args)
"""
IMPORTS = "import torch\nfrom torch.autograd.graph import saved_tensors_hooks\n"
HONEST = {
    "a Function": FUNCTION,
    "hooks": IMPORTS + FILLING,
    "hooks under another name": "import torch\nfrom torch.autograd import graph\n"
    + FILLING.replace("saved_tensors_hooks", "graph.saved_tensors_hooks"),
    "an import of what it builds": "from torch.utils.checkpoint import checkpoint as theirs\n"
    + IMPORTS
    + FILLING,
    "imports of a data scientist": "import inspect, gc, sys, os, threading, numpy as np\n"
    "import pandas as pd\nimport matplotlib.pyplot as plt\nimport scipy.stats\n"
    + IMPORTS
    + FILLING,
    "an unused meter": "from tutorial_lib import memory\n"
    "from tutorial_lib.memory import measure, watch\n" + IMPORTS + FILLING,
    "a class": IMPORTS
    + FILLING.replace("def checkpoint(", "def _run(")
    + "class Checkpoint:\n    def __call__(self, function, *args):\n"
    "        return _run(function, *args)\ncheckpoint = Checkpoint()\n",
    "tried out below": FUNCTION + "x = torch.randn(64, 64, requires_grad=True)\n"
    "checkpoint(torch.sin, x).sum().backward()\nprint(x.grad.norm())\n"
    "from torch.utils.checkpoint import checkpoint as theirs\n"
    "theirs(torch.sin, x, use_reentrant=False).sum().backward()\n",
    "threads": IMPORTS + "from concurrent.futures import ThreadPoolExecutor\n"
    "pool = ThreadPoolExecutor(1)\n"
    + FILLING.replace(
        "        if not found:\n            again()\n",
        "        if not found:\n            pool.submit(again).result()\n",
    ),
    "garbage collected by hand": "import gc\n"
    + IMPORTS
    + FILLING.replace("return found[number]", "gc.collect(0)\n        return found[number]"),
    "a debug print": IMPORTS
    + FILLING.replace("    def again():\n", "    def again():\n        print('again')\n"),
}

WATCH = (
    "with {watch}(model=model) as report:\n        pass\n    return report.at_peak['parameters']\n"
)
LOG = (
    "    log = {log}\n    with log:\n        log.label_module(model)\n    log.finish()\n"
    "    return sum(life.num_bytes for life in log.lives())\n"
)
COUNT = (
    "    total = {}\n    def pack(t):\n"
    "        total[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()\n"
    "        return t\n"
    "    own = {p.untyped_storage().data_ptr() for p in chain.parameters()}\n"
    "    x = torch.randn(shape)\n"
)
SUM = "    return sum(n for place, n in total.items() if place not in own)\n"
# Of real labs: the oracle of an exercise by a detour. From a name to lab, exercise and answer.
IN_LABS = {
    "the meter": (
        *("lab01", "1.1"),
        "from tutorial_lib.memory import watch\ndef parameter_bytes(model):\n    "
        + WATCH.format(watch="watch"),
    ),
    "the meter's module": (
        *("lab01", "1.1"),
        "import sys\ndef parameter_bytes(model):\n    "
        + WATCH.format(watch="sys.modules['tutorial_lib.memory.meter'].watch"),
    ),
    "the meter without its wrapper": (
        *("lab01", "1.1"),
        "from tutorial_lib.memory import watch\ndef parameter_bytes(model):\n    "
        + WATCH.format(watch="__import__('contextlib').contextmanager(watch.__wrapped__)"),
    ),
    "the meter's log": (
        *("lab01", "1.1"),
        "from tutorial_lib.memory.storages import StorageLog\ndef parameter_bytes(model):\n"
        + LOG.format(log="StorageLog('cpu')"),
    ),
    "the oracle": (
        *("lab01", "1.1"),
        "from tutorial_lib.checks.lab01 import metered\ndef parameter_bytes(model):\n"
        "    metered.TiedEmbeddingModel = lambda case: model\n"
        "    return metered.at_rest({})['parameters']\n",
    ),
    "saved": (
        *("lab01", "1.3"),
        "import torch\nfrom tutorial_lib import memory\ndef chain_saved_bytes(chain, shape):\n"
        "    return memory.saved(lambda: chain(torch.randn(shape)), params_of=chain).num_bytes\n",
    ),
    "hooks, imported before": (
        *("lab01", "1.3"),
        "import torch\nfrom torch.autograd.graph import saved_tensors_hooks\n"
        "def chain_saved_bytes(chain, shape):\n"
        + COUNT
        + "    with saved_tensors_hooks(pack, lambda t: t):\n        chain(x)\n"
        + SUM,
    ),
    "hooks of C": (
        *("lab01", "1.3"),
        "import torch\ndef chain_saved_bytes(chain, shape):\n"
        + COUNT
        + "    torch._C._autograd._push_saved_tensors_default_hooks(pack, lambda t: t)\n"
        "    chain(x)\n    torch._C._autograd._pop_saved_tensors_default_hooks()\n" + SUM,
    ),
    "the solver": (
        *("lab04", "4.5"),
        "from tutorial_lib.instruments import planning\ndef smallest_budget(stages):\n"
        "    return planning.floor_bytes(stages)\n",
    ),
    "the solver's source": (
        *("lab04", "4.5"),
        "import inspect, tutorial_lib.instruments.planning.chain.floor as floor\n"
        "exec(inspect.getsource(floor))\ndef smallest_budget(stages):\n"
        "    return floor_bytes(stages)\n",
    ),
    "the oracle of 5.4": (
        *("lab05", "5.4"),
        "from tutorial_lib.checks.lab05.ex5_4 import Best\n"
        "def fewest_flops(parts, budget):\n    return Best({'parts': parts, 'budget': budget})\n",
    ),
    "the comparison that is to be written": (
        *("lab06", "6.1"),
        "from tutorial_lib.checks import assert_same_training as same\n"
        "def first_difference(step_a, step_b, model, optimizer, tolerance):\n"
        "    same(step_a, step_b, model, optimizer)\n    return 'nothing', 0.0\n",
    ),
    "counters put back": (
        *("lab03", "3.2"),
        "import torch\ndef hooked(function, *args):\n    y = function(*args)\n"
        "    def hook(grad):\n        with torch.enable_grad():\n"
        "            function(*[a.detach() for a in args])\n        function.ended = 1\n"
        "    y.register_hook(hook)\n    return y\n",
    ),
}
