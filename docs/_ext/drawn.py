"""Draws the pictures and writes the tables of docs/figures.py before the pages that show them are read."""

from pathlib import Path

import figures
from sphinx.application import Sphinx


def draw(app: Sphinx) -> None:
    out = Path(app.srcdir) / "_generated"
    figures.draw(out / "figures")
    figures.tables(out / "tables")


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
