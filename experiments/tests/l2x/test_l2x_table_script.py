"""The script that trains the whole table: every row of it, and options that `gumtrace train` takes."""

import shlex

import l2x_table  # benchmarks/
import pytest

import gumtrace as gt
from gumtrace_experiments import find
from gumtrace_experiments.commands.options import parse
from gumtrace_experiments.commands.train import Options

L2X = find("l2x")


def test_all_rows(capsys):
    assert l2x_table.main(["--list", "--device", "cuda", "--seeds", "0-2", "--lrs", "1e-3,5e-3", "--data", "d"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    parsed = [parse(L2X, line[5:], Options, "train") for line in lines]
    assert {(o.seeds, o.device, o.graph, str(o.data)) for _, o in parsed} == {("0-2", "cuda", True, "d")}
    found = [(c.lr, c.model, c.chosen, c.estimator, c.kind, c.adaptive) for c, _ in parsed]
    assert len(set(found)) == len(found)
    assert {x[:3] for x in found} == {
        (lr, m, k) for lr in (1e-3, 5e-3) for m in ("simple", "complex") for k in (5, 10, 15)
    }
    rows = {x[3:] for x in found}
    assert len(found) == 12 * len(rows)
    assert {kind for estimator, kind, _ in rows if estimator == "StochasticSoftmax"} == set(gt.Subset.relaxations)
    assert {adaptive for estimator, _, adaptive in rows if estimator == "IMLE"} == {False, True}
    assert {estimator for estimator, *_ in rows} == {*l2x_table.rivals(), "RandomSubset", "FirstTokens", "FullText"}


def test_some_rows(capsys):
    assert l2x_table.main(["--list", "--estimators", "IMLE", "FullText"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert {line[line.index("--estimator") + 1] for line in lines} == {"IMLE", "FullText"}
    assert len(lines) == 6 * 3


@pytest.mark.parametrize("wrong", [False, True])
def test_it_trains_and_reports(wrong, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(l2x_table, "settings", lambda chosen: iter([["--estimator", "FirstTokens", "--chosen", "3"]]))
    more = ["--reviews", "wine" if wrong else "synthetic", "--synthetic-size", "20", "--longest", "12"]
    few = ["--calls", "4", "--iterations", "2", "--evaluate-every", "2"]
    assert l2x_table.main(["--seeds", "0-1", *more, *few]) == (1 if wrong else 0)
    assert capsys.readouterr().out.startswith("failed: l2x" if wrong else "done: l2x --estimator FirstTokens")
    assert len(list(tmp_path.glob("runs/l2x/FirstTokens*/seed-*/result.json"))) == (0 if wrong else 2)
