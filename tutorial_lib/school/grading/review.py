"""Words in an answer that could lead to a check's own result: a person reads what uses one."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from tutorial_lib.school.grading.cells import MOST_CHARACTERS
from tutorial_lib.school.grading.needs import possible_names

# Ways to the oracles, which stand in the library and can be called in a student's own process.
# No list is complete, and an honest answer may be on it: a person reads what uses one.
_UNUSUAL = {
    *("checks", "StorageLog", "TorchDispatchMode", "mock", "importlib", "import_module"),
    *("runpy", "pkgutil", "resolve_name", "inspect", "traceback", "ctypes", "builtins"),
    *("__import__", "__builtins__", "exec"),
    *("_getframe", "currentframe", "f_back", "f_locals", "f_globals", "__globals__"),
    *("__closure__", "__subclasses__", "get_objects", "get_referrers", "settrace", "setprofile"),
}
_UNUSUAL_ALONE = {"eval", "compile"}  # but not model.eval() and torch.compile(model)
_F_STRING = re.compile(r"[rR]?[fF]")


def unusual_words(source: str) -> set[str]:
    """List the words of an answer that few answers need; prose in comments and strings is none.

    A text that is too long is not looked through, and its length is listed.
    """
    if len(source) > MOST_CHARACTERS:
        return {f"more than {MOST_CHARACTERS:,} characters"}
    try:
        tokens = list(_names(source))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return possible_names(source) & (_UNUSUAL | _UNUSUAL_ALONE)
    names = {name for name, _, _ in tokens}
    found = names & _UNUSUAL
    found |= {name for name, before, _ in tokens if name in _UNUSUAL_ALONE and before != "."}
    # sys.modules is a dictionary; the modules of a model are what a method returns
    if "sys" in names and any(
        name == "modules" and before in (".", "import", "") and after != "("
        for name, before, after in tokens
    ):
        found.add("sys.modules")
    return found


def _names(source: str) -> Iterator[tuple[str, str, str]]:
    """Give each name of a source with what stands before and behind it; both empty in a string."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    read = tokenize.generate_tokens(io.StringIO(source).readline)
    # not the tokens themselves: in Python 3.12 each has a copy of its whole line
    tokens = [(token.type, token.string) for token in read if token.type not in skipped]
    texts = ["", *(text for _, text in tokens), ""]
    for before, (kind, text), after in zip(texts, tokens, texts[2:], strict=False):
        if kind == tokenize.NAME:
            yield text, before, after
        elif kind == tokenize.STRING:
            yield from ((name, "", "") for name in _names_in_string(text))


def _names_in_string(text: str) -> set[str]:
    """List what a string may name: all words between braces, and "a.name" that is all of it."""
    if _F_STRING.match(text):
        return possible_names(text[text.find("{") : text.rfind("}")])
    return set() if re.search(r"\s", text) else possible_names(text) - _UNUSUAL_ALONE
