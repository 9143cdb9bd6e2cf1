"""Runs read from disk, recorded, and read again."""

import json

import pytest
from fake_runs import MACHINE, metrics, write_run

from gumtrace_experiments.report.records import RecordError, collect, load, read_run, save


def test_a_finished_run(tmp_path):
    record = read_run(write_run(tmp_path, seed=3, valid=-800.0, test=-900.0, precision=0.8, points=4))
    assert (record.experiment, record.seed, record.machine) == ("graph-layout", 3, MACHINE)
    assert record.result == {
        "iteration": 2000,
        "valid": metrics(-800.0, 0.8),
        "test": metrics(-900.0, 0.8),
        "seconds": 12.5,
    }
    assert set(record.curve) == {"iteration", "elbo", "kl", "precision", "recall", "complement"}
    assert record.curve["iteration"] == [500, 1000, 1500, 2000]
    assert record.curve["elbo"] == pytest.approx([-3200, -1600, -3200 / 3, -800])
    assert "seed" not in record.setting
    assert record.setting["estimator"] == "TraceREINFORCE"


def test_runs_that_are_not_finished(tmp_path):
    record = read_run(write_run(tmp_path / "a", finished=False, points=2))
    assert record.result is None
    assert record.curve["iteration"] == [500, 1000]
    fresh = write_run(tmp_path / "b", finished=False)
    (fresh / "metrics.jsonl").unlink()
    assert read_run(fresh).curve == {"iteration": []}


def test_a_last_row_that_is_half_written_is_left_out(tmp_path):
    folder = write_run(tmp_path, finished=False, points=2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 1500, "spl')
    assert read_run(folder).curve["iteration"] == [500, 1000]


def test_a_metric_that_is_measured_now_and_then(tmp_path):
    folder = write_run(tmp_path, points=2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 1500, "split": "valid", "elbo": -1.0, "gradient_std": 2.0}) + "\n")
    curve = read_run(folder).curve
    assert curve["gradient_std"] == [None, None, 2.0]
    assert curve["kl"] == [3.0, 3.0, None]


def test_folders_are_searched_and_records_sorted(tmp_path):
    for estimator in ("TraceREINFORCE", "RELAX"):
        for seed in (10, 2):
            write_run(tmp_path / "deep" / estimator, estimator=estimator, seed=seed)
    found = collect([tmp_path])
    assert [(r.config["estimator"], r.seed) for r in found] == [
        ("RELAX", 2),
        ("RELAX", 10),
        ("TraceREINFORCE", 2),
        ("TraceREINFORCE", 10),
    ]
    assert collect([tmp_path / "deep" / "RELAX", tmp_path / "deep" / "TraceREINFORCE"]) == found
    assert collect([tmp_path / "deep" / "RELAX" / "seed-2"]) == found[:1]


def test_round_trip(tmp_path):
    runs, file = tmp_path / "runs", tmp_path / "results" / "new" / "h200.jsonl"
    for seed in range(3):
        write_run(runs, seed=seed, valid=-1234.56789, test=-1234.56789, finished=seed != 1)
    records = collect([runs])
    save(file, reversed(records))
    assert len(file.read_text().splitlines()) == 3
    again = load(file)
    assert [(r.config, r.machine, r.result) for r in again] == [(r.config, r.machine, r.result) for r in records]
    assert again[0].curve["iteration"] == records[0].curve["iteration"]
    assert again[0].curve["elbo"] == [-4938.3, -2469.1, -1646.1, -1234.6]  # five digits
    assert collect([file.parent]) == again
    before = file.read_bytes()
    save(file, again)
    assert file.read_bytes() == before


def test_numbers_that_are_none_survive(tmp_path):
    folder = write_run(tmp_path / "runs", valid=float("nan"), test=float("-inf"))
    save(tmp_path / "r.jsonl", [read_run(folder)])
    (again,) = load(tmp_path / "r.jsonl")
    assert again.result is not None
    assert again.result["test"]["elbo"] == float("-inf")
    assert again.curve["elbo"][0] != again.curve["elbo"][0]


def test_a_run_counts_once_where_it_got_farthest(tmp_path):
    done = write_run(tmp_path / "done", test=-1.0)
    half = write_run(tmp_path / "half", finished=False, points=3)
    other = write_run(tmp_path / "other", test=-2.0)
    save(tmp_path / "r.jsonl", [read_run(half)])
    for paths in ([tmp_path / "r.jsonl", done], [done, half], [done, other]):
        (record,) = collect(paths)
        assert record.result is not None
        assert record.result["test"]["elbo"] == -1.0


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("config.json", '{"experiment": "gra', r"config.json: damaged, or not JSON: .*line 1"),
        ("config.json", '{"learning_rate": 3}', "no experiment is named; the config has no seed or no estimator"),
        ("config.json", "[1]", "config.json: not a JSON object"),
        ("result.json", '{"test": {}}', "the result lacks valid or test"),
        ("metrics.jsonl", '{"iteration": 5\n{"iteration": 6, "split": "valid"}\n', "metrics.jsonl, line 1: damaged"),
        ("metrics.jsonl", '{"step": 5}\n', 'not a row of metrics: {"step":5}'),
    ],
)
def test_damaged_folders(tmp_path, name, text, why):
    folder = write_run(tmp_path)
    (folder / name).write_text(text)
    with pytest.raises(RecordError, match=why) as error:
        collect([tmp_path])
    assert str(folder) in str(error.value)


def test_fields_that_are_newer_than_a_run_have_their_defaults(tmp_path):
    """Or else runs of before and after would not be averaged."""
    old = read_run(write_run(tmp_path / "old"))
    new = read_run(write_run(tmp_path / "new", seed=1, weight_decay=0.0))
    other = read_run(write_run(tmp_path / "other", seed=1, weight_decay=0.1))
    assert old.setting == new.setting != other.setting
    assert read_run(write_run(tmp_path / "unknown", experiment="unknown")).config.keys() < old.config.keys()


def test_files_of_before_searches_left_marks(tmp_path):
    folder, file = write_run(tmp_path / "runs", finished=False), tmp_path / "r.jsonl"
    save(file, [read_run(folder)])
    line = json.loads(file.read_text())
    del line["pruned"]
    file.write_text(json.dumps(line) + "\n")
    assert [record.pruned for record in load(file)] == [False]
    (folder / "pruned.json").write_text("{}")
    assert read_run(folder).pruned


def test_a_pruned_run_that_was_trained_to_its_end(tmp_path):
    folder = write_run(tmp_path)
    (folder / "pruned.json").write_text("{}")
    assert not read_run(folder).pruned


def test_damaged_files(tmp_path):
    file = tmp_path / "r.jsonl"
    save(file, [read_run(write_run(tmp_path / "runs", seed=seed)) for seed in range(2)])
    good = file.read_text()
    uneven = json.loads(good.splitlines()[0])
    uneven["curve"]["elbo"].pop()
    for text, why in (
        (good[:-20], r"r.jsonl, line 2: damaged, or not JSON"),
        (
            good + '{"a": 1}\n',
            r"r.jsonl, line 3: not a recorded run: expected the fields config, curve",
        ),
        (json.dumps(uneven), r"line 1: the lists of the curve are not of one length"),
    ):
        file.write_text(text)
        with pytest.raises(RecordError, match=why):
            load(file)


def test_paths_that_are_no_runs(tmp_path):
    with pytest.raises(RecordError, match="nowhere does not exist"):
        collect([tmp_path / "nowhere"])
    with pytest.raises(RecordError, match=r"is not a run: it has no config.json"):
        read_run(tmp_path)
    with pytest.raises(RecordError, match=r"must end in .jsonl"):
        save(tmp_path / "r.json", [])
    assert collect([tmp_path]) == []
