"""Generated functions that stand for those which PyTorch's libraries import of CUDA."""

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

# NCCL, NVRTC and cuFile stay NVIDIA's own: none of them is called while a model trains.
_STOOD_IN = re.compile(r"(?:__cuda|cuda|cublas|cudnn|cusolver|cusparse|cufft|cupti|cu[A-Z])\w*")
_LEFT_ALONE = "cuFile"
_MAKES_A_HANDLE = re.compile(r"(?:cublas|cudnn|cusolver|cusparse)\w*[Cc]reate")
_ASKS_A_SIZE = re.compile(
    r"(?:cublas|cudnn|cusolver|cusparse)\w*(?:bufferSize|WorkspaceSize|SpaceSize)"
)
_SIZE_POINTER = re.compile(r"(int|size_t|int64_t)\s*\*\s*\w*(?:size|work|bytes)\w*", re.IGNORECASE)


def imported_symbols(libraries: Iterable[Path]) -> set[str]:
    """Read which functions of CUDA's libraries these shared objects take from elsewhere.

    Raises:
        ValueError: When a file is no shared object.
    """
    names = {name for path in libraries for name in _symbols(path, "-D", "--undefined-only")}
    return {
        name for name in names if _STOOD_IN.fullmatch(name) and not name.startswith(_LEFT_ALONE)
    }


def named_functions(library: Path) -> set[str]:
    """Read which functions of CUDA's driver a shared object may look up by their names."""
    found = re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", library.read_bytes())
    return {name.decode() for name in found}


def defined_symbols(objects: Iterable[Path]) -> set[str]:
    """Read which symbols these object files define."""
    return {name for path in objects for name in _symbols(path, "--defined-only")}


def _symbols(path: Path, *options: str) -> list[str]:
    done = subprocess.run(["nm", *options, path], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{path} holds no symbols that `nm` can read: is it a shared library?")
    return [line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line.strip()]


def write_stubs(names: Iterable[str], headers: str = "") -> str:
    """Write C functions that answer 0, which is success in all of these libraries.

    What creates a handle or a descriptor gives a block of zeros. What asks for a size gets 0
    bytes, where the text of the libraries' headers declares the function.
    """
    headers = re.sub(r"/\*.*?\*/", "", headers, flags=re.DOTALL)
    lines = ["#include <stddef.h>", "#include <stdint.h>", "void *new_handle(void);"]
    for name in sorted(names):
        arguments, body = "void", ""
        if _MAKES_A_HANDLE.match(name):
            arguments, body = "void **handle", "*handle = new_handle(); "
        elif _ASKS_A_SIZE.match(name):
            found = re.search(rf"\b{name}\s*\(([^;{{)]*)\)", headers)
            arguments, body = _sizes(found[1].split(",") if found else [])
        lines.append(f"long {name}({arguments}) {{ {body}return 0; }}")
    return "\n".join(lines) + "\n"


def _sizes(declared: Sequence[str]) -> tuple[str, str]:
    """Return the arguments of a stub, and the statements that set each size among them to 0."""
    arguments, body = [], ""
    for number, text in enumerate(declared):
        size = _SIZE_POINTER.search(text)
        kind = f"{size[1]} *" if size and "const" not in text else "long "
        arguments.append(f"{kind}a{number}")
        body += f"*a{number} = 0; " if kind != "long " else ""
    return ", ".join(arguments) or "void", body
