"""The library that stands in for CUDA: compiled once for each version of PyTorch.

Needs a C compiler and `nm`. NVIDIA's headers come with PyTorch's own wheels.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.instruments.emulated import stubs

SOURCES = Path(__file__).parent / "c"
LIBRARY, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
TRIED = ("2.13.", "2.14.", "2.15.")  # the PyTorch that this was tried with
_CUDA = ("12", "13")
ADVICE = "run `python -m tutorial_lib emulate --setup`, which makes .venv-cuda (about 6 GB)."
_IMPORTERS = (
    *("libtorch_cuda", "libc10_cuda", "libtorch_python", "libtorch_cuda_linalg"),
    *("libcaffe2_nvrtc", "libtorch_nvshmem", "libtorch_cpu"),
)
_OPTIONS = ("-O1", "-fPIC", "-w")


@dataclass(frozen=True)
class CudaTorch:
    """An installed PyTorch that was built for CUDA."""

    packages: Path  # the folder `site-packages` that holds it
    version: str  # as in `2.13.0+cu130`
    cuda: str = "13"  # the first number of its CUDA's version


def read_torch(packages: Path) -> CudaTorch:
    """Look at the PyTorch of a folder `site-packages`, without importing it.

    Raises:
        ValueError: When no PyTorch is there, or one that was not built for this CUDA.
    """
    path = packages / "torch" / "version.py"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    version = re.search(r"^__version__ = '(.+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda.*= '(.+)'", text, re.MULTILINE)
    if not version:
        raise ValueError(f"There is no PyTorch in {packages}: {ADVICE}")
    if not cuda:
        raise ValueError(f"PyTorch {version[1]} in {packages} was not built for CUDA: {ADVICE}")
    major = cuda[1].partition(".")[0]
    if major not in _CUDA:
        raise ValueError(
            f"PyTorch {version[1]} was built for CUDA {cuda[1]}, but only CUDA "
            f"{' and '.join(_CUDA)} can be emulated: {ADVICE}"
        )
    return CudaTorch(packages, version[1], major)


def check_system() -> None:
    """Refuse a system on which no library can replace CUDA's: all but Linux with 64 bits."""
    if sys.platform != "linux":
        name = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        advice = "use WSL 2" if sys.platform == "win32" else "use a Linux machine or container"
        raise ValueError(f"An emulated card needs Linux, but this is {name}: {advice}.")
    if platform.machine() not in ("x86_64", "aarch64"):
        raise ValueError(
            f"An emulated card needs an x86_64 or aarch64 processor, as PyTorch's CUDA build does, "
            f"but this one is {platform.machine()}: use another machine."
        )


def make_library(torch: CudaTorch) -> Path:
    """Make the library for a PyTorch, or find the one that was made before; return its folder.

    Raises:
        ValueError: When there is no compiler, or a library or a header is not as expected.
    """
    if not _cache().as_posix().isascii() or " " in str(_cache()):
        raise ValueError(
            f"The compiled library is kept in {_cache()}, but the loader takes no path with spaces "
            "or accents: set XDG_CACHE_HOME to a folder without them."
        )
    folder = _cache() / f"{torch.version}-{_fingerprint(torch)}"
    if (folder / NVML).exists():
        return folder
    compiler = _find_compiler()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{folder.parent} cannot be made ({error.strerror}), and the compiled library is kept "
            "there: set XDG_CACHE_HOME to a folder of your own."
        ) from error
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        _compile(compiler, torch, Path(made))
        _link(compiler, Path(made))
        with contextlib.suppress(OSError):  # another process was faster
            Path(made).rename(folder)
    return folder


def _compile(compiler: str, torch: CudaTorch, out: Path) -> None:
    """Compile our sources, and generated stubs for all else that PyTorch imports."""
    headers = sorted(torch.packages.glob("nvidia/*/include"))
    include = [f"-I{path}" for path in (SOURCES, *headers)]
    _run([compiler, *_OPTIONS, *include, "-c", *sorted(SOURCES.glob("*.c"))], out)
    libraries = [torch.packages / "torch/lib" / f"{name}.so" for name in _IMPORTERS]
    imported = stubs.imported_symbols(path for path in libraries if path.exists())
    if "cudaMalloc" not in imported:
        raise ValueError(
            f"PyTorch {torch.version} does not take `cudaMalloc` from a shared library, so nothing "
            "can replace it: use PyTorch's own wheel, as `emulate --setup` installs it."
        )
    imported |= stubs.named_functions(torch.packages / "torch/lib/libc10_cuda.so")
    triton = torch.packages / "triton/backends/nvidia/driver.c"  # it compiles this at run time
    if triton.is_file():
        text = triton.read_text(encoding="utf-8")  # it calls some, and looks others up by name
        imported |= {*re.findall(r"\bcu[A-Z]\w+(?=\(|\);)", text)}
    missing = imported - stubs.defined_symbols(out.glob("*.o"))
    names = ("cusolverDn.h", "cusparse.h", "cudnn_*.h")
    read = [path for folder in headers for name in names for path in sorted(folder.glob(name))]
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in read)
    source = stubs.write_stubs(missing, "\n".join(texts))
    (out / "stubs.c").write_text(source, encoding="utf-8")
    _run([compiler, *_OPTIONS, "-c", "stubs.c"], out)


def _link(compiler: str, out: Path) -> None:
    """Link the library under the driver's name, and an empty one under NVML's.

    NVML's functions are looked up in a library of its name, or in one that it needs: in ours.
    """
    shared = [compiler, "-shared", "-Wl,--no-as-needed"]
    objects = sorted(out.glob("*.o"))
    _run([*shared, f"-Wl,-soname,{LIBRARY}", "-o", LIBRARY, *objects, "-lpthread", "-ldl"], out)
    _run([*shared, f"-Wl,-soname,{NVML}", "-o", NVML, out / LIBRARY], out)


def _find_compiler() -> str:
    advice = "install gcc and binutils (Debian and Ubuntu: sudo apt install gcc)."
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise ValueError(f"No C compiler was found, but an emulated card needs one: {advice}")
    if shutil.which("nm") is None:
        raise ValueError(f"No `nm` was found, which reads what PyTorch imports: {advice}")
    return compiler


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tutorial_lib" / "emulated"


def _fingerprint(torch: CudaTorch) -> str:
    """Hash what the library depends on: our sources, and where PyTorch lies."""
    digest = hashlib.sha256(str(torch.packages).encode())
    for path in (*sorted(SOURCES.rglob("*.[ch]")), Path(stubs.__file__), Path(__file__)):
        digest.update(b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _run(command: list[object], folder: Path) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise ValueError(
            "The emulated card does not compile with this PyTorch and compiler, which say: "
            f"{errors[0].strip()}"
        )
