"""The script that trains every row: all of them, as `gumtrace train` would; and its clock."""

import json

import parentheses_table  # benchmarks/
import pytest
import torch
from parentheses_runs import TINY, Tree

pytestmark = pytest.mark.usefixtures("one_thread")
FEW = ["--smoke", "--iterations", "2", "--evaluate-every", "2", "--train-size", "300", "--test-size", "20"]
FEW += ["--bound-samples", "2", "--valid-bound-samples", "2", "--generated", "50"]


def rows(monkeypatch, *options):
    """(experiment, types, order, estimator, K, seed, calls) of all runs."""
    given = []
    monkeypatch.setitem(parentheses_table.PARTS, "train", lambda *both: given.extend(both))
    assert parentheses_table.main(list(options)) == 0
    found = parentheses_table.settings(*given)
    return {
        (name, types, c.order, c.estimator, c.k, c.seed, c.calls): path
        for (name, types), some in found.items()
        for c, path in some
    }


def test_all_rows(monkeypatch):
    found = rows(monkeypatch, "--seeds", "0-2")
    assert len(set(found.values())) == len(found) == 2 * 5 * 6 * 3
    assert {types for _, types, *_ in found} == {10, 20, 30, 40, 50}
    learned = {
        (order, estimator, k) for _, _, order, estimator, k, *_ in found if order not in ("left-to-right", "smart")
    }
    rivals = [("RELAX", 1), ("TraceREINFORCE", 4)]
    assert learned == {(order, *rival) for order in ("semi-supervised", "unsupervised") for rival in rivals}
    assert (
        str(found["parentheses-tree", 10, "semi-supervised", "RELAX", 1, 2, 100])
        == "runs/parentheses-tree/RELAX/seed-2"
    )


def test_some_rows(monkeypatch):
    options = ["--experiments", "parentheses-insertion", "--types", "20", "--orders", "smart", "semi-supervised"]
    found = rows(monkeypatch, *options, "--estimators", "RELAX:2", "--seeds", "3", "--calls", "400")
    expected = [("smart", "RELAX", 1), ("semi-supervised", "RELAX", 2)]
    assert set(found) == {("parentheses-insertion", 20, *row, 3, 400) for row in expected}


def test_rows_are_listed(capsys):
    assert parentheses_table.main(["--list", "--types", "10", "--seeds", "0", "--orders", "smart"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"runs/parentheses-{name}/RELAX,order=smart/seed-0" for name in ("tree", "insertion")
    ]


@pytest.mark.slow
def test_it_trains(tmp_path, capfd):
    options = ["--data", str(tmp_path), "--out", str(tmp_path), "--types", "2", "--orders", "smart", "semi-supervised"]
    options += ["--experiments", "parentheses-tree", "--estimators", "TraceREINFORCE", "--seeds", "0-1", *FEW]
    assert parentheses_table.main([*options, "--jobs", "2", "--beside", "2"]) == 0
    assert len(list(tmp_path.glob("parentheses-tree/*/seed-*/result.json"))) == 4
    assert capfd.readouterr().out.count("new_correct") == 4


@pytest.mark.slow
def test_a_process_that_fails_is_reported(tmp_path, capfd):
    options = ["--data", str(tmp_path), "--out", str(tmp_path), "--types", "2", "--orders", "smart", "--seeds", "0"]
    (tmp_path / "parentheses-tree").write_text("in the way")
    assert parentheses_table.main([*options, *FEW]) == 1
    assert "Traceback" in capfd.readouterr().err
    assert len(list(tmp_path.glob("parentheses-insertion/*/seed-0/result.json"))) == 1


def test_times_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(parentheses_table, "clocked", lambda *given: {"ms": 1.0, "order": given[1].order})
    path = tmp_path / "times.json"
    assert parentheses_table.main(["--parts", "clock", "--results", str(path), "--estimators", "RELAX"]) == 0
    content = json.loads(path.read_text())
    assert content["machine"]["device"] == "cpu"
    assert [(r["experiment"], r["order"], r["estimator"]) for r in content["records"]] == [
        (name, order, "RELAX") for name in parentheses_table.EXPERIMENTS for order in ("smart", "semi-supervised")
    ]


def test_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(parentheses_table.updates, "ROUNDS", 1)
    found = parentheses_table.clocked(Tree, TINY.replace(order="smart"), torch.device("cpu"), tmp_path, learned=3)
    assert found["different"] <= 60 <= found["draws"]
    assert found["seconds"] > 0
    assert found["ms"] > 0
