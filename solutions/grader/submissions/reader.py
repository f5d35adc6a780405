"""The reader of one submission: its answers, and findings in them, without running them.

What JSON holds can take thirty times its bytes in memory, and parsing hostile text can end the
process that does it. So a server that knows the lab forks a process for each file, which limits its
own memory and time. It writes the answers in JSON, before they are inspected and once more behind
it. If it ends in between, the first line is judged.
"""

import contextlib
import dataclasses
import functools
import gc
import io
import json
import pickle
import re
import secrets
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from solutions.grader import NotGradable, words
from solutions.grader.lab import Lab, read_cells, read_script
from solutions.grader.launch import Server, open_server, run_directory, serve_forks, take_order
from solutions.grader.submissions.answers import NOT_PYTHON, Answers, match_answers, plain_answers
from solutions.grader.submissions.class_folder import MAX_BYTES
from solutions.grader.submissions.inspect_submission import Course, inspect_submission

MEMORY_BYTES, _CPU_SECONDS = 256 * 1024**2, 20
_CLOCK_SECONDS = 120  # for a machine that is busy
_MOST_CELLS, _MOST_CHARACTERS = 5_000, 4_000_000


@contextlib.contextmanager
def open_reader(lab: Lab) -> Iterator[Callable[[bytes], Answers]]:
    """Yield what reads one submitted file, in a process of its own with little memory and time.

    It raises NotGradable when nothing in the file can be judged; any thread may call it.
    """
    with run_directory() as place:
        (place / "lab").write_bytes(pickle.dumps(lab))
        order = {"import_path": [], "lab": str(place / "lab")}
        with open_server("submissions.reader", place, order) as server:
            yield functools.partial(_ask, server, place)


def read_submission(lab: Lab, content: bytes) -> Answers:
    """Read one file as `open_reader` does, with a server of its own."""
    with open_reader(lab) as read:
        return read(content)


def _ask(server: Server, place: Path, content: bytes) -> Answers:
    file = place / secrets.token_hex(8)
    file.write_bytes(content)
    done, out = server.run(file, _CLOCK_SECONDS), file.with_suffix(".json")
    said, _, inspected = (out.read_text("utf-8") if done and out.exists() else "").partition("\n")
    file.unlink()
    if not said:
        raise NotGradable("unreadable", words("slow"))
    facts: dict[str, Any] = json.loads(said)
    if "status" in facts:
        raise NotGradable(facts["status"], facts["reason"])
    with contextlib.suppress(ValueError):
        return Answers(**json.loads(inspected))
    reason = (1, NOT_PYTHON, "parsing these cells ends the process that does it")
    answers = Answers(**facts)
    return dataclasses.replace(answers, findings={number: [reason] for number in answers.cells()})


def _unpacked(content: bytes) -> bytes:
    """Take the one notebook, or else the one script, out of an archive."""
    if not content.startswith(b"PK"):
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = [name for name in archive.namelist() if not re.search(r"(^|/)(\.|__MACOSX)", name)]
        scripts = [name for name in files if name.lower().endswith(".py")]
        found = [name for name in files if name.lower().endswith(".ipynb")] or scripts
        if len(found) == 1:
            if archive.getinfo(found[0]).file_size > MAX_BYTES:
                raise NotGradable("too large", words("large archive"))
            return archive.open(found[0]).read(MAX_BYTES)
    raise NotGradable("no notebook found", words("archive", count=len(found) or "no"))


def _read(lab: Lab, content: bytes) -> Answers:
    try:
        content = _unpacked(content).removeprefix(b"\xef\xbb\xbf")
        # bytes, not text: json then accepts a byte order mark, and UTF-16 by its zeros
        is_script = content.lstrip()[:1] not in b"{[\xef\xff\xfe" and b"# exercise" in content
        cells = read_script(content) if is_script else read_cells(json.loads(content))
    except (ValueError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        said = words("unreadable", wrong=_what_is_wrong(content, error))
        raise NotGradable("unreadable", said) from error
    total = sum(len(cell.source) for cell in cells[:_MOST_CELLS] if not cell.is_too_long)
    if len(cells) > _MOST_CELLS or total > _MOST_CHARACTERS:
        facts = {"total": total, "cells": _MOST_CELLS, "characters": _MOST_CHARACTERS}
        raise NotGradable("too large", words("many cells", count=len(cells), **facts))
    return match_answers(lab, cells)


def _what_is_wrong(content: bytes, error: BaseException) -> str:
    if not content.strip(b"\0 \t\r\n"):
        return "is empty"
    before, marker, _ = content.partition(b"\n<<<<<<< ")
    if marker:
        line = before.count(b"\n") + 2
        return f"holds two versions at once (a git conflict mark is in line {line})"
    if content.startswith(b"PK"):
        return "is an archive that is damaged, or has a password"
    if isinstance(error, MemoryError):
        return "takes too much memory to read"
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return f"is not in UTF-8 (byte 0x{byte:02x} at position {error.start})"
    if b"\0" in content:
        return f"is damaged (a zero byte at position {content.index(0)})"
    if isinstance(error, json.JSONDecodeError):
        return f"is not valid JSON (line {error.lineno}, column {error.colno})"
    return "is not valid JSON"


def serve() -> None:
    """Prepare what is the same for all files of a class, then fork a reader for each."""
    channel, order = take_order()
    course = Course(pickle.loads(Path(order["lab"]).read_bytes()))  # the grader's own
    solution = {number: one.reference for number, one in course.lab.answers.items()}
    inspect_submission(course, plain_answers(course.lab, solution))  # what it has parsed is kept
    serve_forks(channel, True, lambda file: _be_reader(file, course))


def _be_reader(file: Path, course: Course) -> None:
    # ended by the system where too much memory or time would be taken
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    gc.disable()  # JSON holds no circles, and looking for them takes seconds
    with file.with_suffix(".json").open("w", encoding="utf-8") as out:
        try:
            answers = _read(course.lab, file.read_bytes())
        except NotGradable as finding:
            print(json.dumps(vars(finding)), file=out)
        else:
            print(json.dumps(dataclasses.asdict(answers)), file=out, flush=True)
            inspected = inspect_submission(course, answers)
            print(json.dumps(dataclasses.asdict(inspected)), file=out)
