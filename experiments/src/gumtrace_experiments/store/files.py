"""Files of text and bytes: written as a whole or not at all, read with an error that says where they are damaged."""

import json
import os
from pathlib import Path
from textwrap import shorten
from typing import Any

from gumtrace_experiments.store.validation import is_count, is_number_or_none

TEXTS = ("split", "moment")  # of a row of metrics: what is no number
GRADIENT = "gradient"  # the split of rows on the estimator's noise


class Damaged(Exception):
    """A file does not hold what it should. `where` is the file, and the line where there are several."""

    def __init__(self, where: str | Path, reason: str):
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = where, reason


class NotJSON(Damaged):
    """A file or a line is no JSON: damaged, or cut off while it was written."""


def write(path: Path, content: bytes) -> None:
    """All of it or nothing."""
    beside = path.with_name(f".{path.name}.part")
    beside.unlink(missing_ok=True)  # a killed process left it; or it is a link, and what that leads to is not ours
    with beside.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def parsed(content: bytes, where: str | Path) -> dict[str, Any]:
    """The JSON object that some bytes are."""
    try:
        body = json.loads(content.decode())
    except (ValueError, RecursionError) as error:  # no text, no JSON, a number of thousands of digits; too deep
        raise NotJSON(where, f"damaged, or not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Damaged(where, "not a JSON object")
    return body


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file. A last line that was cut off while being written has no end, and is left out."""
    *lines, rest = path.read_bytes().split(b"\n") if path.exists() else [b""]
    rows = [_row(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    try:
        return [*rows, _row(rest, f"{path}, line {len(rows) + 1}")] if rest else rows
    except NotJSON:
        return rows


def _row(line: bytes, where: str) -> dict[str, Any]:
    """It has an iteration, a split, and numbers; None is one that was not finite."""
    row = parsed(line, where)
    needed = {"iteration", "split", *(("moment", "std") if row.get("split") == GRADIENT else ())}
    kinds = all(isinstance(x, str) if name in TEXTS else is_number_or_none(x) for name, x in row.items())
    if not (needed <= row.keys() and kinds and is_count(row["iteration"])):
        text = json.dumps(row, separators=(",", ":"))
        raise Damaged(where, f"not a row of metrics: {shorten(text, 80, placeholder=' ...')}")
    return row
