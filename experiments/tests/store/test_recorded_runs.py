"""Runs that an earlier version left are still runs: they evaluate as recorded, resume, and stand in tables.

`recorded_runs.tar.xz` was written before the experiments were a distribution of their own. `trace-reinforce` is
finished. The others were cut off: `rebar` and `surrogate-reinforce` after the second of three evaluations, `starts`
after the second of three starts. `uninterrupted.json` is the result of the same run without the cut. Graph layout has
another surrogate since then, so that one of these is refused.
"""

import json
import tarfile
from pathlib import Path

import pytest

from gumtrace_experiments import evaluate, find, train
from gumtrace_experiments.report.records import collect
from gumtrace_experiments.report.tables import build
from gumtrace_experiments.store.errors import RunFolderError
from gumtrace_experiments.store.folder import read_json, read_metrics

pytestmark = pytest.mark.usefixtures("one_thread")
ARCHIVE = Path(__file__).parent / "recorded_runs.tar.xz"
CUT_OFF = {"rebar": "REBAR", "starts": "TraceREINFORCE"}
ROUNDING = 1e-3  # relative: other processors round otherwise, for twelve iterations


@pytest.fixture
def recorded(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "runs", filter="data")
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_a_finished_run_evaluates_as_it_did(recorded, data):
    (folder,) = (recorded / "trace-reinforce").iterdir()
    result = read_json(folder / "result.json")
    for split in ("valid", "test"):
        assert evaluate(folder, split, data=data) == pytest.approx(result[split], rel=ROUNDING)


@pytest.mark.parametrize("name", CUT_OFF)
def test_a_run_that_was_cut_off_resumes(name, recorded, data):
    (folder,) = (path for path in (recorded / name).iterdir() if path.is_dir())
    experiment, expected = find("graph-layout"), json.loads((recorded / name / "uninterrupted.json").read_text())
    config = experiment.config_type(**read_json(folder / "config.json")["config"])
    assert config.estimator == CUT_OFF[name]
    before = read_metrics(folder / "metrics.jsonl")
    (result,) = train(experiment, config, recorded / name, data=data, progress=False)
    after = read_metrics(folder / "metrics.jsonl")
    assert after[: len(before)] == before  # it did not begin anew
    assert result["iteration"] == expected["iteration"]
    assert result.get("starts", []) == pytest.approx(expected.get("starts", []), rel=ROUNDING)
    for part in ("valid", "test", "gradient_std"):
        assert result[part] == pytest.approx(expected[part], rel=ROUNDING)


def test_a_run_with_another_surrogate_is_refused(recorded, data):
    experiment, (folder,) = find("graph-layout"), (recorded / "surrogate-reinforce").glob("seed-*")
    config = experiment.config_type(**read_json(folder / "config.json")["config"])
    before = (folder / "state.pt").read_bytes()
    with pytest.raises(RunFolderError, match=r"of another version .* train anew in another folder"):
        train(experiment, config, folder.parent, data=data, progress=False)
    assert (folder / "state.pt").read_bytes() == before


def test_recorded_runs_stand_in_a_table(recorded):
    records = collect([recorded])
    estimators = ["TraceREINFORCE", "SurrogateREINFORCE", *CUT_OFF.values()]
    assert sorted(record.config["estimator"] for record in records) == sorted(estimators)
    experiment = find("graph-layout")
    (table, _gradients), _notes = build(records, experiment.report(), experiment.selection_metric)
    (row,) = [row for row in table.rows if row[1].text == "ours"]
    assert row[0].text == "T-REINFORCE+ (K = 4) †"
    assert "REBAR: 1 run is not finished, and not averaged." in table.notes
