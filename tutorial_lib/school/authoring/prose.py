"""Rules for Markdown cells, so that they read the same in every viewer."""

import re
from collections.abc import Iterable

_FENCE = re.compile(
    r"^ *(`{3,}|~{3,})[^\n]*\n.*?(?:^ *\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_MERMAID = re.compile(r"^ *(?:`{3,}|~{3,}) *\{?mermaid", re.MULTILINE | re.IGNORECASE)
_ALERT = re.compile(r"^ *> *\[!(\w+)\]", re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}(#{1,6})(?:[ \t]|$)|<h([1-6])\b", re.MULTILINE | re.IGNORECASE)
_IMAGE = re.compile(r"!\[([^\]]*)\] ?[(\[]([^)\]]*)")
_IMG_TAG = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_ALT = re.compile(r"""\balt\s*=\s*(?:"\s*[^"\s][^"]*"|'\s*[^'\s][^']*')""", re.IGNORECASE)
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
            if next_level == 1 and level > 0:
                found.append(f"{where}: a second h1; a notebook has one title, use `##`.")
            elif next_level > level + 1:
                found.append(
                    f"{where}: heading level {next_level} follows level {level}; "
                    "no level may be skipped."
                )
            level = next_level
    return found


def _cell_problems(text: str) -> list[str]:
    found = []
    if _MERMAID.search(text):
        found.append("mermaid is blank outside JupyterLab; draw it with plots or commit an SVG.")
    alert = _ALERT.search(text)
    if alert:
        found.append(f'`> [!{alert[1]}]` shows as text; write `<div class="alert alert-info">`.')
    prose = _without_code(text)
    for alt, address in _IMAGE.findall(prose):
        if not alt.strip():
            found.append(f"image {address!r} has no alt text; say in words what it shows.")
    for tag in _IMG_TAG.findall(prose):
        if not _ALT.search(tag):
            found.append(f"{tag[:60]!r} has no alt text; say in words what it shows.")
    formula = _unbalanced_formula(prose)
    if formula is not None:
        found.append(f"a `$` stands alone near {formula!r}; close it, or write `\\$`.")
    return found


def _unbalanced_formula(prose: str) -> str | None:
    left = _DISPLAY_FORMULA.sub("", prose.replace("\\$", ""))
    for paragraph in re.split(r"\n\s*\n", left):
        if paragraph.count("$") % 2 or "$$" in paragraph:
            start = paragraph.rindex("$")
            return paragraph[max(0, start - 20) : start + 20].strip()
    return None


def _without_code(text: str) -> str:
    return _INLINE_CODE.sub("", _FENCE.sub("", text))
