"""Runs each docs/recipes/NAME.py once before its page is read.

What it prints is _generated/recipes/NAME.txt and its picture NAME.png. gallery.md has all pictures, each with the title
of its page and the first line of the file's docstring.
"""

import ast
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import gumtrace

LIMIT = 300.0  # seconds for one recipe; each should take about ten, and the machine may be busy
AT_ONCE = 2
LIBRARY = Path(gumtrace.__file__).parent

CARD = """:::{{figure}} /_generated/recipes/{name}.png
:target: {name}.html
:alt: {alt}

**[{title}]({name}.md)** {summary}
:::
"""


def run(recipe: Path, out: Path) -> None:
    """The recipe with its defaults, unless what it made is newer than itself and the library."""
    picture, printed = out / f"{recipe.stem}.png", out / f"{recipe.stem}.txt"
    if picture.exists() and printed.exists() and printed.stat().st_mtime > changed(recipe):
        return
    picture.unlink(missing_ok=True)
    command = [sys.executable, str(recipe), "--out", str(picture)]
    threads = {"OMP_NUM_THREADS": "1"}  # small tensors: more threads would only wait for each other
    try:
        ran = subprocess.run(command, cwd=out, env=os.environ | threads, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise ExtensionError(f"{recipe} took more than {LIMIT:.0f} seconds") from None
    if ran.returncode != 0 or not picture.exists():
        raise ExtensionError(f"{recipe} failed with status {ran.returncode}, or drew nothing:\n{ran.stderr}")
    printed.write_text(ran.stdout, encoding="utf-8")


def changed(recipe: Path) -> float:
    return max(path.stat().st_mtime for path in (recipe, *LIBRARY.rglob("*.py")))


def card(recipe: Path) -> str:
    """The picture of a recipe, with a title and a line below."""
    page = recipe.with_suffix(".md").read_text(encoding="utf-8")
    title = next(line for line in page.splitlines() if line.startswith("# ")).removeprefix("# ")
    summary = (ast.get_docstring(ast.parse(recipe.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    return CARD.format(name=recipe.stem, title=title, alt=title, summary=summary)


def make(app: Sphinx) -> None:
    recipes = sorted((Path(app.srcdir) / "recipes").glob("*.py"))
    out = Path(app.srcdir) / "_generated" / "recipes"
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda recipe: run(recipe, out), recipes))
    cards = "\n".join(card(recipe) for recipe in recipes)
    (out / "gallery.md").write_text(f"::::{{container}} gallery\n{cards}::::\n", encoding="utf-8")


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", make)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
