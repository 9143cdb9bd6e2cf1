"""Docstrings are plain text with `code` in backticks: a * or a | in them is itself, and starts no markup."""

import re

from sphinx.application import Sphinx

_CODE = re.compile(r"(`+[^`]+`+)")


def escape(text: str) -> str:
    r"""Outside of backticks, (*B, d) becomes (\*B, d)."""
    parts = _CODE.split(text)
    return "".join(part if part.startswith("`") else re.sub(r"([*|\\])", r"\\\1", part) for part in parts)


def process(app: Sphinx, what: str, name: str, obj, options, lines: list[str]) -> None:
    example = False  # up to the next blank line
    for i, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example:
            lines[i] = escape(line)
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # or napoleon would take what stands before a colon in the first line for a type


def setup(app: Sphinx) -> dict:
    app.connect("autodoc-process-docstring", process, priority=100)  # before napoleon reads its sections
    return {"parallel_read_safe": True, "parallel_write_safe": True}
