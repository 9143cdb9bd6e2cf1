"""The harness: runs that go on exactly as they would have, in one process or several, alone or side by side."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from gumtrace.experiments import evaluate, find, train
from gumtrace.experiments import folder as folders
from gumtrace.experiments.config import ESTIMATORS, Config
from gumtrace.experiments.folder import RunFolderError, read_json, read_metrics
from gumtrace.experiments.parallel import Workers
from gumtrace.experiments.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")
GraphLayout = find("graph-layout")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TINY = GraphLayout.config_type(
    frames=4, nodes=4, hidden=8, calls=16, train_size=40, test_size=20, iterations=12, evaluate_every=4, critic_hidden=8
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def run(tmp_path, data):
    """Train in a folder of its own; returns the metrics of the seeds."""

    def call(name, config=TINY, **settings):
        train(GraphLayout, config, tmp_path / name, data=data, progress=False, **settings)
        return [metrics(tmp_path / name / f"seed-{seed}") for seed in settings.get("seeds", [config.seed])]

    return call


class Killed(BaseException):
    pass


def metrics(folder):
    return read_metrics(folder / "metrics.jsonl")


# --- what a run leaves behind ---


def test_a_run_folder(run, tmp_path, data):
    (rows,) = run("a")
    moments = [(iteration, split) for iteration in (4, 8, 12) for split in ("train", "valid")]
    gradients = {0: "gradient", 8: "gradient", 12: "gradient"}  # the beginning, the first look after half, the end
    assert {(row["iteration"], row["split"]) for row in rows} == {*moments, *gradients.items()}
    assert len(rows) == 9
    folder = tmp_path / "a" / "seed-0"
    assert {p.name for p in folder.iterdir() if not p.name.startswith("events")} == {
        "config.json", "metrics.jsonl", "best.pt", "state.pt", "result.json", ".lock"
    }  # fmt: skip
    assert any(p.name.startswith("events") for p in folder.iterdir())
    result = json.loads((folder / "result.json").read_text())
    best = max((row for row in rows if row["split"] == "valid"), key=lambda row: row["elbo"])
    assert result["iteration"] == best["iteration"]
    assert result["valid"]["elbo"] == best["elbo"]
    assert evaluate(folder, "test", data=data) == result["test"]
    assert evaluate(folder, "valid", data=data) == result["valid"]
    for name in ("best.pt", "state.pt"):
        torch.load(folder / name, weights_only=True)


def test_smoke_learns(tmp_path, data):
    config = GraphLayout.smoke(GraphLayout.config_type())
    train(GraphLayout, config, tmp_path, data=data, progress=False)
    losses = [-row["elbo"] for row in metrics(tmp_path / "seed-0") if row["split"] == "train"]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("training", ["teacher-forced", "unrolled"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_trains_and_goes_on_exactly(estimator, training, run):
    config = TINY.replace(estimator=estimator, training=training, extra=8, iterations=8, calls=24)
    assert cut_off(run, config) == run("whole", config)


def cut_off(run, config):
    """The metrics of a run that ended after its first evaluation, and went on."""

    def stop(run):
        raise Killed

    with pytest.raises(Killed):
        run("parts", config, watch=stop)
    return run("parts", config)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "cosine"},
        {"clip": 0.1},
        {"precision": "bfloat16"},
        {"shards": 2},
        {"starts": 3, "start_iterations": 4},
    ],
)
def test_settings_change_a_run_that_goes_on_exactly(settings, run):
    config = TINY.replace(**settings)
    (whole,) = run("whole", config)
    assert whole[1:] != run("plain")[0][1:]
    assert cut_off(run, config) == [whole]


def test_the_best_start_goes_on(run, tmp_path, monkeypatch):
    config = TINY.replace(starts=4, start_iterations=4, seed=2)
    (rows,) = run("a", config)
    (found,) = [row for row in rows if row["split"] == "starts"]
    scores = [found[f"start {i}"] for i in range(4)]
    assert (found["iteration"], len(set(scores))) == (4, 4)
    assert read_json(tmp_path / "a" / "seed-2" / "result.json")["starts"] == scores
    (plain,) = run("plain", config.replace(starts=1))
    valid = {row["iteration"]: row["elbo"] for row in plain if row["split"] == "valid"}
    assert scores[0] == valid[4]
    assert max(scores) != scores[0]
    assert [row["iteration"] for row in rows if row["split"] == "valid"] == [8, 12]
    assert [row["iteration"] for row in rows if row["split"] == "gradient"] == [0, 8, 12]
    build, best = GraphLayout.build, scores.index(max(scores))
    monkeypatch.setattr(GraphLayout, "build", lambda config, data, device, start=0: build(config, data, device, best))
    (alone,) = run("alone", config.replace(starts=1))
    assert rows[-6:] == alone[-6:]  # as if it had been the only one


def test_gradients_are_looked_at_on_the_batch_that_comes_next(run, monkeypatch):
    """And looking changes nothing."""
    seen, trained = [], []
    real_std, real_loss = GraphLayout.gradient_std, GraphLayout.loss
    monkeypatch.setattr(
        GraphLayout, "gradient_std", lambda self, i, g: (seen.append(i.tolist()), real_std(self, i, g))[1]
    )
    monkeypatch.setattr(GraphLayout, "loss", lambda self, i, g: (trained.append(i.tolist()), real_loss(self, i, g))[1])
    (rows,) = run("looked")
    assert seen[:2] == [trained[0], trained[8]]
    assert [row["moment"] for row in rows if row["split"] == "gradient"] == ["beginning", "half-way", "end"]
    monkeypatch.setattr(GraphLayout, "gradient_std", lambda *args: 0.0)
    (plain,) = run("plain")
    assert [r for r in plain if r["split"] != "gradient"] == [r for r in rows if r["split"] != "gradient"]


def test_a_score_that_is_no_number_is_never_the_best(run, tmp_path, monkeypatch):
    real, calls = GraphLayout.evaluate, itertools.count()

    def evaluate(self, split, generator):
        metrics = real(self, split, generator)
        return {**metrics, "elbo": float("nan")} if next(calls) == 0 else metrics

    monkeypatch.setattr(GraphLayout, "evaluate", evaluate)
    (rows,) = run("a")
    valid = {row["iteration"]: row["elbo"] for row in rows if row["split"] == "valid"}
    assert valid.pop(4) is None
    result = json.loads((tmp_path / "a" / "seed-0" / "result.json").read_text())
    assert result["valid"]["elbo"] == max(valid.values())


def test_a_run_that_diverges_says_so(run, monkeypatch):
    monkeypatch.setattr(GraphLayout, "evaluate", lambda *args: {"elbo": float("nan")})
    with pytest.raises(RunFolderError, match="elbo was never a finite number"):
        run("a")


def test_a_finished_run_is_left_alone(run, tmp_path, monkeypatch):
    run("a")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a" / "seed-0").iterdir()}
    monkeypatch.setattr(GraphLayout, "build", None)
    run("a")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "a" / "seed-0").iterdir()} == before


def test_what_is_set_for_the_process_is_set_back(run, data, tmp_path):
    before = torch.get_float32_matmul_precision()
    run("a")
    evaluate(tmp_path / "a" / "seed-0", data=data)
    assert torch.get_float32_matmul_precision() == before


def test_a_log_without_a_terminal_has_a_line_for_each_evaluation(tmp_path, data, capsys):
    train(GraphLayout, TINY, tmp_path, data=data)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"seed 0, {i} of 12" for i in (4, 8, 12)]


# --- killed at any moment ---


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_writing(after, run, tmp_path, monkeypatch):
    """Before or after each file is put into place, with half of the next line of metrics written."""
    config = TINY.replace(starts=2, start_iterations=4)
    (whole,) = run("whole", config)
    for moment in itertools.count(1):
        folder = tmp_path / f"killed-{moment}" / "seed-0"
        with monkeypatch.context() as patch:
            patch.setattr(folders, "write", killing(folders.write, moment, after))
            try:
                run(folder.parent.name, config)
                break
            except Killed:
                pass
        assert run(folder.parent.name, config) == [whole]
        assert without_time(folder / "result.json") == without_time(tmp_path / "whole" / "seed-0" / "result.json")
    assert moment > 7  # a config, metrics, three times a state and at least one best, a result


def killing(real, moment, after):
    """`write`, until the process ends in the call that is number `moment`."""
    calls = itertools.count(1)

    def write(path, content):
        if next(calls) != moment:
            return real(path, content)
        if after:
            real(path, content)
        rows = path.parent / "metrics.jsonl"
        if rows.exists():
            with rows.open("a") as file:
                file.write('{"iteration": 1000, "spl')
        raise Killed

    return write


def without_time(path):
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "seconds"}


def arguments(config):
    """Of the command line."""
    default = GraphLayout.config_type().to_dict()
    return [f"--{name.replace('_', '-')}={x}" for name, x in config.to_dict().items() if x != default[name]]


@pytest.mark.slow
def test_sigkill(run, tmp_path, data):
    """A real process, killed twice, wherever it is."""
    config = TINY.replace(iterations=300, evaluate_every=20)
    command = [sys.executable, "-m", "gumtrace.cli", "train", "graph-layout", "--out", str(tmp_path / "killed")]
    command += ["--data", str(data), *arguments(config)]
    rows = tmp_path / "killed" / "seed-0" / "metrics.jsonl"
    for _ in range(2):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        before = len(read_metrics(rows))
        while len(read_metrics(rows)) < before + 6 and process.poll() is None:
            time.sleep(0.003)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert run("killed", config) == run("whole", config)


# --- refusals ---


def test_a_folder_of_another_config_is_refused(run, tmp_path):
    run("a")
    before = {p: p.read_bytes() for p in (tmp_path / "a" / "seed-0").iterdir()}
    with pytest.raises(RunFolderError, match=r"another run .*lr 0\.0005"):
        run("a", TINY.replace(lr=1e-3))
    assert {p: p.read_bytes() for p in (tmp_path / "a" / "seed-0").iterdir()} == before


def test_a_run_from_before_there_was_a_setting_goes_on(run, tmp_path):
    rows, file = run("a"), tmp_path / "a" / "seed-0" / "config.json"
    about = json.loads(file.read_text())
    del about["config"]["learn_temperature"]
    file.write_text(json.dumps(about))
    assert run("a") == rows


@pytest.mark.parametrize("estimator", ["RELAX", "REBAR"])
def test_the_estimators_own_gradient_does_not_shorten_the_models(estimator, tmp_path):
    config = TINY.replace(estimator=estimator, clip=1.0)
    device = torch.device("cpu")
    model = GraphLayout.build(config, GraphLayout.load(config, tmp_path, device), device)
    Run(model, None, Workers(device)).update()
    own = list(model.estimator.parameters())
    mine = {id(p) for p in own}
    for part in ([p for p in model.parameters() if id(p) not in mine], own):
        norm = torch.stack([p.grad.norm() for p in part if p.grad is not None]).norm()
        torch.testing.assert_close(norm, torch.ones(()), rtol=1e-4, atol=0)


def test_a_folder_in_use_is_refused(run, tmp_path):
    folder = folders.RunFolder(tmp_path / "a" / "seed-0", "graph-layout", TINY.to_dict(), {})
    with pytest.raises(RunFolderError, match="in use by another process"):
        run("a")
    folder.close()
    run("a")


def test_a_folder_without_a_config_is_refused(run, tmp_path):
    (tmp_path / "a" / "seed-0").mkdir(parents=True)
    (tmp_path / "a" / "seed-0" / "state.pt").write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"state\.pt but no config\.json"):
        run("a")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "REINFORCE"}, "no estimator 'REINFORCE'; there are NoiseREINFORCE"),
        ({"samples": 256}, "TraceREINFORCE with 256 samples makes 256 calls for one item: more than the 128"),
        ({"estimator": "REBAR", "calls": 2}, "REBAR with 1 samples makes 3 calls for one item"),
        ({"learn_temperature": False}, "learn_temperature is REBAR's: TraceREINFORCE learns none"),
        ({"shards": 3}, "32 items cannot be shared out evenly to 3 shards"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"starts": 2, "iterations": 1500}, "start_iterations must be .* less than iterations, 1500; got 1500"),
        ({"starts": 2, "start_iterations": 700}, "a multiple of evaluate_every, 500"),
    ],
)
def test_bad_configs(settings, message):
    with pytest.raises(ValueError, match=message):
        Config(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_size": 3}, "a batch has 4 items, and the training set only 3"),
        ({"estimator": "SurrogateREINFORCE", "shards": 2}, "SurrogateREINFORCE .* neither a graph nor shards"),
    ],
)
def test_what_cannot_be_trained(settings, message, run):
    with pytest.raises(ValueError, match=message):
        run("a", TINY.replace(**settings))


# --- side by side, and in several processes ---


def test_seeds_side_by_side_are_as_alone(run):
    together = run("together", seeds=[0, 1, 2])
    alone = [run(f"alone-{seed}", TINY.replace(seed=seed))[0] for seed in (0, 1, 2)]
    assert together == alone
    assert alone[0] != alone[1]


@pytest.mark.slow
def test_two_processes_are_as_one(run, tmp_path, data):
    config = TINY.replace(shards=2)
    (one,) = run("one", config)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "gumtrace.cli", "train", "graph-layout", "--out", str(tmp_path / "two"), "--data", str(data)]
    done = subprocess.run([*command, *arguments(config)], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-3000:]
    two = metrics(tmp_path / "two" / "seed-0")
    assert [row["iteration"] for row in two] == [row["iteration"] for row in one]
    for ours, theirs in zip(two, one, strict=True):
        for name, value in ours.items():
            assert value == (
                theirs[name] if isinstance(value, str) else pytest.approx(theirs[name], rel=1e-4, abs=1e-6)
            )
