"""Sweeps, on a model of one parameter: what is found, what is resumed, and what becomes of workers that are killed."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from quadratic import FATAL, QuadraticConfig, iterations, make, order, run_folder, states

from gumtrace_experiments.report.records import collect, read_run
from gumtrace_experiments.store.folder import STATE, RunFolderError, load
from gumtrace_experiments.store.locks import alive, presence
from gumtrace_experiments.sweep import study as sweeps
from gumtrace_experiments.sweep import worker as sweep_worker
from gumtrace_experiments.sweep.front_end import run_sweep
from gumtrace_experiments.sweep.jobs import Jobs
from gumtrace_experiments.sweep.study import DONE, SweepError, best, count, open_study
from gumtrace_experiments.sweep.worker import Worker

COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # From Python 3.12 on, of a fork where threads run: TensorBoard's, of folders that are closed, may not be gone yet.
    pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def quiet_and_quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # thirty a trial; what is killed is never the system
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def closed(monkeypatch):
    """SQLite warns, from Python 3.13 on, of connections that nobody closed."""
    opened, build = [], sweeps._database
    monkeypatch.setattr(sweeps, "_database", lambda sweep: opened.append(build(sweep)) or opened[-1])
    yield
    for storage in opened:
        storage.remove_session()
        storage.engine.dispose()


def test_finds_a_good_learning_rate(tmp_path):
    study = run_sweep(make(tmp_path, 25), Jobs())
    assert count(study, DONE) == 25
    first = best(study)[0]
    assert first.value > -0.1 > -(QuadraticConfig().goal ** 2)
    assert first.params["lr"] > 0.03
    assert json.loads((run_folder(first) / "result.json").read_text())["valid"]["score"] == first.value
    assert first.value == max(first.intermediate_values.values()), "the best evaluation, not the last"


def test_resumes_a_study(tmp_path):
    run_sweep(make(tmp_path, 3), Jobs())
    before = open_study(make(tmp_path)).trials
    study = run_sweep(make(tmp_path, 5), Jobs())
    assert [t.params for t in study.trials[:3]] == [t.params for t in before]
    assert len({t.params["lr"] for t in study.trials}) == 5, "a sampler of the same seed must not repeat itself"
    assert len(list((tmp_path / "sweep").glob("trial-*"))) == len(study.trials) == 5
    assert len(run_sweep(make(tmp_path, 5), Jobs()).trials) == 5, "nothing is left to do"


def test_a_seed_repeats_a_sweep(tmp_path):
    first, second, other = (
        [t.params for t in run_sweep(make(tmp_path / name, 3, seed=seed), Jobs()).trials]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == second != other


def test_another_base_config_is_refused(tmp_path):
    run_sweep(make(tmp_path, 1), Jobs())
    other = make(tmp_path, 2, QuadraticConfig(goal=3.0))
    with pytest.raises(RunFolderError, match=r"another sweep \(quadratic, goal 2.0\): choose another --out"):
        run_sweep(other, Jobs())
    assert count(open_study(make(tmp_path))) == 1


def test_studies_of_other_configs_share_a_storage_and_no_trials(tmp_path):
    storage = str(tmp_path / "all.journal")
    for goal in (2.0, 3.0):
        config = QuadraticConfig(goal=goal)
        study = run_sweep(make(tmp_path / str(goal), 2, config, storage=storage), Jobs())
        assert [run_folder(t).parents[2].name for t in study.trials] == [str(goal)] * 2


def killed_in_its_second_trial(folder, storage):
    Worker(make(folder, 1, storage=storage)).work()
    order(folder, "die")
    Worker(make(folder, 4, storage=storage)).work()


@forks
@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize("storage", ["", "sqlite:///{}/study.db"], ids=["journal", "database"])
@pytest.mark.slow
def test_a_killed_worker_is_taken_over_from(tmp_path, monkeypatch, storage):
    monkeypatch.setattr(sweeps, "HEARTBEAT", 1)
    monkeypatch.setattr(sweeps, "GRACE", 2)
    sweep = make(tmp_path, 4, storage=storage.format(tmp_path))
    worker = multiprocessing.get_context("fork").Process(
        target=killed_in_its_second_trial, args=(tmp_path, sweep.storage)
    )
    worker.start()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL
    study = open_study(sweep)
    assert states(study) == [COMPLETE, TrialState.RUNNING]
    lost = study.trials[1]
    state = load(run_folder(lost) / STATE)
    assert state is not None
    assert state["iteration"] == FATAL - 5, "it was under way"
    steps = []
    worker = Worker(sweep, watch=lambda run: steps.append((run.folder.path, run.iteration)))
    worker.work()

    trials = open_study(sweep).trials
    assert [t.state for t in trials] == [COMPLETE, FAIL, COMPLETE, COMPLETE, COMPLETE]
    again = trials[2] if storage == "" else next(t for t in trials if t.user_attrs.get("retries"))
    assert again.params == lost.params
    assert again.user_attrs["folder"] == lost.user_attrs["folder"]
    assert (again.user_attrs["retry_of"], again.user_attrs["retries"]) == (1, 1)
    assert [i for path, i in steps if path == run_folder(lost)] == [15, 20], "from its checkpoint"
    assert iterations(again) == [5, 10, 15, 20]
    assert sorted(again.intermediate_values) == [5, 10, 15, 20]


def test_a_trial_is_not_tried_for_ever(tmp_path):
    sweep = make(tmp_path, 1)
    study = open_study(sweep)
    for _ in range(10):
        trial = study.ask()
        trial.suggest_float("lr", 1e-4, 1.0, log=True)
        trial.set_user_attr("worker", "killed")
        Worker(sweep)._revive()
    numbers = [t.user_attrs.get("retries", 0) for t in study.trials]
    assert numbers == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]


def test_a_trial_given_up_twice_is_queued_once(tmp_path):
    study = open_study(make(tmp_path))
    study.ask().suggest_float("lr", 1e-4, 1.0, log=True)
    for _ in range(2):  # by two machines, say, that share no locks
        sweeps.give_up(study, 0)
    assert states(study) == [FAIL, TrialState.WAITING]


def test_a_trial_that_was_queued_twice_is_run_once(tmp_path, monkeypatch):
    """Two machines that share no locks gave it up at the same time: neither saw the other's retry."""
    sweep = make(tmp_path, 2)
    study = open_study(sweep)
    study.ask().suggest_float("lr", 1e-4, 1.0, log=True)
    with monkeypatch.context() as at_the_same_time:
        at_the_same_time.setattr(sweeps, "retries_of", lambda study, number: [])
        for _ in range(2):
            sweeps.give_up(study, 0)
    assert states(study) == [FAIL, TrialState.WAITING, TrialState.WAITING]
    trials = run_sweep(sweep, Jobs()).trials
    assert [t.state for t in trials] == [FAIL, COMPLETE, FAIL, COMPLETE]
    assert trials[2].user_attrs["reason"] == "the same as trial 1"
    assert len({t.params["lr"] for t in trials if t.state == COMPLETE}) == 2


def test_others_may_ask_while_one_trains(tmp_path):
    sweep = make(tmp_path, 1)
    held = []
    Worker(sweep, watch=lambda run: held.append(alive(sweep.locks / "asking"))).work()
    assert held == [False] * 4


def test_a_trial_lost_before_it_had_a_name(tmp_path, monkeypatch):
    sweep = make(tmp_path, 1)
    worker = Worker(sweep)
    open_study(sweep).ask()
    worker._revive()
    assert states(worker.study) == [TrialState.RUNNING], "it may have been asked for just now"
    monkeypatch.setattr(sweep_worker, "UNOWNED", 0.0)
    worker.work()
    assert states(worker.study) == [FAIL, COMPLETE]


def test_trials_of_the_living_are_theirs(tmp_path):
    sweep = make(tmp_path, 1)
    worker = Worker(sweep)
    with presence(sweep.locks) as name:
        open_study(sweep).ask().set_user_attr("worker", name)
        worker._revive()
        assert states(worker.study) == [TrialState.RUNNING]
        assert alive(sweep.locks / name)
    assert not alive(sweep.locks / name)
    worker._revive()
    assert states(worker.study) == [FAIL]


@pytest.mark.parametrize(("name", "error"), [("interrupt", KeyboardInterrupt), ("fail", RuntimeError)])
def test_a_worker_that_ends_gives_its_trial_back(tmp_path, name, error):
    order(tmp_path, name)
    sweep = make(tmp_path, 2)
    with pytest.raises(error):
        run_sweep(sweep, Jobs())
    assert states(open_study(sweep)) == [FAIL, TrialState.WAITING]
    trials = run_sweep(sweep, Jobs()).trials
    assert [t.state for t in trials] == [FAIL, COMPLETE, COMPLETE]
    assert trials[1].params == trials[0].params
    assert iterations(trials[1]) == [5, 10, 15, 20]


def test_bad_trials_are_pruned(tmp_path):
    study = run_sweep(make(tmp_path, 20), Jobs())
    pruned = [t for t in study.trials if t.state == PRUNED]
    assert pruned
    assert all(t.number >= 5 and max(t.intermediate_values) < 20 for t in pruned)
    with (run_folder(pruned[0]) / ".lock").open() as lock:  # the folder is closed
        assert not alive(Path(lock.name))
    assert PRUNED not in states(run_sweep(make(tmp_path / "all", 20, prune=False), Jobs()))
    marked = [run_folder(t) for t in study.trials if (run_folder(t) / "pruned.json").exists()]
    assert marked == [run_folder(t) for t in pruned]
    assert "is below the median" in (marked[0] / "pruned.json").read_text()
    assert {r.pruned for r in map(read_run, marked)} == {True}
    assert [r.pruned for r in collect([tmp_path / "sweep"])].count(True) == len(pruned)


def test_a_pruned_trial_that_is_tried_again_is_under_way(tmp_path, monkeypatch):
    marks, mark = [], tmp_path / "sweep" / "trial" / "seed-0" / "pruned.json"
    monkeypatch.setattr(sweeps.Sweep, "folder", lambda sweep, config: mark.parents[1])
    mark.parent.mkdir(parents=True)
    mark.touch()
    Worker(make(tmp_path, 1), watch=lambda run: marks.append(mark.exists())).work()
    assert marks == [False] * 4


def test_runs_that_diverge_end_and_the_sampler_knows(tmp_path, capsys):
    """The best learning rates are those just below nan: from failed trials, TPE would come back again and again."""
    study = run_sweep(make(tmp_path, 30, QuadraticConfig(spoilt=0.1, lr=0.1)), Jobs())
    diverged = [t for t in study.trials if t.user_attrs.get("reason") == "score is nan"]
    assert 0 < len(diverged) < 15
    assert {t.state for t in diverged} == {PRUNED}
    assert best(study)[0].params["lr"] > 0.03
    assert f"trial {diverged[0].number} failed: score is nan" in capsys.readouterr().err


def test_configs_that_are_refused_are_made_up_for(tmp_path):
    study = run_sweep(make(tmp_path, 5, QuadraticConfig(refused=0.1, lr=0.1)), Jobs())
    assert count(study, DONE) == 5
    failed = [t for t in study.trials if t.state == FAIL]
    assert failed
    assert all("too large" in t.user_attrs["reason"] for t in failed)


def test_a_sweep_in_which_all_fail_ends(tmp_path):
    config = QuadraticConfig(refused=1e-5, lr=1e-6)
    with pytest.raises(SweepError, match=r"10 trials failed one after the other; the last: lr .* is too large"):
        run_sweep(make(tmp_path, config=config), Jobs())
    assert states(open_study(make(tmp_path, config=config))) == [FAIL] * 10
