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
