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


def test_fixed_orders_come_first_and_relax_last(monkeypatch):
    given = []
    monkeypatch.setitem(parentheses_table.PARTS, "train", lambda *both: given.extend(both))
    parentheses_table.main(["--seeds", "0-1", "--types", "10", "20"])
    found = parentheses_table.settings(*given)
    parts = parentheses_table.groups(found, 0)
    kinds = [{"fixed" if c.order in ("left-to-right", "smart") else c.estimator for c, _ in some} for _, some in parts]
    assert kinds == [{kind} for kind in ("fixed", "TraceREINFORCE", "RELAX") for _ in range(4)]
    assert all(len({c.types for c, _ in some}) == 1 and len(some) == 4 for _, some in parts)
    few = parentheses_table.groups(found, 3)
    assert [len(some) for _, some in few] == [3, 1] * 12
    for split in (parts, few):
        trained = [path for _, some in split for _, path in some]
        assert sorted(trained) == sorted(path for some in found.values() for _, path in some)
        assert all(name in str(path) for name, some in split for _, path in some)


def test_how_far_it_is(tmp_path):
    config = TINY.replace(iterations=10)
    rows = [(config, tmp_path / name) for name in ("ended", "under way", "not begun", "nor this")]
    for name, iterations in (("ended", (5, 10)), ("under way", (5,))):
        (tmp_path / name).mkdir()
        lines = [json.dumps({"iteration": i, "split": "valid"}) + "\n" for i in iterations]
        (tmp_path / name / "metrics.jsonl").write_text("".join(lines))
    (tmp_path / "ended" / "result.json").write_text("{}")
    assert parentheses_table.progress(rows) == "1 of 4 runs ended, 38 % of their updates made"


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


def test_clocking_one_row_keeps_the_others(tmp_path, monkeypatch):
    file = tmp_path / "times.json"
    monkeypatch.setattr(parentheses_table, "clocked", lambda *_: {"ms": 1.0})
    parentheses_table.main(["--parts", "clock", "--results", str(file)])
    monkeypatch.setattr(parentheses_table, "clocked", lambda *_: {"ms": 2.0})
    chosen = ["--experiments", "parentheses-tree", "--orders", "smart"]
    parentheses_table.main(["--parts", "clock", "--results", str(file), *chosen])
    found = {(r["experiment"], r["order"], r["estimator"]): r["ms"] for r in json.loads(file.read_text())["records"]}
    assert len(found) == 6
    assert [key for key, ms in found.items() if ms == 2] == [("parentheses-tree", "smart", "RELAX")]
    with pytest.raises(SystemExit, match="nothing to clock"):
        parentheses_table.main(["--parts", "clock", "--results", str(file), "--estimators", "RELAX:2"])
    assert len(json.loads(file.read_text())["records"]) == 6
