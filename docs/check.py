"""Checks of the built site: python docs/check.py docs/_build/html

Every link inside the site leads somewhere, its anchor included, wherever the folder is served. Nothing is loaded from
elsewhere. Every page shows the version. And a reader who runs the start page and the page on own structures, block by
block as they are shown, sees what they say.
"""

import contextlib
import io
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

READ = {"start.html": 60.0, "custom.html": 120.0}  # seconds that a reader may have to wait
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
NOT_FETCHED = {"canonical", "next", "prev", "search", "index", "author"}  # rel of links that only name a page


class Page(HTMLParser):
    """The links and anchors of a page, and its executed blocks with what they printed."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {""}
        self.cells: list[tuple[str, str]] = []  # code, output
        self._open: list[tuple[str, str]] = []  # tag and class of the elements around
        self._pre: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.loads += [
            found[name]
            for kind, name in LOADED
            if kind == tag and name in found and found.get("rel") not in NOT_FETCHED
        ]
        if tag == "pre":
            self._pre = []
        if tag in ("div", "details", "pre"):
            self._open.append((tag, found.get("class", "")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("div", "details", "pre"):
            self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        if self._pre is not None:
            self._pre.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre" and self._pre is not None:
            self._keep("".join(self._pre))
            self._pre = None
        if self._open and self._open[-1][0] == tag:
            self._open.pop()

    def _keep(self, text: str) -> None:
        around = " ".join(classes for _, classes in self._open)
        if "cell_input" in around:
            self.cells.append((text, ""))
        elif "cell_output" in around and "text_plain" not in around:  # not the repr of a last expression
            code, output = self.cells[-1]
            self.cells[-1] = (code, output + text)


def broken_links(site: Path) -> Iterator[str]:
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file():
                yield f"{where}: {link} leads to no file"
            elif target in pages and unquote(url.fragment) not in pages[target].anchors:
                yield f"{where}: {link} leads to no anchor of {target.relative_to(site.resolve())}"
        for file in page.loads:
            url = urlsplit(file)
            if url.scheme == "data":
                continue
            if url.scheme or url.netloc:
                yield f"{where}: loads {file} from elsewhere"
            elif not (path.parent / unquote(url.path)).is_file():
                yield f"{where}: loads {file}, which is not there"


def unversioned(site: Path) -> Iterator[str]:
    """Pages whose navigation does not begin with the version."""
    import gumtrace

    brand = f'sidebar-brand-text">gumtrace {gumtrace.__version__}</'
    for path in sorted(site.rglob("*.html")):
        where = path.relative_to(site)
        if where.parts[0] != "_static" and brand not in path.read_text(encoding="utf-8"):
            yield f"{where}: does not show version {gumtrace.__version__}"


def misread(path: Path, limit: float) -> Iterator[str]:
    """What a reader sees who runs the blocks of a page in turn."""
    cells = Page(path.read_text(encoding="utf-8")).cells
    if not cells:
        yield f"{path.name}: no executed blocks were found"
    names: dict = {"__name__": "__main__"}
    start = time.perf_counter()
    for number, (code, shown) in enumerate(cells, 1):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"{path.name}, block {number}", "exec"), names)
        if out.getvalue().strip() != shown.strip():
            yield f"{path.name}, block {number} prints\n{out.getvalue()}\nwhere the page shows\n{shown}"
    seconds = time.perf_counter() - start
    if seconds > limit:
        yield f"{path.name} takes {seconds:.0f} s to run, more than {limit:.0f}"
    print(f"{path.name}: {len(cells)} blocks, run again in {seconds:.0f} s")


def main(site: Path) -> int:
    import matplotlib as mpl

    mpl.use("agg")  # pictures are drawn and not shown
    problems = [*broken_links(site), *unversioned(site)]
    for name, limit in READ.items():
        problems += misread(site / name, limit)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
