"""Lab notes hold the tables that benchmarks/experiment_tables.py makes of recorded runs."""

import re

import experiment_tables  # benchmarks/
import kset_tables
import pytest

MARKS = {
    "graph-layout": ("graph-layout-starts", "graph-layout-tuning", "training-surrogates"),
    **{name: (f"{name}-time", f"{name}-gradients") for name in kset_tables.SHOWN},
    "listops": ("listops-tuning", "listops-depths", "listops-original"),
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
