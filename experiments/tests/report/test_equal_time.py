"""Estimators at equal time, by hand: runs that no training made, and updates that nobody clocked."""

import json
import math

import matplotlib
import pytest
from fake_runs import MACHINE, USUAL, write_run
from matplotlib.figure import Figure

from gumtrace_experiments import find
from gumtrace_experiments.commands import main
from gumtrace_experiments.report import curves, equal_time
from gumtrace_experiments.report.records import RecordError, collect
from gumtrace_experiments.report.times import Time, Times, load

matplotlib.use("Agg")
REPORT = find("graph-layout").report()
SST, TRACE = {"estimator": "StochasticSoftmax"}, {"estimator": "TraceREINFORCE", "samples": 8}
MANY = {**TRACE, "calls": 1024}


def clocked(ms, **setting):
    setting = {**USUAL, **setting}
    return {"experiment": "graph-layout", "setting": setting, "device": "NVIDIA H200", "ms": ms, "machine": MACHINE}


# SST makes its 2,000 updates in 5 s, T-REINFORCE+ with few items in 2, with many in 8.
TIMES = Times([clocked(2.5, **SST), clocked(1.0, **TRACE), clocked(4.0, **MANY)])


@pytest.fixture
def runs(tmp_path):
    """Each is evaluated four times, at -4 V, -2 V, -4/3 V and V."""
    for seed in range(2):
        write_run(tmp_path / "sst", seed=seed, valid=-400.0 - seed, iterations=2000, **SST)
        write_run(tmp_path / "few", seed=seed, valid=-450.0, iterations=2000, **TRACE)
        write_run(tmp_path / "many", seed=seed, valid=-100.0 - seed, iterations=2000, **MANY)
    return tmp_path


def test_each_has_what_serves_it_best_by_then(runs):
    """With many items T-REINFORCE+ has made 1,250 updates by then: two evaluations, and is ahead."""
    sst, trace = equal_time.entries(collect([runs]), REPORT, "elbo", TIMES)
    assert (sst.budget, trace.budget) == (5.0, 5.0)
    assert (sst.until, trace.until) == (2000, 1250)
    assert trace.choice.group.setting["calls"] == 1024
    assert trace.values(REPORT.columns[0], "elbo") == [-200.0, -202.0]
    (table,) = equal_time.tables(collect([runs]), REPORT, "elbo", TIMES)
    assert table.title == "After 5 seconds of updates, T = 10, unrolled training (the paper's protocol)"
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["SST", "128 × 1", "2.50", "−400.50 ± 0.71", "50.0 ± 0.0", "50.0 ± 0.0", "2,000", "2"],
        ["T-REINFORCE+ (K = 8) †", "128 × 8", "4.00", "−201.00 ± 1.41", "25.0 ± 0.0", "25.0 ± 0.0", "1,250", "2"],
    ]
    assert [cell.bold for cell in table.rows[1]] == [False] * 3 + [True] + [False] * 4
    assert "T-REINFORCE+: seeds 0–1, of 2 settings." in table.notes
    assert table.notes[-1] == "Clocked alone on NVIDIA H200, torch 2.13.0, 2026-11-16."


def test_few_items_are_taken_where_many_come_too_late(runs):
    for seed in range(2):
        write_run(runs / "late", seed=seed, valid=-300.0, iterations=2000, **MANY, lr=0.01)
    late = [run for run in collect([runs]) if not (run.config["calls"] == 1024 and run.config["lr"] == 0.001)]
    _, trace = equal_time.entries(late, REPORT, "elbo", TIMES)  # by then at -600
    assert (trace.choice.group.setting["calls"], trace.until) == (128, 2000)


def test_a_setting_that_was_not_clocked_does_not_count(runs):
    _, trace = equal_time.entries(collect([runs]), REPORT, "elbo", Times(TIMES.records[:2]))
    assert trace.choice.group.setting["calls"] == 128
    assert trace.budget == 2.0  # the longest that T-REINFORCE+ has
    assert equal_time.entries(collect([runs]), REPORT, "elbo", Times(TIMES.records[1:])) == []  # one alone
    other = [{**record, "device": "another"} for record in TIMES.records]
    assert equal_time.entries(collect([runs]), REPORT, "elbo", Times(other)) == []


def test_updates_of_starts_count():
    setting = {"starts": 4, "start_iterations": 500}
    assert Time(2.0, {}, {}).seconds(1000) == 2.0
    assert Time(2.0, {}, setting).seconds(1000) == 5.0
    assert Time(2.0, {}, setting).iterations(5.0) == 1000
    assert Time(2.0, {}, setting).iterations(1.0) == 0
    for iterations in range(1, 3000, 7):  # there and back
        assert Time(1.1, {}, {}).iterations(Time(1.1, {}, {}).seconds(iterations)) == iterations


def test_what_does_not_change_the_work_does_not_change_its_time():
    setting = {**USUAL, **TRACE, "lr": 0.5, "iterations": 7, "starts": 3, "curriculum": "1:2", "newer": 1}
    assert TIMES.of("graph-layout", setting, "NVIDIA H200").ms == 1.0
    assert TIMES.of("graph-layout", {**setting, "frames": 20}, "NVIDIA H200") is None
    assert TIMES.of("listops", setting, "NVIDIA H200") is None
    # the newest, though an older version knew fewer settings and so did not replace its own record
    older, newer = clocked(1.0, **TRACE), clocked(0.5, **TRACE, a_new_setting=0.0)
    assert Times([older, newer]).of("graph-layout", {**setting, "a_new_setting": 0.0}, "NVIDIA H200").ms == 0.5


def test_before_the_first_evaluation_there_is_nothing(runs):
    (run, *_) = collect([runs / "sst"])
    assert math.isnan(equal_time.found_until(run, "elbo", "elbo", 499))
    assert equal_time.found_until(run, "elbo", "precision", 500) == 0.125


def test_listops_at_equal_time_has_any_calls():
    report = find("listops").report()
    config = find("listops").config_type(curriculum="12:500").to_dict()
    more = {**config, "calls": 400, "iterations": 20_000}
    assert report.block(config) != report.block(more)
    assert report.timed(config) == report.timed(more)
    assert report.timed(config).paper == ()
    assert report.timed({**config, "curriculum": ""}) != report.timed(config)


# --- commands ---


def test_commands_find_times_beside_runs(runs, capsys):
    assert main(["table", "graph-layout", str(runs), "--format", "markdown"]) == 0
    assert "seconds of updates" not in capsys.readouterr().out
    (runs / "times.json").write_text(json.dumps({"updates": TIMES.records}))
    assert main(["table", "graph-layout", str(runs), "--format", "markdown"]) == 0
    assert "### After 5 seconds of updates, T = 10" in capsys.readouterr().out
    (runs / "times.json").rename(runs / "other.json")
    assert main(["table", "graph-layout", str(runs), "--times", str(runs / "other.json")]) == 0
    assert "After 5 seconds of updates" in capsys.readouterr().out
    assert main(["table", "graph-layout", str(runs), "--times", str(runs / "none.json")]) == 2
    assert "none.json is not a file of times" in capsys.readouterr().err


@pytest.mark.parametrize("body", ["[]", "{", '{"updates": 1}', '{"updates": [{"ms": 1}]}'])
def test_a_damaged_file_of_times_is_one_line(body, tmp_path):
    (tmp_path / "times.json").write_text(body)
    with pytest.raises(RecordError, match=r"times\.json: "):
        load([tmp_path])


def test_names_say_the_precision_where_there_are_several(tmp_path):
    write_run(tmp_path / "sst", iterations=2000, precision=0.5, **SST)
    write_run(tmp_path / "many", iterations=2000, **MANY)
    about = json.loads((tmp_path / "many/seed-0/config.json").read_text())
    about["config"]["precision"] = "bfloat16"
    (tmp_path / "many/seed-0/config.json").write_text(json.dumps(about))
    shown = equal_time.over_seconds(equal_time.entries(collect([tmp_path]), REPORT, "elbo", TIMES))
    assert [choice.name for choice in shown] == ["SST, 128 × 1, tf32", "T-REINFORCE+, 128 × 8, bfloat16"]


def test_curves_over_seconds(runs, monkeypatch):
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: kept.append(self))
    files = curves.draw(collect([runs]), REPORT, "elbo", runs / "plots", TIMES)
    assert [file.name for file in files] == ["elbo.png", "elbo-seconds.png", "precision.png", "precision-seconds.png"]
    (panel,) = [ax for ax in kept[1].axes if ax.get_visible()]
    assert panel.get_xlabel().startswith("seconds of updates alone")
    labelled = {line.get_label(): [*map(float, line.get_xdata())] for line in panel.lines}
    assert labelled["SST, 128 × 1"] == [1.25, 2.5, 3.75, 5.0]
    assert labelled["T-REINFORCE+, 128 × 8"] == [2.0, 4.0, 6.0, 8.0]
    assert "items × structures" in kept[1].legends[0].get_title().get_text()
    plain = curves.draw(collect([runs]), REPORT, "elbo", runs / "plots")
    assert [file.name for file in plain] == ["elbo.png", "precision.png"]
