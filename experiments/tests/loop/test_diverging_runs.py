"""Runs whose numbers are none any more: they end, they are counted, and the others continue."""

import math

import pytest
import tiny_runs
import torch
from fake_runs import write_run
from optuna.trial import TrialState
from quadratic import Quadratic, QuadraticConfig, make
from tiny_runs import TINY, GraphLayout, Killed, metrics

from gumtrace.structures.checks import NotFinite
from gumtrace_experiments import find, train
from gumtrace_experiments.commands import main
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.report.groups import choices
from gumtrace_experiments.report.records import collect
from gumtrace_experiments.report.tables import build
from gumtrace_experiments.store.folder import read_json, write_json
from gumtrace_experiments.sweep.front_end import run_sweep
from gumtrace_experiments.sweep.jobs import Jobs

data, run = tiny_runs.data, tiny_runs.run
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def spoil(monkeypatch):
    """Parameters become nan in so-and-so-manieth update of a model of a seed."""

    def call(update, seed=0):
        loss = GraphLayout.loss

        def spoilt(self, *args):
            self.made = getattr(self, "made", 0) + 1
            if self.made == update and self.config.seed == seed:
                for p in self.parameters():
                    p.data.fill_(math.nan)
            return loss(self, *args)

        monkeypatch.setattr(GraphLayout, "loss", spoilt)

    return call


def test_the_other_seeds_continue(run, tmp_path, spoil):
    expected = run("alone", TINY.replace(seed=1))
    spoil(6)
    first, second = run("both", seeds=[0, 1])
    assert [second] == expected
    assert [row["iteration"] for row in first if row["split"] == "valid"] == [4]
    lost, other = (read_json(tmp_path / "both" / f"seed-{seed}" / "result.json") for seed in (0, 1))
    assert lost["diverged"].startswith("at iteration 5: SpanningTree: item (0,) of the batch")
    assert lost["iteration"] == 4  # the best of what was evaluated
    assert lost["test"]["elbo"] < 0
    assert "diverged" not in other


def test_one_that_diverges_at_once_makes_its_setting_the_worst(run, tmp_path, spoil):
    spoil(2)
    run("a", seeds=[0, 1])
    result = read_json(tmp_path / "a" / "seed-0" / "result.json")
    assert result["test"] == result["valid"] == {}
    (choice,) = choices(collect([tmp_path / "a"]), find("graph-layout").report(), find("graph-layout").selection_metric)
    assert len(choice.group.finished) == 2
    assert choice.group.score("elbo") == -math.inf


def test_the_command_says_so(tmp_path, spoil, capsys):
    spoil(2)
    sizes = [f"--{name.replace('_', '-')}={getattr(TINY, name)}" for name in ("frames", "nodes", "hidden", "calls")]
    sizes += ["--train-size=40", "--test-size=20", "--iterations=12", "--evaluate-every=4"]
    where = ["--out", str(tmp_path / "a"), "--data", str(tmp_path / "data")]
    for _ in range(2):  # trained, and read
        assert main(["train", "graph-layout", *sizes, *where, "--seeds", "0-1"]) == 1
        out, err = capsys.readouterr()
        assert "gumtrace train: seed 0 diverged at iteration 1: SpanningTree" in err
        assert "seed 1: elbo" in out
        assert "seed 0: elbo" not in out
    assert main(["table", "graph-layout", str(tmp_path / "a")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "T-REINFORCE+: seed 0 diverged." in out
    assert "ours – −" in out  # no mean, but a best
    assert "nan" not in out
    assert main(["evaluate", "graph-layout", str(tmp_path / "a"), *where[2:]]) == 0
    assert "seed-0 diverged at iteration 1: SpanningTree" in capsys.readouterr().err


def test_a_start_that_diverges_is_one_of_several(run, tmp_path, spoil, monkeypatch):
    """In an update, or when it is evaluated and nobody looked."""
    config = TINY.replace(starts=3, start_iterations=4)
    (expected,) = run("whole", config)
    (scores,) = [row for row in expected if row["split"] == "starts"]
    assert max((0, 1, 2), key=lambda i: scores[f"start {i}"]) != 0  # or else the first would have been chosen
    for raises in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(GraphLayout, "evaluate", _nan_at_first(GraphLayout.evaluate, raises))
            (found,) = run(f"evaluated-{raises}", config)
        assert _without_first_start(found) == _without_first_start(expected)
    spoil(2)
    (found,) = run("updated", config)
    assert _without_first_start(found) == _without_first_start(expected)
    assert read_json(tmp_path / "updated" / "seed-0" / "result.json")["starts"][0] is None


def _nan_at_first(evaluate, raises=False):
    calls = []

    def evaluated(self, *args):
        calls.append(1)
        if len(calls) == 1 and raises:
            raise NotFinite("nan")
        return evaluate(self, *args) | ({"elbo": math.nan} if len(calls) == 1 else {})

    return evaluated


def _without_first_start(rows):
    return [{name: x for name, x in row.items() if name != "start 0"} for row in rows]


def test_all_starts_diverge(run, tmp_path, monkeypatch):
    monkeypatch.setattr(GraphLayout, "loss", _raises)
    run("a", TINY.replace(starts=2, start_iterations=4))
    assert metrics(tmp_path / "a" / "seed-0")[-1]["split"] == "starts"
    assert read_json(tmp_path / "a" / "seed-0" / "result.json")["diverged"] == "at iteration 0: nan"


def _raises(self, *args):
    raise NotFinite("nan")


def test_a_start_that_diverged_is_not_tried_again(run, tmp_path, spoil, monkeypatch):
    """By a run that was cut off right after it."""
    config = TINY.replace(starts=3, start_iterations=4)
    spoil(2)
    (expected,) = run("whole", config)
    restart, made = Run._restart, []

    def killed(self, number):
        made.append(number)
        restart(self, number)
        if made == [1, 2]:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_restart", killed)
        with pytest.raises(Killed):
            run("parts", config)
    monkeypatch.undo()  # what spoils comes to the first model that is made, and here that would be the second start
    assert run("parts", config) == [expected]


def test_where_nobody_looks_it_ends_at_the_next_evaluation(run, tmp_path, monkeypatch):
    """As on a GPU."""
    loss = GraphLayout.loss

    def spoilt(self, *args):
        total, found = loss(self, *args)
        self.made = getattr(self, "made", 0) + 1
        return total * (math.nan if self.made == 8 else 1), found  # parameters are nan after the eighth update

    monkeypatch.setattr(GraphLayout, "loss", spoilt)
    (rows,) = run("a")
    assert [row["iteration"] for row in rows if row["split"] == "valid"] == [4]
    result = read_json(tmp_path / "a" / "seed-0" / "result.json")
    assert result["diverged"] == "at iteration 8: a parameter is nan or infinite"
    assert result["iteration"] == 4


def test_one_that_diverges_on_the_test_set(run, tmp_path, monkeypatch):
    evaluate = GraphLayout.evaluate

    def evaluated(self, split, generator):
        if split == "test" and self.config.seed == 0:
            raise NotFinite("nan")
        return evaluate(self, split, generator)

    monkeypatch.setattr(GraphLayout, "evaluate", evaluated)
    run("a", seeds=[0, 1])
    lost, other = (read_json(tmp_path / "a" / f"seed-{seed}" / "result.json") for seed in (0, 1))
    assert lost["diverged"] == "where validation did not see it: nan"
    assert lost["test"] == {}
    assert other["test"]["elbo"] < 0


def test_one_that_cannot_even_begin(run, tmp_path, monkeypatch):
    monkeypatch.setattr(GraphLayout, "gradient_std", _raises)
    run("a")
    (record,) = collect([tmp_path / "a"])
    assert record.result is not None
    assert record.result["diverged"] == "at iteration 0: nan"


def test_the_log_says_so_at_once(data, tmp_path, spoil, capsys):
    spoil(6)
    train(GraphLayout, TINY, tmp_path, seeds=[0, 1], data=data)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "seed 0, 4 of 12", "seed 1, 4 of 12", "seed 0, diverged at iteration 5", "seed 1, 8 of 12", "seed 1, 12 of 12"
    ]  # fmt: skip
    assert lines[-1].endswith("0:00:00 left")  # the updates that seed 0 did not make are not waited for


def test_a_trial_that_diverged_is_given_up(tmp_path):
    """It has a result, if it was evaluated before: nobody averages it."""
    for seed in (0, 1):
        folder = write_run(tmp_path, seed=seed, test=-900.0)
        write_json(folder / "pruned.json", {"reason": "diverged"})
    body = read_json(folder / "result.json")
    write_json(folder / "result.json", {**body, "diverged": "at iteration 3: nan"})
    first, second = sorted(collect([tmp_path]), key=lambda record: record.seed)
    assert not first.pruned  # it was trained to its end later
    assert second.pruned
    (choice,) = choices([first, second], find("graph-layout").report(), "elbo")
    assert choice.group.finished == [first]


def test_noise_that_is_no_number_is_left_out_of_the_table(tmp_path):
    for seed, end in ((0, None), (1, 3.0)):
        folder = write_run(tmp_path, seed=seed)
        body = read_json(folder / "result.json")
        write_json(folder / "result.json", {**body, "gradient_std": {"beginning": None, "end": end}})
    (_, table), _ = build(collect([tmp_path]), find("graph-layout").report(), "elbo")
    assert [cell.text for cell in table.rows[-1]][2:] == ["", "", "3"]


def test_other_errors_are_errors(run, monkeypatch):
    def broken(self, *args):
        raise ValueError("a bug")

    monkeypatch.setattr(GraphLayout, "loss", broken)
    with pytest.raises(ValueError, match="a bug"):
        run("a")


def test_a_sweep_continues(tmp_path, monkeypatch):
    """Above a learning rate an update cannot be made."""
    loss = Quadratic.loss

    def spoilt(self, *args):
        if self.config.lr > 0.1 and self.steps >= 7:
            raise NotFinite("nan")
        return loss(self, *args)

    monkeypatch.setattr(Quadratic, "loss", spoilt)
    study = run_sweep(make(tmp_path, 15, QuadraticConfig(lr=0.1), prune=False), Jobs())
    diverged = [t for t in study.trials if t.user_attrs.get("reason") == "at iteration 7: nan"]
    assert 0 < len(diverged) < 15
    assert {t.state for t in diverged} == {TrialState.PRUNED}
    assert all((t.params["lr"] > 0.1) == (t in diverged) for t in study.trials)


def test_with_several_processes_all_have_to_end(data, tmp_path, monkeypatch):
    monkeypatch.setattr(GraphLayout, "loss", _raises)
    monkeypatch.setattr("gumtrace_experiments.loop.workers.Workers.__init__", _of_two)
    with pytest.raises(NotFinite):
        train(GraphLayout, TINY.replace(shards=2), tmp_path, data=data, progress=False)


def _of_two(self, device):
    self.world, self.rank, self.device = 2, 0, torch.device(device)
    self.sum = self.wait = lambda *args: None
