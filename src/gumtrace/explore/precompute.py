"""The explorer without a server: its files and a few recorded runs, to be put on any web site.

`python -m gumtrace.explore.precompute FOLDER` writes them. A page then needs

    <link rel="stylesheet" href="FOLDER/explorer.css">
    <section class="gx" data-runs="FOLDER/" data-structure="subset"></section>
    <script type="module" src="FOLDER/embed.js"></script>
"""

import json
import sys
from pathlib import Path
from typing import Any

from gumtrace.explore.answers import answer, catalogue
from gumtrace.explore.requests import STORIES, read
from gumtrace.explore.server import page_files

RUNS = 4  # of each structure, from different noise
REDRAWS = 3  # of the noise given the trace, for each run
OF_THE_PAGE = {"index.html", "main.js", "address.js", "icon.svg"}  # what only the server's page needs


def write(folder: Path) -> None:
    """Writes the files into a folder, which is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in page_files().items():
        if name not in OF_THE_PAGE:
            (folder / name).write_bytes(contents)
    _write_json(folder / "catalogue.json", catalogue())
    for name, story in STORIES.items():
        runs = [_recorded(name, story.first + i) for i in range(RUNS)]
        _write_json(folder / f"{name}.json", {"runs": runs})


def _recorded(structure: str, seed: int) -> dict[str, Any]:
    asked = {"structure": structure, "seed": seed}
    redraws = [answer(read({**asked, "redraw": i + 1}))["noise"] for i in range(REDRAWS)]
    return {"run": answer(read(asked)), "redraws": redraws}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m gumtrace.explore.precompute FOLDER")
    write(Path(sys.argv[1]))
