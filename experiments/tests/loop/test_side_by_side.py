"""Runs that share a device: while one is evaluated the others continue, and none becomes another run by that."""

import threading
from contextlib import closing, contextmanager, nullcontext

import pytest
import torch

from gumtrace_experiments import find, train
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop import update
from gumtrace_experiments.loop.cuda_graph import AHEAD, Recording
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.side_by_side import EVALUATIONS, advance
from gumtrace_experiments.loop.training import train_all
from gumtrace_experiments.loop.update import Updater
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.store.folder import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread")
GraphLayout = find("graph-layout")
TINY = GraphLayout.config_type(
    frames=4, nodes=4, hidden=8, calls=16, train_size=40, test_size=20, iterations=12, evaluate_every=4
)
LONG = 20.0  # seconds: no test here waits so long unless it fails


class MadeUp:
    """A run of which every fifth update is followed by an evaluation."""

    def __init__(self, iterations=20, recorded=True, evaluate=lambda: None):
        self.iteration, self.iterations, self.recorded, self.evaluate = 0, iterations, recorded, evaluate
        self.threads = set()

    @property
    def finished(self):
        return self.iteration >= self.iterations

    @property
    def pausing(self):
        return (self.iteration + 1) % 5 == 0

    def advance(self):
        due = self.pausing
        self.iteration += 1
        if due:
            self.threads.add(threading.current_thread())
            self.evaluate()
        return due


def test_every_update_and_evaluation_is_reported_once():
    runs = [MadeUp(20), MadeUp(10), MadeUp(10, recorded=False)]
    rounds = list(advance(runs))
    assert sum(updates for updates, _ in rounds) == 40
    assert sorted(runs.index(run) for _, evaluated in rounds for run in evaluated) == [0, 0, 0, 0, 1, 1, 2, 2]
    assert all(run.finished for run in runs)
    assert list(advance([])) == []


def test_others_continue_meanwhile():
    """The first is evaluated until the second has had all its updates: if that had to wait, neither would end."""
    second = MadeUp(50)
    over = threading.Event()

    def evaluate():
        assert over.wait(LONG)

    first = MadeUp(5, evaluate=evaluate)
    with closing(advance([first, second])) as rounds:
        for _ in rounds:
            if second.finished:
                over.set()
    assert first.finished
    assert second.finished


@pytest.mark.parametrize("recorded", [True, False])
def test_each_is_finished_once_and_after_its_last_evaluation(recorded):
    runs, ended = [MadeUp(n, recorded) for n in (20, 10, 0)], []
    rounds = list(advance(runs, lambda run: ended.append((run, run.iteration))))
    assert sorted(runs.index(run) for run, _ in ended) == [0, 1, 2]
    assert all(iteration == run.iterations for run, iteration in ended)
    assert sum(updates for updates, _ in rounds) == 30
    assert sum(len(evaluated) for _, evaluated in rounds) == 6


def test_others_continue_while_one_is_finished():
    """The first is finished until the second has had all its updates: if that had to wait, neither would end."""
    first, second, over = MadeUp(5), MadeUp(50), threading.Event()

    def finish(run):
        assert run is second or over.wait(LONG)

    with closing(advance([first, second], finish)) as rounds:
        for _ in rounds:
            if second.finished:
                over.set()
    assert over.is_set()


def test_what_fails_in_the_end_ends_it():
    def fail(run):
        raise RuntimeError("no such luck")

    for recorded in (True, False):
        with pytest.raises(RuntimeError, match="no such luck"):
            list(advance([MadeUp(10**9, recorded), MadeUp(5, recorded)], fail))


def test_a_result_is_there_before_others_end(tmp_path):
    settings = [(TINY.replace(iterations=4), tmp_path / "short"), (TINY, tmp_path / "long")]
    seen = []

    def done(path, result):
        seen.append((path, result, (tmp_path / "long" / "result.json").exists()))

    results = train_all(GraphLayout, settings, data=tmp_path, progress=False, done=done)
    assert seen == [(path, result, i == 1) for i, ((_, path), result) in enumerate(zip(settings, results, strict=True))]
    seen.clear()
    assert train_all(GraphLayout, settings, data=tmp_path, progress=False, done=done) == results
    assert not seen  # they were there


def test_settings_side_by_side_are_as_alone(tmp_path, capsys):
    configs = [TINY, TINY.replace(lr=1e-3, seed=3)]
    alone = [train(GraphLayout, c, tmp_path / f"alone {i}", data=tmp_path)[0] for i, c in enumerate(configs)]
    capsys.readouterr()
    settings = [(c, tmp_path / f"beside {i}" / f"seed-{c.seed}") for i, c in enumerate(configs)]
    beside = train_all(GraphLayout, settings, data=tmp_path)
    assert [found["valid"] for found in beside] == [found["valid"] for found in alone]
    assert "beside 1: seed 3, 12 of 12" in capsys.readouterr().out
    assert train_all(GraphLayout, settings, data=tmp_path) == beside


def test_settings_side_by_side_share_their_data(tmp_path):
    settings = [(TINY, tmp_path / "0"), (TINY.replace(frames=5), tmp_path / "1")]
    with pytest.raises(ValueError, match="share their data and precision, but frames differs"):
        train_all(GraphLayout, settings, data=tmp_path)
    assert not (tmp_path / "0").exists()


@pytest.mark.parametrize(("count", "recorded"), [(1, True), (2, False)])
def test_no_thread_where_it_would_not_help(count, recorded):
    runs = [MadeUp(recorded=recorded) for _ in range(count)]
    list(advance(runs))
    assert all(run.threads == {threading.main_thread()} for run in runs)


def test_an_evaluation_that_fails_ends_it():
    def fail():
        raise RuntimeError("no such luck")

    with pytest.raises(RuntimeError, match="no such luck"):
        list(advance([MadeUp(), MadeUp(evaluate=fail)]))


def test_to_stop_waits_for_evaluations_under_way_and_begins_no_others():
    begun, go_on = [], threading.Event()

    def evaluate():
        begun.append(1)
        assert go_on.wait(LONG)

    late = [MadeUp(5, evaluate=evaluate) for _ in range(EVALUATIONS + 3)]
    with closing(advance([*late, MadeUp(10**9)])) as rounds:
        for _ in rounds:
            if len(begun) == EVALUATIONS:
                threading.Timer(0.5, go_on.set).start()  # when others have been told not to begin
                break
    assert go_on.is_set()
    assert len(begun) == EVALUATIONS


def test_evaluated_apart_runs_are_the_same(monkeypatch, tmp_path):
    """On a CPU, as if updates were recorded graphs: metrics, starts and all are those of runs that take turns."""
    config, seeds = TINY.replace(starts=2, start_iterations=4), (0, 1, 2, 3)

    def rows(name):
        results = train(GraphLayout, config, tmp_path / name, seeds=seeds, data=tmp_path / "data", progress=False)
        for result in results:
            del result["seconds"]
        return results, [read_metrics(tmp_path / name / f"seed-{seed}" / "metrics.jsonl") for seed in seeds]

    by_turns = rows("by turns")
    monkeypatch.setattr(Run, "recorded", True)
    assert rows("apart") == by_turns


def test_models_are_made_one_at_a_time():
    """From torch's own generator, which all threads share."""
    inside, most = [], []

    class Slow(Experiment):
        def __init__(self, config, data):
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.02)
            inside.pop()

        def to(self, device):
            return self

    Slow.__abstractmethods__ = frozenset()
    threads = [threading.Thread(target=Slow.build, args=(TINY, None, "cpu")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert most == [1, 1, 1, 1]


def test_when_a_run_pauses(tmp_path):
    """Before the first update, where a start ends, and for evaluations; not for all the others."""
    config = TINY.replace(starts=2, start_iterations=4, evaluate_every=4, iterations=10)
    pauses = []

    class Seen(Run):
        def advance(self):
            pauses.append((self.starts.done, self.iteration, self.pausing))
            return super().advance()

    data = GraphLayout.load(config, tmp_path, "cpu")
    run = Seen(GraphLayout.build(config, data, "cpu"), None, Workers(torch.device("cpu")))
    list(advance([run]))
    paused = [(done, iteration) for done, iteration, pausing in pauses if pausing]
    assert paused == [(False, 0), (False, 3), (False, 0), (False, 3), (True, 7), (True, 9)]


def test_evaluations_share_a_stream(monkeypatch):
    """Of their thread, which waits for the model's own and is waited for, whatever happens; with made-up streams."""
    made, waits, now = [], [], []

    class Stream:
        def __init__(self, device):
            made.append(self)

        def wait_stream(self, other):
            waits.append((self, other))

    @contextmanager
    def on(stream):
        now.append(stream)
        try:
            yield
        finally:
            now.pop()

    def failing(updater):
        with updater.on_shared_stream():
            assert waits[-1] == (made[2], updater._stream)
            assert now == [made[2]]
            raise KeyError

    monkeypatch.setattr(update, "_streams", threading.local())
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    updaters = [Updater.__new__(Updater) for _ in range(2)]
    for updater in updaters:
        updater._stream, updater.device = Stream("d"), torch.device("cuda", 5)
    for updater in updaters:
        with pytest.raises(KeyError):
            failing(updater)
        assert waits[-1] == (updater._stream, made[2])
    assert len(made) == 3


def test_a_recording_is_never_far_ahead_of_its_device(monkeypatch):
    """With a made-up device, which does something only when somebody waits for it."""
    asked, done = [], []

    class Event:
        place = 0

        def record(self):
            self.place = len(asked)

        def synchronize(self):
            done.extend(asked[len(done) : self.place])

    class Graph:
        def replay(self):
            asked.append(len(asked))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: nullcontext())
    updates = []
    recording = Recording(lambda: updates.append(1), None, [])
    ahead = []
    for _ in range(5 * AHEAD):
        recording.replay()
        ahead.append(len(asked) - len(done))
    assert len(asked) == 5 * AHEAD
    assert updates == [1]
    assert max(ahead) == AHEAD
    assert ahead[:AHEAD] == list(range(1, AHEAD + 1))  # it does not wait before it has to
