"""The emulated card: its data, its stubs, what each bad input gets; and PyTorch itself on it.

What needs PyTorch's CUDA build is skipped where there is none, as in CI: the wheel takes 6 GB.
"""

import ctypes
import json
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.optim import SGD

from tutorial_lib import memory
from tutorial_lib.instruments import ranks
from tutorial_lib.instruments.emulated import build, cards, environment, run, stubs
from tutorial_lib.instruments.emulated.inside import card_watcher
from tutorial_lib.school import bootstrap
from tutorial_lib.school.commands import main as command_line
from tutorial_lib.units import MIB

TRANSIENT_WORKSPACES = version("torch") >= "2.15"

ROOT = Path(__file__).resolve().parent.parent
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can emulate a card")
needs_compiler = pytest.mark.skipif(
    not (shutil.which("cc") and shutil.which("nm")), reason="no C compiler and `nm` on this machine"
)


def printed(code, **env):
    """What a Python prints that runs this code."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=env or None, capture_output=True, text=True, check=True
    ).stdout


def main(words, root=ROOT):
    with mock.patch.object(bootstrap, "ROOT", root):
        return command_line.run(["emulate", *words])


@pytest.fixture(scope="module")
def cuda_torch():
    try:
        return environment.find_cuda_torch(ROOT)
    except ValueError as error:
        pytest.skip(f"no PyTorch built for CUDA to run on an emulated card: {error}")


@pytest.fixture
def emulate(cuda_torch, tmp_path, capfd):
    """Run a script on a card, and give its exit status, its result and what was printed."""

    def run_script(script, *options, card="a100"):
        path, result = tmp_path / "script.py", tmp_path / "result.json"
        path.write_text(textwrap.dedent(script))
        words = ["--card", card, *options, "--json", str(result), "--", "python", str(path)]
        status = main(words)
        said = capfd.readouterr()
        return status, json.loads(result.read_text()), said.out + said.err

    return run_script


@pytest.fixture
def succeed(emulate):
    """Run a script to its good end, and give its processes and what was printed."""

    def run_script(script, *options, **card):
        status, data, said = emulate(script, *options, **card)
        assert status == 0, said
        return data["processes"], said

    return run_script


# ---- cards ----


@pytest.mark.parametrize("key", cards.CARDS)
def test_every_card_is_plausible(key):
    card = cards.find_card(key.upper())
    assert 2**30 < card.memory < 2**38
    assert card.shared_opt_in <= card.shared_multiprocessor
    assert len(card.as_text().rpartition(card.name)[0].split()) == 9
    assert 0 < cards.find_card(key, context=None).context < 0.02 * card.memory


@pytest.mark.parametrize(("text", "size"), [(None, 120 * MIB), ("0", 0), ("300 MiB", 300 * MIB)])
def test_a_context_is_taken_off(text, size):
    card = cards.find_card("t4", context=text)
    assert (card.context, card.free) == (size, card.memory - size)


def test_a_context_larger_than_the_card_is_refused():
    with pytest.raises(ValueError, match="leaves nothing of 2,097,152: give more --memory"):
        cards.find_card("t4", "2MiB", None)


# ---- stubs ----


@pytest.fixture
def compiled(tmp_path):
    def compile_to(name, source, *options):
        path = tmp_path / f"{name}.c"
        path.write_text(source)
        out = tmp_path / name
        subprocess.run(["cc", "-w", "-fPIC", *options, path, "-o", out], check=True)
        return out

    return compile_to


@on_linux
@needs_compiler
def test_stubs_stand_in_for_what_a_library_imports(compiled):
    """A library that uses CUDA without any finds all that it needs, and gets 0 from it."""
    user = compiled(
        "libuser.so",
        "int cudaLaunch(int); int cublasCreate_v2(void **); int printf(const char *, ...);"
        "int cuFileRead(void); int cudnnGetRNNWorkspaceSize(void *, unsigned long *);"
        'int use(void) { void *handle = 0; unsigned long size = 7; printf("");'
        "  if (cudaLaunch(1) || cublasCreate_v2(&handle) || !handle) return -1;"
        "  return cudnnGetRNNWorkspaceSize(handle, &size) + size + (int)(long)cuFileRead * 0; }",
        "-shared",
    )
    names = stubs.imported_symbols([user])
    assert names == {"cudaLaunch", "cublasCreate_v2", "cudnnGetRNNWorkspaceSize"}
    header = (
        "cudnnGetRNNWorkspaceSize(cudnnHandle_t handle, /* bytes, here */ size_t *sizeInBytes);"
    )
    source = "#include <stdlib.h>\nvoid *new_handle(void) { return calloc(1, 8); }\n"
    stand_in = compiled("stubs.so", source + stubs.write_stubs(names, header), "-shared")
    code = (
        "import ctypes, os; "
        f"ctypes.CDLL({str(stand_in)!r}, ctypes.RTLD_GLOBAL); "
        f"print(ctypes.CDLL({str(user)!r}, os.RTLD_LAZY).use())"
    )
    assert printed(code).strip() == "0"


@on_linux
@needs_compiler
def test_the_short_answers_compile_without_any_header_of_nvidia(compiled, tmp_path, monkeypatch):
    source = (build.SOURCES / "answers.c").read_text() + "\nCard card = {.bytes = 1};\n"
    options = ("-shared", f"-I{build.SOURCES}", "-Werror=implicit-function-declaration")
    library = ctypes.CDLL(str(compiled("answers.so", source, *options)), ctypes.RTLD_LOCAL)
    count = ctypes.c_int(-1)
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    assert count.value == 1
    assert library.cudaSetDevice(0) == 0
    assert library.cudaSetDevice(1) != 0
    monkeypatch.setenv("TUTORIAL_EMULATED_OUT", str(tmp_path))
    assert library.cudaStreamBeginCapture() != 0
    assert (tmp_path / "refused").read_text() == "a CUDA graph"


# ---- what bad input gets ----


CUDA_BUILD = "__version__ = '2.13.0+cu130'\ncuda = '13.0'\n"


def environment_with(root, version_file):
    """A clone with a `.venv-cuda` that is complete, as far as can be told without importing."""
    folder = root / environment.FOLDER / "lib/python3.11/site-packages"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/version.py").write_text(version_file)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    (root / environment.FOLDER / environment.STAMP).write_text(environment.fingerprint(root))
    return folder


@pytest.fixture
def no_torch_here(monkeypatch):
    monkeypatch.setattr(environment, "_own_packages", list)
    monkeypatch.setattr(build, "check_system", lambda: None)


@pytest.mark.parametrize(
    ("version_file", "message"),
    [
        ("", "There is no PyTorch in"),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", "was not built for CUDA"),
        ("__version__ = '2.3.1+cu118'\ncuda = '11.8'\n", "was built for CUDA 11.8, but"),
    ],
)
def test_another_torch_is_refused(tmp_path, version_file, message):
    with pytest.raises(ValueError, match=message) as refused:
        build.read_torch(environment_with(tmp_path, version_file))
    assert "emulate --setup" in str(refused.value)


def test_a_card_older_than_its_pytorch_is_refused(tmp_path):
    older = environment_with(tmp_path, "__version__ = '2.6.0+cu124'\ncuda = '12.4'\n")
    assert build.read_torch(older) == build.CudaTorch(older, "2.6.0+cu124", "12")
    assert run.OLDEST_CAPABILITY["12"] <= float(cards.find_card("v100").capability)
    with pytest.raises(ValueError, match=r"CUDA 13 has no kernels .*predict --fits"):
        run.emulate(["python"], cards.find_card("v100"), build.CudaTorch(older, "2.13.0+cu130"))


@on_linux
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "emulate needs --card"),
        (["--card", "t4"], "emulate needs a program behind `--`"),
        (["--card", "t4", "--"], "emulate needs a program behind `--`"),
        (["--card", "a1000", "--", "python"], "did you mean `a100`"),
        (["--card", "gtx-970", "--", "python"], "choose from t4, v100, a10"),
        (["--card", "t4", "--memory", "16", "--", "python"], "'16' isn't a memory size"),
        (["--card", "t4", "--context", "many", "--", "python"], "'many' isn't a memory size"),
        (["--card", "t4", "--steps", "0", "--", "python"], "--steps 0 would stop before"),
    ],
)
def test_a_wrong_word_gets_one_sentence(words, message, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("system", "machine", "message"),
    [
        ("darwin", "arm64", "needs Linux, but this is macOS"),
        ("win32", "AMD64", "needs Linux, but this is Windows: use WSL 2"),
        ("linux", "riscv64", "this one is riscv64"),
    ],
)
@pytest.mark.parametrize("words", [["--card", "t4", "--", "python"], ["--setup"]])
def test_another_system_is_refused(system, machine, message, words, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert main(words, tmp_path) == 2
    assert message in capsys.readouterr().err


@on_linux
@pytest.mark.parametrize(("there", "lacking"), [((), "No C compiler"), (("cc",), "No `nm`")])
def test_missing_tools_are_named(there, lacking, tmp_path, monkeypatch):
    for name in there:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = environment_with(tmp_path, CUDA_BUILD)
    with pytest.raises(ValueError, match=f"{lacking} was found.*sudo apt install gcc"):
        build.make_library(build.read_torch(folder))


def test_setup_begins_nothing_where_the_disk_is_too_small(
    tmp_path, no_torch_here, monkeypatch, capsys
):
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert main(["--setup"], tmp_path) == 2
    assert "has 1.0 GB free, but PyTorch's CUDA build needs about" in capsys.readouterr().err
    assert not (tmp_path / environment.FOLDER).exists()


@pytest.mark.parametrize("change", ["stopped", "other constraints"])
def test_setup_goes_on_where_it_stopped(tmp_path, no_torch_here, monkeypatch, capsys, change):
    folder = environment_with(tmp_path, CUDA_BUILD)
    if change == "stopped":
        (tmp_path / environment.FOLDER / environment.STAMP).unlink()
    else:
        (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    with pytest.raises(ValueError, match=r"This Python has no packages: .*emulate --setup"):
        environment.find_cuda_torch(tmp_path)
    usage = shutil.disk_usage(tmp_path)._replace(free=10**11)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    called = []
    monkeypatch.setattr(subprocess, "call", lambda words, **_: called.append(words[2:4]) or 0)
    assert main(["--setup"], tmp_path) == 0
    assert called == [["venv", "--clear"], ["pip", "install"]]  # there was no Python in it
    assert "about 6 GB" in capsys.readouterr().out
    assert environment.find_cuda_torch(tmp_path).packages == folder


# ---- a command of the course on a card ----


@on_linux
def test_a_command_is_run_on_each_card_that_it_names(monkeypatch, capsys):
    ran = []

    def emulate(command, card, torch, *, watch):
        ran.append((command[3:], card.name))
        return run.Emulated(card, 3 if "T4" in card.name else 0)

    monkeypatch.setattr(run, "emulate", emulate)
    monkeypatch.setattr(environment, "find_cuda_torch", lambda root: None)
    assert command_line.run(["record", "--only", "E06", "--emulated", "t4,l4"]) == 3
    rest = ["record", "--only", "E06"]
    assert ran == [(rest, "Tesla T4"), (rest, "NVIDIA L4")]
    assert command_line.run(["measure", "gpt2", "--emulated=gtx-970"]) == 2
    assert "choose from t4" in capsys.readouterr().err


# ---- what a program's end means ----


def result(status=0, refused="", **process):
    peaks = {"requested": MIB, "allocated": MIB, "reserved": 2 * MIB}
    data = {"torch": "2.13.0", "peaks": peaks, "updates": 3, "out_of_memory": 0, "moment": None}
    data |= {"error_after_reading": "", "unknown_reads": {}}
    return run.Emulated(cards.CARDS["t4"], status, [{**data, **process}], refused)


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        (result(), 0, "reserved peak  2.00 MiB"),
        (result(out_of_memory=1), 0, "requested peak  1.00 MiB"),  # the program went on
        (result(1, out_of_memory=1), run.OUT_OF_MEMORY, "The card's memory ran out"),
        (result(1, out_of_memory=1), run.OUT_OF_MEMORY, "fits: no"),
        (result(), 0, "fits: yes\n  needs    1.00 MiB, of 14.6 GiB that the Tesla T4"),
        (result(1, error_after_reading="ValueError"), 2, "values that no kernel has made"),
        (result(0, error_after_reading="ValueError"), 0, "requested peak"),  # a child's, mended
        (result(1, out_of_memory=1, error_after_reading="OutOfMemoryError"), 3, "memory ran out"),
        (result(7), 7, "ended with status 7: its own error is above. On an emulated card"),
        (result(1, "NCCL"), 2, "asked for NCCL, which cannot be emulated"),
        (result(-11), 2, "was ended by SIGSEGV: a crash"),
        (result(-15), 2, "was ended by SIGTERM: something else"),
        (result(unknown_reads={"a.py:7 in f": 2}), 0, "given as 0 or False:\n    a.py:7 in f (2 t"),
        (result(unknown_reads=dict.fromkeys("abcdefg", 1)), 0, "and 2 more lines"),
        (run.Emulated(cards.CARDS["t4"], 0), 2, "never used the card"),
        (run.Emulated(cards.CARDS["t4"], 5), 5, "ended with status 5"),
        (run.Emulated(cards.CARDS["t4"], 0, silent=1), 0, "1 of the processes that used the card"),
    ],
)
def test_how_a_program_ended_is_told(end, status, message):
    assert end.exit_status == status
    assert message in run.as_text(end)


@pytest.mark.parametrize(
    ("layer", "x", "named"),
    [
        (torch.nn.Conv2d(3, 4, 1), torch.ones(1, 3, 2, 2).half(), ""),
        (torch.nn.Linear(3, 4), torch.ones(3, device="meta"), ""),
        (torch.nn.Linear(3, 4), torch.ones(2, 3).half(), ""),
        (torch.nn.Linear(3, 4), torch.ones(2, 5), "RuntimeError"),
    ],
)
def test_zeros_that_were_read_move_nothing_to_another_device(monkeypatch, layer, x, named):
    with pytest.raises(RuntimeError) as ended:
        layer(x)
    monkeypatch.setattr(sys, "last_type", ended.type, raising=False)
    monkeypatch.setattr(sys, "last_value", ended.value, raising=False)
    watcher = object.__new__(card_watcher.Watcher)
    watcher.values = None
    assert watcher._error_after_reading() == named


# ---- the moment of the peak ----


def event(action, size, *files, at=0):
    frames = [{"filename": file, "line": 7, "name": "forward"} for file in files]
    return {"action": action, "size": size, "frames": frames, "time_us": at}


@pytest.mark.parametrize("lost", [0, 1])
def test_the_peak_is_found_from_the_end(lost):
    """The record may have lost its beginning: only what is held at the end is known."""
    installed, mine = sysconfig.get_paths()["purelib"], str(Path.cwd() / "torch/model.py")
    events = [
        event("alloc", 100, "train.py", at=1_000_000),
        event("alloc", 50, f"{installed}/torch/nn/functional.py", mine, at=3_000_000),
        event("segment_alloc", 999),
        event("free_requested", 50, "model.py"),
        event("free_completed", 50, "model.py"),
        event("alloc", 30, "train.py", at=4_000_000),
    ]
    found = card_watcher.describe_peak(events[lost:], 130, [2.0, 5.0])
    place = {"line": "torch/model.py:7 in forward", "caller": ""}
    assert found == {"bytes": 150, "update": 2, "phase": "forward", **place}


# ---- PyTorch on an emulated card ----

TRAIN = """
    import torch
    model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range({steps}):
        loss = model(torch.randn({batch}, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_training_script_runs_and_its_peak_is_placed(succeed):
    (process,), said = succeed(TRAIN.format(steps=100, batch=8), "--steps", "3")
    assert "NVIDIA A100" in said
    # parameters, gradients and two moments at least; foreach makes one more of them, while up to
    # 2.14 cuBLAS keeps two workspaces: since 2.15 a matmul of backward with its own is the peak
    assert 16 * MIB <= process["peaks"]["requested"] < 50 * MIB
    assert process["updates"] == 3
    phase, line = ("backward", 6) if TRANSIENT_WORKSPACES else ("optimizer step", 8)
    assert process["moment"]["phase"] == phase
    assert process["moment"]["bytes"] == process["peaks"]["requested"]
    assert process["moment"]["line"].split(":")[1].startswith(f"{line} in")


MOVES = """
    import torch
    from tutorial_lib import memory
    from tutorial_lib.instruments import planning
    from tutorial_lib.instruments.training import Recipe

    recipe = Recipe("{name}", {batch}, precision="{precision}")
    with memory.predicting():
        loss, model = recipe.make_loss()
        profile = planning.profile(model, loss, speed=planning.Speed(), is_judged=True)
    whole = planning.Plan(profile.stages, tuple(range(len(profile.stages)))).peak_bytes
    host = planning.Host(1e15)
    plan = planning.solve_with_host(profile, budget_bytes=int({share} * whole), host=host)
    loss, model = recipe.make_loss("cuda")
    planning.apply(model, plan)
    step = lambda: loss().backward()
    step()
    report = memory.measure(step, model=model)
    pinned = lambda: torch.cuda.host_memory_stats()["active_bytes.allocated"]
    before = pinned()
    step()
    seen = report.counted_bytes, report.requested_bytes
    print("SEEN", plan.peak_bytes, *(int(peak - report.baseline_bytes) for peak in seen))
    print("SEEN", plan.host_bytes, pinned() - before)
"""


@pytest.mark.parametrize(
    ("name", "batch", "precision", "share"),
    [
        ("gpt2", 8, "bf16", 0.6),
        # under autocast, whose cache would hold the casts of weights that wait on the host
        pytest.param("vit-b-16", 32, "bf16-amp", 0.6, marks=pytest.mark.weekly),
        # the peak lies in a backward of attention, with what its kernel needs by itself
        pytest.param("vit-b-16", 32, "bf16-amp", 0.8, marks=pytest.mark.weekly),
        pytest.param("gpt2-medium", 4, "fp32", 0.5, marks=pytest.mark.weekly),
    ],
)
def test_a_plan_with_a_host_keeps_to_its_bytes_on_the_card_and_in_pinned_memory(
    succeed, name, batch, precision, share
):
    _, said = succeed(MOVES.format(name=name, batch=batch, precision=precision, share=share))
    lines = [line.split()[1:] for line in said.splitlines() if line.startswith("SEEN")]
    (planned, counted, requested), (on_host, pinned) = [map(float, line) for line in lines]
    # what kernels take for themselves is requested, not counted, and so are cuBLAS's workspaces
    assert counted / 1.01 <= planned <= 1.01 * requested
    assert requested <= 1.01 * planned + 65 * MIB
    assert on_host <= pinned <= 1.01 * on_host + 32 * MIB


YOUR_RUN = """
    import sys
    sys.path.append("{folder}")
    import torch, states, train, your_run
    from tutorial_lib import memory

    vars(train).update(states.functions_after("{chapter}"))
    with torch.device("cuda"):
        step, model, optimizer = your_run.make_step()
        report = memory.measure(step, model=model, optimizer=optimizer)
    print("SEEN", int(report.counted_bytes), int(report.requested_bytes))
"""


@pytest.mark.weekly
@pytest.mark.parametrize("chapter", ["02", "05", "06c", "07", "09", "10d", "14"])
def test_the_bars_of_the_run_are_within_a_percent_of_the_emulated_cards(succeed, chapter):
    folder = Path(__file__).parents[1] / "course/train"
    _, said = succeed(YOUR_RUN.format(folder=folder, chapter=chapter))
    bars = json.loads((folder / "bars.json").read_text(encoding="utf-8"))
    predicted = sum(bars[chapter]["at_peak"].values())
    (seen,) = (line.split()[1:] for line in said.splitlines() if line.startswith("SEEN"))
    assert [int(peak) for peak in seen] == pytest.approx(2 * [predicted], rel=0.01)


@pytest.mark.parametrize("segments", ["expandable_segments:True", "expandable_segments:False"])
def test_out_of_memory_is_pytorchs_own(emulate, segments, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", segments)
    status, _, said = emulate(
        "import torch\nx = torch.empty(3 * 2**30, device='cuda')", "--memory", "8GiB", card="t4"
    )
    assert status == run.OUT_OF_MEMORY, said
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB" in said
    assert "total capacity of 8.00 GiB" in said


# What a CUDA build saves, to be compared with what `memory.predicting` says that it saves. They
# are the rules of memory/kernels.py, memory/autocast.py and memory/corrections.py.
SAVED = """
import torch
from torch import nn
from torch.nn import functional as F
from tutorial_lib import memory

HALF = torch.bfloat16

def autocast(dtype, function, *arguments):
    with torch.autocast("cuda", dtype=dtype):
        return function(*arguments)

def cases(device):
    def x(*shape, dtype=torch.float32):
        return torch.ones(*shape, device=device, dtype=dtype, requires_grad=True)

    q, narrow = x(2, 4, 64, 16), x(2, 4, 64, 12, dtype=HALF)
    half = x(2, 4, 64, 16, dtype=HALF)
    mask = torch.ones(64, 64, device=device, dtype=torch.bool)
    rows, images = x(8, 32, dtype=HALF), x(2, 8, 4, 4, dtype=HALF)
    attend = F.scaled_dot_product_attention
    yield "dropout", lambda: F.dropout(x(100), 0.5)
    yield "dropout in place", lambda: F.dropout(x(100) * 1, 0.5, inplace=True)
    wide = x(2, 4, 64, 10)
    yield "attention, written out", lambda: attend(wide, wide, wide, mask, 0.1)
    yield "attention, float32", lambda: attend(q, q, q)
    yield "attention, bfloat16", lambda: attend(half, half, half, is_causal=True)
    yield "attention, dropout", lambda: attend(half, half, half, dropout_p=0.1)
    yield "attention, narrow", lambda: attend(narrow, narrow, narrow)
    yield "attention, mask", lambda: attend(half, half, half, attn_mask=mask)
    yield "attention, autocast", lambda: autocast(HALF, attend, q * 2, q * 3, q)
    odd, bias = x(2, 4, 49, 16), x(1, 4, 49, 49)
    yield "attention, unaligned mask", lambda: attend(odd, odd, odd, attn_mask=bias * 1)
    yield "attention, mask, autocast", lambda: autocast(HALF, attend, odd * 2, odd * 3, odd, bias)
    weight, channels = x(32, dtype=HALF), x(8, dtype=HALF)
    yield "rms_norm", lambda: F.rms_norm(rows, (32,), weight, 1e-6)
    yield "rms_norm, mixed", lambda: F.rms_norm(rows, (32,), weight.float(), 1e-6)
    yield "layer_norm", lambda: F.layer_norm(rows, (32,), weight, weight)
    yield "group_norm", lambda: F.group_norm(images, 4, channels, channels)
    yield "batch_norm, plain", lambda: F.batch_norm(images, None, None, training=True)
    for dtype in (HALF, torch.float32):
        layer = nn.BatchNorm2d(8, dtype=dtype, device=device)
        yield f"batch_norm, {dtype}", lambda layer=layer: layer(images)
        yield f"batch_norm, {dtype}, float32", lambda layer=layer: layer.float()(images.float())
    yield "softmax", lambda: autocast(torch.float16, torch.softmax, rows.half(), -1)
    yield "layer_norm, autocast", lambda: autocast(HALF, F.layer_norm, rows, (32,))
    yield "upsample, autocast", lambda: autocast(HALF, F.interpolate, images, None, 2)
    yield "cross entropy, autocast", lambda: autocast(HALF, F.cross_entropy, rows, rows)
    for kind in (nn.LSTMCell, nn.GRUCell):
        for bias in (True, False):
            cell = kind(32, 24, bias, device=device)
            yield f"{kind}, {bias}", lambda cell=cell: cell(rows.float())
            yield f"{kind}, {bias}, autocast", lambda cell=cell: autocast(HALF, cell, rows)
    yield "mse_loss", lambda: F.mse_loss(q, q.detach()) * q.sum()

def saved(device):
    rows = {name: memory.saved(forward).rows for name, forward in cases(device)}
    return {n: sorted([r.dtype, r.num_bytes] for r in rows[n] if r.num_bytes) for n in rows}
"""


def test_predicted_kernels_save_what_a_cuda_build_saves(succeed, tmp_path):
    out = tmp_path / "saved.json"
    script = f"import json\n{SAVED}\nopen({str(out)!r}, 'w').write(json.dumps(saved('cuda')))"
    succeed(script)
    names = {}
    exec(SAVED, names)
    with memory.predicting("cuda"):
        predicted = names["saved"]("cpu")
    assert predicted == json.loads(out.read_text())


@pytest.mark.parametrize(
    "lines",
    [
        "print()\nif float(loss) < 3: pass",
        "print()\nassert loss.cpu() < 3",
        "print()\nwhile loss.item() > 3: pass",
    ],
)
def test_a_line_that_decides_by_a_loss_is_named(succeed, lines):
    loss = "import torch\nloss = torch.randn(3, device='cuda').mean()\n"
    processes, _ = succeed(loss + lines)
    (line,) = processes[0]["unknown_reads"]
    assert line.endswith("script.py:4 in <module>")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g): x + x", "asked for a CUDA graph"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("torch.zeros(3, device='cuda:1')", "there is one emulated card, number 0"),
        (
            "import torch.distributed as dist\n"
            "store = dist.HashStore()\n"
            "dist.init_process_group('nccl', store=store, rank=0, world_size=1)\n"
            "dist.all_reduce(x)",
            "asked for NCCL, which cannot be emulated",
        ),
    ],
)
def test_what_cannot_be_emulated_says_so(emulate, script, message):
    status, _, said = emulate(f"import torch\nx = torch.ones(3, device='cuda')\n{script}")
    assert status != 0
    assert message in said


def test_a_trainer_runs_and_the_peak_names_its_line(succeed):
    script = """
        import torch, transformers
        config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=64, use_cache=False)
        tokens = torch.randint(0, 50257, (16, 128))
        data = [{"input_ids": row, "labels": row} for row in tokens]
        arguments = transformers.TrainingArguments(
            "out", per_device_train_batch_size=4, report_to=[], bf16=True, save_strategy="no",
            eval_strategy="epoch", num_train_epochs=1
        )
        model = transformers.GPT2LMHeadModel(config)
        sets = {"train_dataset": data, "eval_dataset": data[:8]}
        transformers.Trainer(model, arguments, **sets).train()  # evaluation reads a shape back
    """
    (process,), _ = succeed(script)
    assert process["updates"] == 4
    (line,) = process["unknown_reads"]
    assert "in _run_epoch" in line  # whether a loss is NaN
    assert process["moment"]["line"].startswith("transformers/")


# A card that has kernels for 8 bits keeps 32 MiB for each thread that multiplies.
@pytest.mark.parametrize(
    ("name", "card", "workspaces"),
    [
        *((name, "a100", 2 * 8.125) for name in ("grpo", "tiles", "delayed_fp8", "video")),
        *((name, "a100", 2 * 8.125) for name in ("fsdp2", "ring")),
        *[("video_decoder", "a100", 0), ("fp8", "h100", 64), ("mixture", "a100", None)],
    ],
)
def test_a_recipe_of_2026_takes_what_is_predicted_or_is_refused_by_name(
    emulate, name, card, workspaces, monkeypatch
):
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1")  # as 2.13 does
    script = f"""
        import sys, torch
        sys.path.insert(0, {str(ROOT / "tests")!r})
        import recipes_of_2026 as recipes
        from tutorial_lib.instruments import ranks

        torch.set_default_device("cuda")
        with ranks.pretend(4):
            loss, model = recipes.make_{name}(2)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(3):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
    """
    status, result, said = emulate(script, card=card)
    if workspaces is None:  # how many tokens an expert gets decides the shapes
        assert status == 2
        assert "read by these lines, but unknown here" in said
        assert "tests/recipes_of_2026.py" in said
        return
    assert status == 0, said
    recipes = pytest.importorskip("recipes_of_2026")

    def make_step():
        loss, model = getattr(recipes, f"make_{name}")(2)
        optimizer = SGD(model.parameters(), 0.1)

        def step():
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        return step, model, optimizer

    with ranks.pretend(4):
        predicted = memory.predict(make_step, release=version("torch")[:4]).peak_bytes
    kept = 0 if TRANSIENT_WORKSPACES else workspaces * MIB
    seen = result["processes"][0]["peaks"]["requested"] - kept
    assert seen == pytest.approx(predicted, abs=32 * 1024)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("1 / x.sin().sum().item()", 2),
        ("open(f'/no/such/file{x.sin().any()}')", 1),  # whatever the values are
        ("raise ValueError('nothing was read')", 1),
        ("int(x.sin().sum()); x + torch.ones(3)", 1),  # one on the card, one on the host
        ("sys.exit(int(x.sin().sum()) + 5)", 5),
    ],
)
def test_a_script_that_needs_values_is_told_apart(emulate, end, status):
    ended, _, said = emulate(f"import sys, torch\nx = torch.randn(3, device='cuda')\n{end}")
    assert ended == status, said
    assert ("read values that no kernel has made, got zeros" in said) == (status == 2)


# ---- the GPU cells of notebooks ----
