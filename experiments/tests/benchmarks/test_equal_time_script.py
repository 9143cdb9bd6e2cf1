"""benchmarks/equal_time.py in small: it clocks, trains, resumes and records, and tables are made of what it left."""

import json

import equal_time  # benchmarks/
import kset_contest
import pytest
import torch

from gumtrace_experiments import find
from gumtrace_experiments.commands import main as gumtrace
from gumtrace_experiments.report.records import collect

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"frames": 4, "nodes": 4, "hidden": 8, "critic_hidden": 8, "train_size": 60, "test_size": 20}
SHORT = {"iterations": 6, "evaluate_every": 2, "start_iterations": 2, "starts": 2}


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The command, with two small rows, in a folder of its own."""
    monkeypatch.setattr(kset_contest, "UPDATES", 1)
    monkeypatch.setattr(kset_contest, "SECONDS", 0.0)
    made = [
        equal_time.Row("small/SST", "graph-layout", "StochasticSoftmax", "0-1", {"calls": 8}),
        equal_time.Row("small/T-REINFORCE", "graph-layout", "TraceREINFORCE", "0-1", {"calls": 16, "samples": 2}),
        equal_time.Row("other/RELAX", "graph-layout", "RELAX", "0", {"calls": 8}),
    ]
    monkeypatch.setattr(equal_time, "rows", lambda: made)
    folders = [f"--{name}={tmp_path / name}" for name in ("data", "out", "results")]
    return lambda *more: equal_time.main([*folders, "--change", json.dumps({**SMALL, **SHORT}), *more])


def test_rows_can_be_trained():
    """Each is another setting, with a name of its own."""
    rows = equal_time.rows()
    configs = [row.config({}) for row in rows]  # none is refused
    assert len({(r.experiment, str(c), r.within) for r, c in zip(rows, configs, strict=True)}) == len(rows)
    assert len({row.name for row in rows}) == len(rows)
    ten = {row.name for row in rows if len(equal_time.read_seeds(row.seeds)) == 10}
    for name in (
        "listops-others/SST",
        "listops/T-REINFORCE",
        "layout-10/SST",
        "layout-10/T-REINFORCE",
        "layout-10/RELAX",
    ):
        assert name in ten
    items = {row.name: config.items for row, config in zip(rows, configs, strict=True)}
    many = {items[name] for name in items if name.startswith(("listops-items/", "listops-others-items/"))}
    assert many == {items["listops-others/SST"]} == {100}
    assert items["layout-10-time/T-REINFORCE-8x128"] == items["layout-10/SST"] == 128
    assert {items[name] for name in items if name.startswith("layout-10-items/")} == {128}
    assert all(c.calls == 128 for r, c in zip(rows, configs, strict=True) if r.section in ("layout-10", "layout-20"))
    assert all(c.curriculum == "12:500" for r, c in zip(rows, configs, strict=True) if r.experiment == "listops")


def test_settings_of_equal_calls_are_those_of_recorded_runs():
    """So that seeds can be added to them."""
    recorded = collect([equal_time.RESULTS / "graph-layout"])
    known = {run.config["estimator"]: [] for run in recorded}
    for run in recorded:
        known[run.config["estimator"]].append(run.setting)
    for row in equal_time.rows():
        if row.section in ("layout-10", "layout-10-unrolled") or row.name in ("layout-20/SST", "layout-20/T-REINFORCE"):
            assert kset_contest.setting(row.config({})) in known[row.estimator], row.name


def test_rows_at_equal_time_can_be_shown():
    """A setting counts if it has at least half as many seeds as the one of its estimator and block with most."""
    blocks = {}
    for row in equal_time.rows():
        block = row.kind.report().timed(row.config({}).to_dict()).key
        blocks.setdefault((row.experiment, block, row.estimator), []).append(len(equal_time.read_seeds(row.seeds)))
    assert all(2 * min(seeds) >= max(seeds) for seeds in blocks.values())


def test_a_row_at_equal_time_has_the_updates_that_fit(tmp_path, monkeypatch):
    """Those of starts count: 2 · 4 + 10 updates of 3 ms are 54 ms, or 2 · 4 + 19 of 2 ms."""
    settings = {"starts": 3, "start_iterations": 4, "iterations": 10, "evaluate_every": 2}
    made = [
        equal_time.Row("a/SST", "graph-layout", "StochasticSoftmax", "0", settings),
        equal_time.Row("b/T", "graph-layout", "TraceREINFORCE", "0", settings, within="a/SST"),
    ]
    monkeypatch.setattr(equal_time, "rows", lambda: made)
    tables = equal_time.Tables(made, tmp_path, torch.device("cpu"), tmp_path, tmp_path)
    assert tables.config(made[1]) is None
    with pytest.raises(SystemExit, match="how many updates b/T has follows from times: clock it and a/SST"):
        tables.train()
    monkeypatch.setattr(equal_time, "clock", lambda kind, config, *_: 3.0 if "Soft" in config.estimator else 2.0)
    monkeypatch.setattr(find("graph-layout"), "load_data", lambda *_: None)
    tables.clock()
    assert [tables.config(row).iterations for row in made] == [10, 19]


@pytest.mark.slow
def test_all_of_it(script, tmp_path, capsys, monkeypatch):
    assert script("--list") == 0
    assert capsys.readouterr().out.splitlines()[0] == "small/SST: 2 runs, not clocked"
    assert script("--only", "small", "--minutes", "1e-9") == 0  # until the first evaluation
    assert "out of time" in capsys.readouterr().out
    assert script("--only", "small", "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(" of 2 runs left, " in line and line.endswith(" s of updates") for line in lines)
    times = json.loads((tmp_path / "results" / "graph-layout" / "times.json").read_text())["updates"]
    assert [record["setting"]["estimator"] for record in times] == ["StochasticSoftmax", "TraceREINFORCE"]
    assert script("--only", "small") == 0
    assert "small: 4 runs in " in capsys.readouterr().out
    runs = collect([tmp_path / "results" / "graph-layout"])
    names = {(run.config["estimator"], run.seed) for run in runs}
    assert names == {(name, seed) for name in ("StochasticSoftmax", "TraceREINFORCE") for seed in (0, 1)}
    assert all(run.result["iteration"] <= 6 for run in runs)
    monkeypatch.setattr(equal_time, "clock", lambda *_: pytest.fail("it is known"))
    monkeypatch.setattr(find("graph-layout"), "build", lambda *_: pytest.fail("it is trained"))
    assert script("--only", "small") == 0
    capsys.readouterr()
    assert gumtrace(["table", "graph-layout", str(tmp_path / "results" / "graph-layout"), "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert "seconds of updates, T = 4, teacher-forced training" in text
    assert "| SST | 8 × 1 |" in text
    assert "| T-REINFORCE+ (K = 2) † | 8 × 2 |" in text


def test_rows_are_clocked_again(script, tmp_path, monkeypatch):
    """For kernels that have changed. What is known of others stays."""
    for ms, more in ((3.0, ()), (2.0, ()), (1.0, ("--again", "--only", "small/SST"))):
        monkeypatch.setattr(equal_time, "clock", lambda *_, ms=ms: ms)
        assert script("--parts", "clock", *more) == 0
    times = json.loads((tmp_path / "results" / "graph-layout" / "times.json").read_text())["updates"]
    found = {record["setting"]["estimator"]: record["ms"] for record in times}
    assert len(times) == 3
    assert found == {"StochasticSoftmax": 1.0, "TraceREINFORCE": 3.0, "RELAX": 3.0}


def test_no_row_is_an_error(script, capsys):
    with pytest.raises(SystemExit):
        script("--only", "nothing")
    assert "no row begins with nothing" in capsys.readouterr().err


def test_runs_side_by_side_are_so_many_at_most(script, monkeypatch):
    seen = []
    monkeypatch.setattr(equal_time, "train_all", lambda kind, runs, **_: seen.append([c.estimator for c, _ in runs]))
    script("--parts", "train", "--beside", "3")
    assert [len(some) for some in seen] == [3, 2]
    script("--parts", "train", "--seeds", "7")
    assert seen[-1] == ["StochasticSoftmax", "TraceREINFORCE", "RELAX"]
