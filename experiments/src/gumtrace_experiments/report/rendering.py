"""Tables as text: for a terminal, for a file, for the documentation."""

from collections.abc import Sequence
from html import escape

from gumtrace_experiments.report.tables import Table

_LEFT = 2  # columns that are words: the estimator, and whose row it is


def markdown(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """The notes on all of them first, then each table below a heading of its own, or folded."""
    parts = [" ".join(notes)]
    for table in tables:
        lines = [_line(table.head), "|" + "|".join(["---"] * _LEFT + ["---:"] * (len(table.head) - _LEFT)) + "|"]
        lines += [_line([f"**{cell.text}**" if cell.bold else cell.text for cell in row]) for row in table.rows]
        body = "\n\n".join(["\n".join(lines), *([" ".join(table.notes)] if table.notes else [])])
        title = table.title[:1].upper() + table.title[1:]
        parts.append(folded(title, body) if table.folded else f"### {title}\n\n{body}")
    return "\n\n".join(parts) + "\n"


def folded(title: str, body: str) -> str:
    """Markdown of which a page shows the title alone until a reader opens it.

    >>> folded("More", "of it")
    '<details><summary>More</summary>\\n\\nof it\\n\\n</details>'
    """
    return f"<details><summary>{escape(title, quote=False)}</summary>\n\n{body}\n\n</details>"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plain(tables: Sequence[Table], notes: Sequence[str]) -> str:
    parts = []
    for table in tables:
        rows = [table.head, *([cell.text for cell in row] for row in table.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(_padded(row, widths)).rstrip() for row in rows]
        parts.append("\n".join([table.title, *lines, *table.notes]))
    return "\n\n".join([*parts, "\n".join(notes)]) + "\n"


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    pairs = zip(row, widths, strict=True)
    return [cell.ljust(width) if i < _LEFT else cell.rjust(width) for i, (cell, width) in enumerate(pairs)]


def show(tables: Sequence[Table], notes: Sequence[str]) -> None:
    """Prints them, with rich where it is installed."""
    try:
        from rich.console import Console
    except ImportError:
        print(plain(tables, notes), end="")
        return
    drawn = [_rich(table) for table in tables]
    console = Console()
    wide = console.options.update(max_width=1000)
    needed = max((console.measure(table, options=wide).maximum for table in drawn), default=0)
    console = Console(width=max(console.width, needed), highlight=False, markup=False)  # nothing is cut off
    for table, about in zip(drawn, tables, strict=True):
        console.print(table)
        for note in about.notes:
            console.print(f"  {note}", style="dim")
        console.print()
    for note in notes:
        console.print(f"  {note}", style="dim")


def _rich(table: Table):
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    out = RichTable(title=Text(table.title, "bold"), title_justify="left", box=SIMPLE_HEAD)
    for i, name in enumerate(table.head):
        out.add_column(name, justify="left" if i < _LEFT else "right", no_wrap=True)
    for row in table.rows:
        out.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in row))
    return out
