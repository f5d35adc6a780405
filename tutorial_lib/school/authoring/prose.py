"""Rules for Markdown cells, so that they read the same in every viewer."""

import re
from collections.abc import Iterable, Iterator

_FENCE = re.compile(
    r"^ *(`{3,}|~{3,})[^\n]*\n.*?(?:^ *\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_MERMAID = re.compile(r"^ *(?:`{3,}|~{3,}) *\{?mermaid", re.MULTILINE | re.IGNORECASE)
_HEADING = re.compile(r"^ {0,3}(#{1,6})(?:[ \t]|$)|<h([1-6])\b", re.MULTILINE | re.IGNORECASE)
_NO_ALT = re.compile(
    r"""!\[\s*\] ?[(\[]|<img\b(?![^>]*\balt\s*=\s*["']\s*[^"'\s])[^>]*>""", re.IGNORECASE
)
_DISPLAY_FORMULA = re.compile(r"\$\$.+?\$\$", re.DOTALL)


def heading_levels(text: str) -> list[int]:
    """List the levels of the headings of a markdown text, code left aside."""
    return [len(marks) or int(tag) for marks, tag in _HEADING.findall(_without_code(text))]


def problems(texts: Iterable[tuple[str, str]]) -> list[str]:
    """List what is wrong with the markdown cells of one notebook.

    Args:
        texts: Where a cell stands (file, number, first line) and its text, in order.

    Returns:
        One sentence a problem; empty when the prose reads everywhere.
    """
    found: list[str] = []
    level = 0
    for where, text in texts:
        found += [f"{where}: {problem}" for problem in _cell_problems(text)]
        for next_level in heading_levels(text):
            if level and not 1 < next_level <= level + 1:
                found.append(
                    f"{where}: heading level {next_level} follows level {level}; "
                    "a notebook has one title, and no level may be skipped."
                )
            level = next_level
    return found


def _cell_problems(text: str) -> Iterator[str]:
    if _MERMAID.search(text):
        yield "mermaid is blank outside JupyterLab; draw it with plots or commit an SVG."
    prose = _without_code(text)
    for image in _NO_ALT.findall(prose):
        yield f"image {image[:60]!r} has no alt text; say in words what it shows."
    for paragraph in re.split(r"\n\s*\n", _DISPLAY_FORMULA.sub("", prose.replace("\\$", ""))):
        if paragraph.count("$") % 2 or "$$" in paragraph:
            yield f"a lone `$` in {paragraph[:60]!r}; close it, or write `\\$`."


def _without_code(text: str) -> str:
    return _INLINE_CODE.sub("", _FENCE.sub("", text))
