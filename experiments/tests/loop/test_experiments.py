"""The harness: what a run leaves behind, and that it resumes exactly as it would have continued."""

import itertools
import json
import re
import sys

import pytest
import tiny_runs
import torch
from tiny_runs import TINY, GraphLayout, Killed, cut_off, metrics

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import evaluate, train
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.update import Updater
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.store.folder import read_json

data, run = tiny_runs.data, tiny_runs.run
pytestmark = pytest.mark.usefixtures("one_thread")


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
@pytest.mark.slow
def test_every_estimator_trains_and_resumes_exactly(estimator, training, run):
    config = TINY.replace(estimator=estimator, training=training, extra=8, iterations=8, calls=24)
    assert cut_off(run, config) == run("whole", config)


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
@pytest.mark.slow
def test_settings_change_a_run_that_resumes_exactly(settings, run):
    config = TINY.replace(**settings)
    (whole,) = run("whole", config)
    assert whole[1:] != run("plain")[0][1:]
    assert cut_off(run, config) == [whole]


def test_the_best_start_continues(run, tmp_path, monkeypatch):
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


def test_a_run_cut_off_between_starts_resumes_with_the_next(run, monkeypatch):
    """Killed while the third is trained: the first two are not trained once more, and the best of all is chosen."""
    config = TINY.replace(starts=4, start_iterations=4, seed=2)
    (whole,) = run("whole", config)
    update, made = Run.update, []

    def killed(self):
        update(self)
        made.append(self.iteration)
        if len(made) == 11:
            raise Killed

    monkeypatch.setattr(Run, "update", killed)
    with pytest.raises(Killed):
        run("parts", config)
    assert run("parts", config) == [whole]
    assert made[11:] == [1, 2, 3, 4, 1, 2, 3, 4, *range(5, 13)]  # two starts, and the rest of one


def test_a_run_from_before_there_was_a_setting_resumes(run, tmp_path):
    rows, file = run("a"), tmp_path / "a" / "seed-0" / "config.json"
    about = json.loads(file.read_text())
    del about["config"]["learn_temperature"]
    file.write_text(json.dumps(about))
    assert run("a") == rows


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


@pytest.mark.parametrize("estimator", ["RELAX", "REBAR"])
def test_the_estimators_own_gradient_does_not_shorten_the_models(estimator, tmp_path):
    config = TINY.replace(estimator=estimator, clip=1.0)
    device = torch.device("cpu")
    model = GraphLayout.build(config, GraphLayout.load(config, tmp_path, device), device)
    Updater(model, Workers(device)).update(0)
    own = list(model.estimator.parameters())
    mine = {id(p) for p in own}
    for part in ([p for p in model.parameters() if id(p) not in mine], own):
        norm = torch.stack([p.grad.norm() for p in part if p.grad is not None]).norm()
        torch.testing.assert_close(norm, torch.ones(()), rtol=1e-4, atol=0)


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


def test_a_run_that_diverges_says_so(run, tmp_path, monkeypatch):
    monkeypatch.setattr(GraphLayout, "evaluate", lambda *args: {"elbo": float("nan")})
    run("a")
    result = read_json(tmp_path / "a" / "seed-0" / "result.json")
    assert result["diverged"] == "from the beginning: elbo was never a finite number"
    assert result["test"] == {}


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
    valid = [row["elbo"] for row in metrics(tmp_path / "seed-0") if row["split"] == "valid"]
    for i, line in enumerate(lines):
        assert f": elbo {valid[i]:.5g}, best {max(valid[: i + 1]):.5g}; " in line
        assert re.search(r"; [\d.e+]+ it/s, \d:\d\d:\d\d left$", line)


def test_a_log_has_a_line_for_each_start(tmp_path, data, capsys):
    train(GraphLayout, TINY.replace(starts=3, start_iterations=4), tmp_path, data=data)
    lines = capsys.readouterr().out.splitlines()
    (scores,) = [row for row in metrics(tmp_path / "seed-0") if row["split"] == "starts"]
    assert [line.partition(";")[0] for line in lines[:3]] == [
        f"seed 0, start {i + 1} of 3: elbo {scores[f'start {i}']:.5g}" for i in range(3)
    ]


def test_a_log_is_written_at_once(tmp_path, data, monkeypatch):
    """And not when eight kilobytes have come together, or never, if the process is killed."""
    log = (tmp_path / "log").open("w")
    seen = []
    monkeypatch.setattr(sys, "stdout", log)
    train(GraphLayout, TINY, tmp_path, data=data, watch=lambda run: seen.append((tmp_path / "log").read_text()))
    monkeypatch.undo()
    log.close()
    assert [text.count("\n") for text in seen] == [0, 1, 2]
