"""Lab notes hold the tables that benchmarks/experiment_tables.py makes of recorded runs."""

import re

import experiment_tables  # benchmarks/
import kset_tables
import pytest

MARKS = {
    "graph-layout": ("graph-layout-starts", "graph-layout-tuning", "training-surrogates"),
    **{name: (f"{name}-time", f"{name}-gradients") for name in kset_tables.SHOWN},
    "listops": ("listops-summary", "listops-starts", "listops-tuning", "listops-depths", "listops-original"),
    "l2x": (),
    "parentheses-insertion": ("parentheses-insertion-times",),
    "parentheses-tree": ("parentheses-tree-times",),
    "treebank": (),
}


@pytest.mark.parametrize("name", MARKS)
def test_tables_are_those_of_the_recorded_runs(name):
    text = (experiment_tables.RUNS / name / "NOTES.md").read_text()
    for mark in MARKS[name]:
        assert len(re.findall(rf"<!-- {mark} -->\n.+?<!-- /{mark} -->", text, re.DOTALL)) == 1
    assert experiment_tables.with_tables(text) == text, "python experiments/benchmarks/experiment_tables.py"


def test_update_times_stand_beside_the_paper_s():
    trace = {"experiment": "listops", "estimator": "TraceREINFORCE", "settings": {"samples": 4}, "paper_ms": 249}
    rebar = {"experiment": "graph-layout", "estimator": "REBAR", "settings": {"training": "unrolled"}, "paper_ms": None}
    times = (
        (trace, 1, 1.391),
        (trace, 4, 0.3333),
        (rebar, 4, 9.0),
        (rebar, 1, 12.346),
    )
    machine = {"device": "X1", "torch": "2.99.0+cu", "date": "2030-01-02"}
    records = [{**case, "runs": runs, "ms": ms, "machine": machine} for case, runs, ms in times]
    records[0]["machine"] = {**machine, "date": "2030-01-01"}
    text = experiment_tables.updates({"records": records})
    assert "on X1, torch 2.99.0, 2030-01-01, 2030-01-02: of one run alone, and of 4 side by side" in text
    assert "| ListOps | T-REINFORCE+, K = 4 | 1.39 | 0.333 | 249 |" in text
    assert "| Graph layout, unrolled | REBAR, temperature learned | 12.3 | 9.00 |  |" in text


def test_times_of_parentheses():
    machine = {"device": "X1", "torch": "2.99.0+cu", "date": "2030-01-02"}
    smart = {"experiment": "parentheses-tree", "order": "smart", "estimator": "RELAX", "ms": 1.005, "seconds": 2.04}
    trace = {**smart, "order": "semi-supervised", "estimator": "TraceREINFORCE"}
    other = {**smart, "experiment": "parentheses-insertion", "ms": 7.0}
    records = [{**record, "draws": 290_000} for record in (smart, trace, {**trace, "estimator": "RELAX"}, other)]
    text = experiment_tables.parentheses({"machine": machine, "records": records}, "parentheses-tree")
    assert "(N = 100 calls, as a CUDA graph)" in text
    assert "200,000 different sequences" in text
    assert "on X1, torch 2.99.0, 2030-01-02." in text
    assert text.splitlines()[-3:] == [
        "| smart | none | 1.00 | 2.0 | 290,000 |",
        "| semi-supervised | T-REINFORCE+, K = 4 | 1.00 | 2.0 | 290,000 |",
        "| semi-supervised | RELAX | 1.00 | 2.0 | 290,000 |",
    ]


def test_the_summary_has_every_block_and_the_best_of_each_column():
    """With numbers that the tables of the notes have, too."""
    text = experiment_tables.table("experiments")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    rows = {(row[0], row[1]): row[2:] for row in lines}
    many = rows["T = 10, teacher-forced training, calls = 2048", "ours, not the paper's protocol"]
    assert many == ["−361.95 ± 1.98 (T-REINFORCE+)", "98.2 ± 0.0 (T-REINFORCE+)", "5"]
    assert rows["calls = 400, relabel = 0.3, with a curriculum", "ours, not the paper's protocol"] == [
        "97.55 ± 0.27 (T-REINFORCE+)",
        "98.05 ± 0.36 (T-REINFORCE+)",
        "5",
    ]
    assert "calls = 400, with a curriculum" in {name for name, _ in rows}
    usual = rows["as in the paper", "ours, the paper's protocol"]
    assert [cell.partition("(")[2] for cell in usual[:2]] == ["SST)", "T-REINFORCE+)"]
    paper = rows["T = 10", "the paper's best"]
    assert paper == ["−1582.72 ± 571.18 (T-REINFORCE+)", "87 ± 21 (SST)", "10"]
    assert sum(by == "ours, the paper's protocol" for _, by in rows) == 2
    for name in ("graph-layout", "listops"):
        notes = (experiment_tables.RUNS / name / "NOTES.md").read_text().replace("**", "")
        titles = re.findall(r"^### (.+)$", notes, re.MULTILINE)
        blocks = [title for title in titles if not title.startswith("After")]
        own = [(setting, cells) for (setting, by), cells in rows.items() if by.startswith("ours")]
        ours = [cells for setting, cells in own if setting.startswith("T = ") == (name == "graph-layout")]
        assert len(ours) == len(blocks)
        assert all(cell.partition(" (")[0] in notes for cells in ours for cell in cells[:2])


def test_what_is_folded_is_left_out_of_other_pages():
    text = "### a\n\n| b |\n\n<details><summary>c</summary>\n\n| d |\n\n</details>\n\n### e\n\n<details>f</details>\n"
    assert experiment_tables.unfolded(text) == "### a\n\n| b |\n\n### e\n\n"
