"""A database that goes away: the operations that wait for it, and a whole sweep on a PostgreSQL of the test's own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import optuna
import postgres as servers
import pytest
from optuna.trial import TrialState
from quadratic import iterations, make, run_folder, states
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from waiting import until

from gumtrace_experiments.sweep import database, study
from gumtrace_experiments.sweep.database import Connection, Patient
from gumtrace_experiments.sweep.errors import SweepError
from gumtrace_experiments.sweep.front_end import run_sweep
from gumtrace_experiments.sweep.jobs import Jobs
from gumtrace_experiments.sweep.study import DONE, open_study
from gumtrace_experiments.sweep.worker import Worker

postgres = servers.postgres
COMPLETE, FAIL, RUNNING, WAITING = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(database, "PAUSES", (0.01, 0.02))
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def gone():
    """As Optuna raises it: its own error, from SQLAlchemy's."""
    error = optuna.exceptions.StorageInternalError("during the commit")
    error.__cause__ = OperationalError("SELECT 1", {}, Exception("server closed the connection\nunexpectedly"))
    return error


class Flaky:
    """A storage whose next operations of a name are carried out, or not, and then fail."""

    def __init__(self, storage):
        self.storage, self.lost = storage, []

    def get_heartbeat_interval(self):
        return None

    def __getattr__(self, name):
        def call(*args, **options):
            if self.lost and self.lost[0][0] == name:
                if self.lost.pop(0)[1]:
                    getattr(self.storage, name)(*args, **options)
                raise gone()
            return getattr(self.storage, name)(*args, **options)

        return call


@pytest.fixture
def flaky():
    """A study on such a storage, and what was said."""
    said = []
    storage = Flaky(optuna.storages.InMemoryStorage())
    made = optuna.create_study(storage=Patient(storage, Connection(said.append), 0.0), direction="maximize")
    return made, storage, said


def test_an_outage_is_reported_once_and_its_end(flaky):
    made, storage, said = flaky
    storage.lost = [("get_all_trials", False)] * 3
    assert made.get_trials() == []
    assert said == [
        "the database does not answer (server closed the connection): trying again, for 60 minutes at most",
        "the database is back after 0 seconds",
    ]


def test_threads_share_an_outage(flaky, monkeypatch):
    made, storage, said = flaky
    monkeypatch.setattr(storage, "lost", [("get_all_trials", False)] * 8)
    threads = [threading.Thread(target=made.get_trials) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {line.split(" (")[0].split(" after")[0] for line in said} == {
        "the database does not answer",
        "the database is back",
    }
    assert len(said) % 2 == 0


def test_a_sweep_in_one_process_has_one_connection(tmp_path, monkeypatch):
    """Of two, each would report an outage: that of what shows progress, and that of the worker's heartbeat."""
    made = []

    def connect(say):
        made.append(Connection(say))
        return made[-1]

    monkeypatch.setattr(study, "Connection", connect)
    found = run_sweep(make(tmp_path, 1, storage=f"sqlite:///{tmp_path}/study.db"), Jobs())
    assert made == [found._storage.connection]
    assert states(found) == [COMPLETE]
    found._storage.remove_session()
    found._storage.storage._backend.engine.dispose()


def test_a_database_that_stays_away_is_given_up(flaky, monkeypatch):
    """With one line; what is tried afterwards, to give trials back, fails at once."""
    made, storage, _ = flaky
    monkeypatch.setattr(database, "LIMIT", 0.05)
    storage.lost = [("get_all_trials", False)] * 1000
    with pytest.raises(SweepError, match=r"has not answered for .* minutes: server closed the connection$"):
        made.get_trials()
    left = len(storage.lost)
    with pytest.raises(SweepError, match="has not answered"):
        made.get_trials()
    assert len(storage.lost) == left - 1
    storage.lost = [("record_heartbeat", False)]
    made._storage.record_heartbeat(0)


def test_other_errors_are_no_outage(flaky):
    made, _, said = flaky
    with pytest.raises(KeyError):
        made._storage.get_trial(5)
    assert said == []


@pytest.mark.parametrize("arrived", [True, False])
def test_a_trial_is_created_once(flaky, arrived):
    """Whether or not the commit arrived whose answer was lost."""
    made, storage, _ = flaky
    storage.lost = [("create_new_trial", arrived)]
    assert made.ask().number == 0
    made.enqueue_trial({"x": 1.0})
    storage.lost = [("create_new_trial", arrived)]
    made.enqueue_trial({"x": 2.0})
    assert states(made) == [RUNNING, WAITING, WAITING]


def test_a_trial_that_optuna_itself_created_twice_fails(flaky, monkeypatch):
    made, storage, _ = flaky
    create = storage.storage.create_new_trial
    monkeypatch.setattr(storage.storage, "create_new_trial", lambda *args: (create(*args), create(*args))[0])
    assert made.ask().number == 0
    assert states(made) == [RUNNING, FAIL]
    assert made.trials[1].user_attrs["reason"] == "the same as trial 0"


@pytest.mark.parametrize("arrived", [True, False])
def test_a_result_is_told_again_and_once(flaky, arrived):
    made, storage, _ = flaky
    calls = []
    storage.lost = [("set_trial_state_values", arrived)]
    made.optimize(lambda trial: calls.append(trial.number) or 0.5, n_trials=1)
    assert calls == [0]
    assert [(t.state, t.value) for t in made.trials] == [(COMPLETE, 0.5)]


def test_no_trial_is_stale_right_after_an_outage(tmp_path):
    """Heartbeats were not recorded meanwhile, and their workers live."""
    worker = Worker(make(tmp_path, 1, storage=f"sqlite:///{tmp_path}/study.db"))
    storage = worker.study._storage
    storage.record_heartbeat(storage.create_new_trial(worker.study._study_id))
    engine = storage.storage._backend.engine
    with engine.begin() as connection:
        connection.execute(text("UPDATE trial_heartbeats SET heartbeat = '2000-01-01 00:00:00'"))
    worker._revive()
    assert states(worker.study) == [RUNNING]
    storage.connection._back -= study.HEARTBEAT
    worker._revive()
    assert states(worker.study) == [FAIL]
    storage.remove_session()
    engine.dispose()


def test_on_a_database_locks_tell_of_workers_of_the_same_folder(tmp_path):
    """At once, where others wait for a heartbeat."""
    worker = Worker(make(tmp_path, 1, storage=f"sqlite:///{tmp_path}/study.db"))
    storage = worker.study._storage
    for place in (worker._place, "elsewhere:/another/folder"):
        trial = storage.create_new_trial(worker.study._study_id)
        storage.set_trial_user_attr(trial, "locks", place)
        storage.set_trial_user_attr(trial, "worker", "killed")
    worker._revive()
    assert states(worker.study) == [FAIL, RUNNING]
    storage.remove_session()
    storage.storage._backend.engine.dispose()


def test_a_worker_whose_trial_was_given_up_goes_on(tmp_path):
    """Others heard nothing of it for too long: it leaves the trial to them, and asks for the next one."""
    sweep, given_up = make(tmp_path, 2), []

    def watch(run):
        if not given_up:
            given_up.append(run.iteration)
            study.give_up(open_study(sweep), 0)

    worker = Worker(sweep, watch=watch)
    worker.work()
    assert states(worker.study) == [FAIL, COMPLETE, COMPLETE]
    assert worker.study.trials[1].params == worker.study.trials[0].params
    assert iterations(worker.study.trials[1]) == [5, 10, 15, 20]


def test_a_trial_that_is_done_is_not_queued_again(tmp_path):
    made = open_study(make(tmp_path))
    made.optimize(lambda trial: trial.suggest_float("lr", 0.0, 1.0), n_trials=1)
    study.give_up(made, 0)
    assert states(made) == [COMPLETE]


def start(server, folder, trials):
    """`gumtrace sweep` with two workers."""
    options = ["--storage", server.url, "--trials", str(trials), "--jobs", "2", "--no-prune", "--seed-sampler", "0"]
    folders = ["--out", str(folder / "sweep"), "--data", str(folder / "orders")]
    words = ["-m", "gumtrace_experiments", "sweep", "quadratic:Quadratic", "--pause", "0.4", *options, *folders]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    with (folder / "err").open("w") as err:
        return subprocess.Popen([sys.executable, *words], env=env, cwd=folder, stdout=err, stderr=err)


def running(server):
    """Process ids of workers that are in a trial."""
    found = server.execute(
        "SELECT value_json FROM trials NATURAL JOIN trial_user_attributes WHERE key = 'worker' AND state = 'RUNNING'"
    )
    return [int(json.loads(name).split("-")[-2]) for (name,) in found]


@pytest.mark.slow
def test_a_sweep_survives_a_bad_night(postgres, tmp_path):
    """Connections are dropped, the server is stopped and started again, a worker is killed: every trial ends once."""
    trials = 6
    front = start(postgres, tmp_path, trials)
    try:
        until(lambda: len(running(postgres)) == 2, despite=Exception)  # the tables are not there yet
        assert postgres.drop_connections()
        postgres.stop()
        time.sleep(2.0)
        postgres.start()
        os.kill(until(lambda: running(postgres))[0], signal.SIGKILL)
        assert front.wait(120) == 0
    finally:
        front.kill()
    output = (tmp_path / "err").read_text()
    assert "Traceback" not in output
    for line in ("the database does not answer", "the database is back after", "was killed, and is replaced"):
        assert output.count(line) >= 1
    assert f"{trials} of {trials} trials, best" in output, "progress without a terminal"
    config = make(tmp_path).config.replace(pause=0.4)
    found = open_study(make(tmp_path, config=config, storage=postgres.url))
    done = [trial for trial in found.trials if trial.state in DONE]
    assert Counter(states(found)) == {COMPLETE: trials, FAIL: 1}
    assert len({trial.params["lr"] for trial in done}) == trials, "none twice"
    (killed,) = [trial for trial in found.trials if trial.state == FAIL]
    assert killed.params in [trial.params for trial in done], "none lost"
    assert [iterations(trial) for trial in done] == [[5, 10, 15, 20]] * trials
    assert len({run_folder(trial) for trial in done}) == trials
    found._storage.storage._backend.engine.dispose()
