"""Results, records and sweeps that are damaged or made up: one line that names the file."""

import json
import os
import random
from functools import partial

import pytest
import quadratic
import torch
from damage import check_read
from fake_runs import write_run
from mutations import MORE, mutated
from quadratic import Quadratic, QuadraticConfig, make

from gumtrace import benchmark
from gumtrace_experiments import find, train
from gumtrace_experiments.commands import main
from gumtrace_experiments.loop import evaluation
from gumtrace_experiments.report import records
from gumtrace_experiments.report.records import RecordError, collect, read_run
from gumtrace_experiments.report.tables import build
from gumtrace_experiments.store.errors import RunFolderError
from gumtrace_experiments.store.folder import read_result
from gumtrace_experiments.sweep.front_end import run_sweep
from gumtrace_experiments.sweep.jobs import Jobs
from gumtrace_experiments.sweep.study import SweepError, claim, open_study

registered = quadratic.registered
pytestmark = pytest.mark.usefixtures("one_thread")

NO_RESULTS = [
    {},
    {"test": {"score": 1.0}},
    {"valid": {"score": 1.0}},
    {"valid": {}, "test": {}},
    {"valid": {"score": None}, "test": {}},
    {"valid": {"score": "1"}, "test": {}},
    {"valid": [], "test": {}},
    {"valid": {"score": 1.0}, "test": []},
    {"valid": {"score": 1.0}, "test": {"score": True}},
    {"valid": {"score": 1.0}, "test": {}, "train": 3},
    {"valid": {"score": 1.0}, "test": {}, "diverged": 3},
    {"valid": {"score": 1.0}, "test": {}, "seconds": "3"},
    {"valid": {"score": 1.0}, "test": {}, "iteration": -3},
    {"valid": {"score": 1.0}, "test": {}, "starts": 3},
    {"valid": {"score": 1.0}, "test": {}, "gradient_std": [3]},
]


@pytest.fixture
def folder(tmp_path):
    """Of a run that is done."""
    train(Quadratic, QuadraticConfig(iterations=10), tmp_path, progress=False)
    return tmp_path / "seed-0"


@pytest.mark.parametrize("result", NO_RESULTS, ids=json.dumps)
def test_a_result_that_is_none(result, folder, registered, capsys):
    """It was a KeyError without "test"."""
    (folder / "result.json").write_text(json.dumps(result))
    assert main(["train", "quadratic", "--iterations", "10", "--out", str(folder.parent)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"gumtrace train: {folder / 'result.json'} cannot be read (")
    assert len(err.splitlines()) == 1
    if result != {"valid": {}, "test": {}}:  # which a run that diverged has
        with pytest.raises(RecordError, match=r"the result (lacks|has)"):
            read_run(folder)


def test_numbers_of_a_result_need_not_be_finite(folder):
    (folder / "result.json").write_text('{"valid": {"a": NaN}, "test": {"a": -Infinity}, "starts": [-Infinity, 1]}')
    assert read_result(folder / "result.json")["starts"] == [-torch.inf, 1]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("experiment", 3, "no experiment is named"),
        ("seed", "0", "the config's seed is not a number"),
        ("estimator", ["RELAX"], "or its estimator not a name"),
        ("nodes", "10", "nodes must be int, got '10'"),
        ("lr", True, "lr must be float, got True"),
        ("machine", {"date": 3}, "the machine is not described"),
        ("curve", {"iteration": [1], "elbo": ["high"]}, "or hold more than numbers"),
        ("curve", {"iteration": [1.5], "elbo": [1]}, "or hold more than numbers"),
        ("pruned", 1, "pruned is neither true nor false"),
    ],
)
def test_records_of_other_types(name, value, why, tmp_path, capsys):
    file = tmp_path / "r.jsonl"
    records.save(file, [read_run(write_run(tmp_path / "runs", seed=seed)) for seed in range(2)])
    first, second = map(json.loads, file.read_text().splitlines())
    where = second if name in second else second["config"]
    where[name] = value
    file.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    assert main(["table", "graph-layout", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"gumtrace table: {file}, line 2: ")
    assert why in err
    assert len(err.splitlines()) == 1


def reporting(path):
    found = [record for record in collect([path]) if record.experiment == "graph-layout"]
    return build(found, find("graph-layout").report(), find("graph-layout").selection_metric) if found else None


def test_mutated_records_are_read_or_refused(tmp_path):
    """By whoever makes tables of them."""
    folder, file = write_run(tmp_path / "runs", starts=2), tmp_path / "r.jsonl"
    records.save(file, [read_run(folder)])
    paths, rng, read = [file, *folder.iterdir()], random.Random(0), 0
    good = {path: path.read_bytes() for path in paths}
    for number in range(400 * MORE):
        path = paths[number % len(paths)]
        path.write_bytes(mutated(good[path], rng))
        reported = partial(reporting, file if path == file else folder)
        read += check_read(reported, RecordError, path.parent, f"number {number}, {path.name}")
        path.write_bytes(good[path])
    assert 50 * MORE < read < 350 * MORE


def test_lines_end_where_json_says(tmp_path):
    """And not at the other characters that end lines for Python."""
    folder = write_run(tmp_path / "runs", machine={"device": "a\u2028b\x85c"})
    records.save(tmp_path / "r.jsonl", [read_run(folder)])
    (record,) = records.load(tmp_path / "r.jsonl")
    assert record.machine == {"device": "a\u2028b\x85c"}


def test_a_table_of_what_cannot_be_read(tmp_path, capsys):
    (tmp_path / "r.jsonl").mkdir()
    assert main(["table", "graph-layout", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err
    file = tmp_path / "good.jsonl"
    records.save(file, [read_run(write_run(tmp_path / "runs"))])
    (tmp_path / "page.md").write_bytes(b"\xff")
    assert main(["table", "graph-layout", str(file), "--into", str(tmp_path / "page.md")]) == 2
    assert "page.md: not text" in capsys.readouterr().err


def test_a_config_with_a_value_of_another_type(folder, registered):
    about = json.loads((folder / "config.json").read_text())
    about["config"]["calls"] = 128.0
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(RunFolderError, match=r"config\.json is of another version .*calls must be int, got 128\.0"):
        evaluation.evaluate(folder)


@pytest.mark.parametrize("content", ["{}", '{"experiment": "quadratic"}', '{"experiment": 3, "config": {}}', "[", "5"])
def test_a_sweep_that_is_none(content, tmp_path):
    sweep = make(tmp_path)
    sweep.out.mkdir()
    (sweep.out / "sweep.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"sweep\.json cannot be read \("):
        claim(sweep)


def test_a_damaged_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    sweep = make(tmp_path, 2)
    run_sweep(sweep, Jobs())
    good, rng, opened = sweep.journal.read_bytes(), random.Random(0), 0
    for number in range(60 * MORE):
        sweep.journal.write_bytes(mutated(good, rng))
        opened += check_read(partial(open_study, sweep), SweepError, sweep.journal, f"number {number}")
    assert 0 < opened < 60 * MORE


RECORD = {
    "structure": "Subset",
    "size": {"d": 3},
    "batch": 2,
    "device": "cpu",
    "dtype": "float32",
    "step": "sample",
    "ms": 1.0,
    "min_ms": 1,
    "copy_ms": None,
    "peak_bytes": None,
    "trace_bytes": 8,
    "logits_bytes": 8,
}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "damaged, or not JSON"),
        ("[" * 100_000, "damaged, or not JSON"),
        ([], "not a file of records"),
        ({"machine": {}}, "not a file of records"),
        ({"machine": {}, "records": {}}, "not a file of records"),
        ({"machine": {}, "records": [RECORD, 5]}, "record 1: not a record"),
        ({"machine": {}, "records": [{"ms": 1.0}]}, "record 0: not a record"),
        ({"machine": {}, "records": [{**RECORD, "more": 1}]}, "record 0: not a record"),
        ({"machine": {}, "records": [{**RECORD, "ms": "1", "size": []}]}, "record 0: invalid size, ms"),
    ],
    ids=["half", "deep", "list", "no records", "no list", "number", "a part", "more", "other types"],
)
def test_benchmark_records_that_are_none(body, why, tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    with pytest.raises(ValueError, match=why) as error:
        benchmark.load(path)
    assert str(error.value).startswith(str(path))
    path.write_text(json.dumps({"machine": {}, "records": [RECORD]}))
    assert benchmark.load(path) == ({}, [benchmark.Record(**RECORD)])
