"""The script that trains every row: all of them, with options that `gumtrace train` takes; and its clock."""

import json
import shlex

import parentheses_table  # benchmarks/
import pytest
import torch
from parentheses_runs import TINY, Tree

from gumtrace_experiments import find
from gumtrace_experiments.commands.options import parse
from gumtrace_experiments.commands.train import Options

pytestmark = pytest.mark.usefixtures("one_thread")


def test_all_rows(capsys):
    assert parentheses_table.main(["--list", "--device", "cuda", "--seeds", "0-2", "--data", "d"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    parsed = [(line[4], *parse(find(line[4]), line[5:], Options, "train")) for line in lines]
    assert {(o.seeds, o.device, o.graph, str(o.data)) for _, _, o in parsed} == {("0-2", "cuda", True, "d")}
    found = [(name, c.types, c.order, c.estimator) for name, c, _ in parsed]
    assert len(set(found)) == len(found) == len(parentheses_table.EXPERIMENTS) * 5 * 6
    learned = {(order, estimator) for _, _, order, estimator in found if order not in ("left-to-right", "smart")}
    assert learned == {(o, e) for o in ("semi-supervised", "unsupervised") for e in ("RELAX", "TraceREINFORCE")}
    first, last = found[:40], found[40:]
    assert {order for _, _, order, _ in first} == {"left-to-right", "smart", "semi-supervised"}
    assert {order for _, _, order, _ in last} == {"unsupervised"}
    assert {types for _, types, *_ in found} == {10, 20, 30, 40, 50}


@pytest.mark.slow
def test_it_trains_and_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parentheses_table, "settings", lambda: iter([["parentheses-tree", "--order", "smart"]]))
    monkeypatch.setattr(parentheses_table, "clock", lambda device, data, smoke: [{"smoke": smoke}])
    few = ["--smoke", "--iterations", "2", "--evaluate-every", "2", "--types", "2"]
    assert parentheses_table.main(["--seeds", "0-1", *few]) == 0
    assert capsys.readouterr().out.startswith("done: parentheses-tree --order smart")
    assert len(list(tmp_path.glob("runs/parentheses-tree/*/seed-*/result.json"))) == 2
    assert json.loads(parentheses_table.TIMES.read_text())["records"] == [{"smoke": True}]


def test_writing_is_clocked(tmp_path):
    config = TINY.replace(order="smart")
    found = parentheses_table.seconds_of_writing(Tree, config, torch.device("cpu"), tmp_path, learned=3)
    assert found["different"] <= 60 <= found["draws"]
    assert found["seconds"] > 0
