"""Every Python block of the README runs, in order, in one namespace, and its tables are those of recorded runs."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import experiment_tables  # benchmarks/
import pytest
import table
from matplotlib.image import imread

from gumtrace.cli import main

README = Path(__file__).parents[1] / "README.md"


def test_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 9
    namespace = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)
    total, p_value, broken = map(float, capsys.readouterr().out.split())
    assert abs(total - 1) < 1e-5
    assert 0 <= p_value <= 1
    assert broken == 0


MARKS = {
    "README.md": ("bench", "variance", "experiments"),
    "docs/experiments.md": ("graph-layout-tuning", "listops-tuning", "listops-depths", "listops-original"),
}


@pytest.mark.parametrize("page", MARKS)
def test_tables_are_those_of_the_recorded_runs(page):
    text = (README.parent / page).read_text()
    for mark in MARKS[page]:
        assert len(re.findall(rf"<!-- {mark} -->\n.+?<!-- /{mark} -->", text, re.DOTALL)) == 1
    assert table.with_tables(text) == text, "python benchmarks/table.py"
    assert tuple(MARKS) == table.PAGES


def test_cuda_table_is_blank_where_nothing_was_measured():
    facts = {"structure": "BinaryTree", "size": {"n": 5}, "batch": 4096, "logits_bytes": 100}
    times = {"copy_ms": 0.0123, "ms": 123.4, "device_ms": 0.0456, "graph_ms": None, "peak_bytes": 250}
    steps = ("sample_trace", "log_prob", "conditional", "t_step", "trace_reinforce")
    records = [{**facts, **times, "step": step} for step in steps]
    records[2]["device_ms"] = None
    machine = {"device": "NVIDIA X1", "torch": "2.99.0+cu1", "date": "2030-01-02"}
    text = table.cuda({"machine": machine, "records": records})
    for word in ("NVIDIA X1", "torch 2.99.0", "2030-01-02", "a batch of 4,096"):
        assert word in text
    assert "| BinaryTree n=5 | 0.012 | 0.046 | 0.046 |  | 0.046 |  | 123 | 2.5 | 123 |  |" in text


def test_update_times_stand_beside_the_paper_s():
    trace = {"experiment": "listops", "estimator": "TraceREINFORCE", "settings": {"samples": 4}, "paper_ms": 249}
    rebar = {"experiment": "graph-layout", "estimator": "REBAR", "settings": {"training": "unrolled"}, "paper_ms": None}
    times = ((trace, 1, 1.391), (trace, 4, 0.3333), (rebar, 4, 9.0), (rebar, 1, 12.346))
    records = [{**case, "runs": runs, "ms": ms} for case, runs, ms in times]
    text = experiment_tables.updates(
        {"machine": {"device": "X1", "torch": "2.99.0", "date": "2030-01-02"}, "records": records}
    )
    assert "on X1, torch 2.99.0, 2030-01-02: of one run alone, and of 4 side by side" in text
    assert "| ListOps | T-REINFORCE+, K = 4 | 1.39 | 0.333 | 249 |" in text
    assert "| Graph layout, unrolled | REBAR, temperature learned | 12.3 | 9.00 |  |" in text


def test_the_picture_is_the_demo_s(tmp_path):
    """Pixel by pixel, but for the edges of letters and lines, where versions of matplotlib may differ."""
    assert main(["demo", "--out", str(tmp_path)]) == 0
    kept, drawn = (imread(folder / "structures.png") for folder in (README.parent / "docs" / "_static", tmp_path))
    assert kept.shape == drawn.shape, "gumtrace demo --out docs/_static"
    assert abs(kept - drawn).mean() < 0.002, "gumtrace demo --out docs/_static"


def test_badges_say_what_is_so():
    spec = spec_from_file_location("badges", README.parent / "docs" / "badges.py")
    badges = module_from_spec(spec)
    spec.loader.exec_module(badges)
    for file, text in badges.badges().items():
        assert (badges.OUT / file).read_text(encoding="utf-8") == text, "python docs/badges.py"
        assert f"docs/_static/badges/{file}" in README.read_text()
