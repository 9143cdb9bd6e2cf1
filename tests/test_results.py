"""Pages that hold tables of recorded runs hold those of the runs in results/."""

from pathlib import Path

import pytest

from gumtrace.cli.table import with_tables
from gumtrace.experiments import NAMES, find
from gumtrace.experiments.records import collect
from gumtrace.experiments.rendering import markdown
from gumtrace.experiments.reporting import report
from gumtrace.experiments.tables import build

ROOT = Path(__file__).parents[1]
RECORDED = [name for name in NAMES if (ROOT / "results" / name).exists()]


@pytest.mark.parametrize("name", RECORDED)
def test_the_page_has_the_recorded_tables(name):
    page = (ROOT / "docs" / "experiments.md").read_text()
    tables = markdown(*build(collect([ROOT / "results" / name]), report(name), find(name).better))
    assert with_tables(page, name, tables) == page, f"gumtrace table {name} --into docs/experiments.md"


def test_what_the_page_says_of_starts():
    """Numbers in prose, counted once more."""
    page = " ".join((ROOT / "docs" / "experiments.md").read_text().split())
    forced, unrolled = (
        [r.result["starts"] for r in collect([ROOT / "results" / "graph-layout"]) if "starts" in r.result and of(r)]
        for of in (lambda r: r.config["training"] == "teacher-forced", lambda r: r.config["training"] == "unrolled")
    )
    behind = [max(scores) - score for scores in forced for score in scores]
    assert f"of the {len(behind)} starts {sum(b > 300 for b in behind)} were poor, and at least 700 nats behind" in page
    assert min(b for b in behind if b > 300) > 700
    scores = sorted(score for scores in unrolled for score in scores)
    assert f"of the {len(scores)} starts, three for each seed, 1 found it, and was at least 400 nats ahead" in page
    assert scores[-1] - scores[-2] > 400
