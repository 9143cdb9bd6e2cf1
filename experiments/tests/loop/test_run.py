"""One run, looked at from the inside: its rates, its data, what it writes and what it reads."""

import math

import pytest
import tiny_runs
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_runs import TINY, GraphLayout, Killed, metrics, stop_early

from gumtrace_experiments import evaluate
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.store.folder import RunFolder, RunFolderError, load, read_json

data, run = tiny_runs.data, tiny_runs.run
pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def made(config, data):
    return Run(GraphLayout.build(config, GraphLayout.load(config, data, CPU), CPU), None, Workers(CPU))


def test_a_cosine_takes_all_rates_along(data):
    """Those of the encoder, of the decoder, and of the critic."""
    config = TINY.replace(estimator="RELAX", schedule="cosine", lr=0.3, decoder_lr=0.2, estimator_lr=0.1, iterations=4)
    found = made(config, data)
    for done in range(4):
        found.update()
        share = 0.5 + 0.5 * math.cos(math.pi * done / 4)
        rates = [group["lr"].item() for group in found.updater.optimiser.param_groups]
        assert rates == pytest.approx([0.3 * share, 0.2 * share, 0.1 * share])


def test_every_epoch_has_all_items_in_an_order_of_its_own(data):
    found = made(TINY.replace(train_size=40, calls=16, samples=2), data)  # five batches of eight
    epochs = []
    for _ in range(3):
        seen = []
        for _ in range(5):
            found.update()
            seen += found.updater.index.tolist()
        epochs.append(seen)
    assert all(sorted(seen) == list(range(40)) for seen in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_averages_are_of_the_updates_since_the_last_evaluation(run):
    """Of the last two, where an interval has four."""
    (often,) = run("often", TINY.replace(iterations=6, evaluate_every=1))
    (seldom,) = run("seldom", TINY.replace(iterations=6, evaluate_every=4))
    each = {row["iteration"]: row["elbo"] for row in often if row["split"] == "train"}
    found = {row["iteration"]: row["elbo"] for row in seldom if row["split"] == "train"}
    assert found == pytest.approx({4: sum(each[i] for i in (1, 2, 3, 4)) / 4, 6: (each[5] + each[6]) / 2}, rel=1e-5)


def test_the_best_model_is_tested_and_not_the_last(run, tmp_path, data):
    """At a rate that is too high: the second of three evaluations is the best."""
    (rows,) = run("a", TINY.replace(lr=0.02))
    valid = {row["iteration"]: row["elbo"] for row in rows if row["split"] == "valid"}
    assert max(valid, key=valid.__getitem__) == 8
    folder = tmp_path / "a" / "seed-0"
    result = read_json(folder / "result.json")
    assert result["iteration"] == 8
    assert result["valid"]["elbo"] == valid[8]
    assert result["test"] == evaluate(folder, "test", data=data)


def test_a_run_without_its_best_model_does_not_resume(run, tmp_path):
    """To find out only at the end would cost hours."""
    stop_early(run, TINY)
    best = tmp_path / "parts" / "seed-0" / "best.pt"
    kept = best.read_bytes()
    best.unlink()
    with pytest.raises(RunFolderError, match=r"best\.pt is gone"):
        run("parts")
    best.write_bytes(kept)
    run("parts")


class Harmful:
    def __reduce__(self):
        return print, ("harm",)


def test_a_checkpoint_runs_no_code(tmp_path, capsys):
    torch.save({"iteration": Harmful()}, tmp_path / "state.pt")
    with pytest.raises(RunFolderError, match=r"state\.pt is of another version of gumtrace, or not of gumtrace"):
        load(tmp_path / "state.pt")
    assert "harm" not in capsys.readouterr().out


def test_tensorboard_has_every_point_once(run, tmp_path, monkeypatch):
    """Of a run that was killed when the second evaluation was logged, and its state not yet saved."""
    save, count = RunFolder.save_state, []

    def killed(self, state):
        count.append(1)
        if len(count) == 2:
            raise Killed
        save(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_state", killed)
        with pytest.raises(Killed):
            run("a")
    folder = tmp_path / "a" / "seed-0"
    assert [row["iteration"] for row in metrics(folder) if row["split"] == "valid"] == [4, 8]
    run("a")
    events = EventAccumulator(str(folder))
    events.Reload()
    steps = [event.step for event in events.Scalars("valid/elbo")]
    assert steps == [row["iteration"] for row in metrics(folder) if row["split"] == "valid"] == [4, 8, 12]
