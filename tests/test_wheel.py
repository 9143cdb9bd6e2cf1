"""What the wheel holds, and how much of it: everybody who installs the library downloads all of it."""

import re
import tomllib
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 478_000  # bytes; a wheel that grows beyond needs a reason, and this line a change. The last: distinct samples,
# credit per decision, links of forests, losses (32 kB); subsets of keys on many ranks (9); surrogates of graphs (3);
# large items in `gumtrace bench`, launches (5); their CUDA kernels: long rows, large trees and matchings, graphs given
# by edges, relaxed trees in float64 (37), and twice as fast (6); those of large
# arborescences (11); batches of sparse graphs there, types of arguments, and errors in words of ours (11); the
# figure of `gumtrace bench` (3).
OF_A_FILE = 2 * (38 + 37) + 60  # its two headers in the archive, each with its name, and its line in RECORD


def wheel_files() -> list[Path]:
    """As pyproject.toml tells hatchling."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    (package,) = wheel["packages"]
    left_out = [ROOT / path for path in wheel["exclude"]]
    files = [path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [path for path in files if not any(folder in path.parents for folder in left_out)]


def test_size():
    """Without building it: files deflated, as in an archive. Within 1 % of the true size."""
    sizes = {path: len(zlib.compress(path.read_bytes())) + OF_A_FILE for path in wheel_files()}
    largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
    assert sum(sizes.values()) < MOST, f"the largest are {', '.join(path.name for path in largest)}"
    assert sum(sizes.values()) > MOST / 2


def test_it_holds_the_library_and_the_explorers_page_alone():
    """No results, pictures or tests, nor the fuzzer."""
    names = {path.relative_to(ROOT / "src").as_posix() for path in wheel_files()}
    others = {name for name in names if not name.endswith(".py")}
    page = {name for name in others if re.fullmatch(r"gumtrace/explore/page/[\w-]+\.(js|css|html|svg)", name)}
    assert others - page == {"gumtrace/py.typed"}
    assert not any("fuzz" in name or "test" in name for name in names)
    assert {"gumtrace/pyro.py", "gumtrace/kernels/cuda/ops.py", "gumtrace/explore/page/index.html"} <= names
