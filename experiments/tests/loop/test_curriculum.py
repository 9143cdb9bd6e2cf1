"""A curriculum: what batches have, by iteration, and runs with one."""

import subprocess
import sys
from types import SimpleNamespace

import listops_runs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from listops_runs import TINY, ListOps
from test_experiment_processes import ENVIRONMENT
from tiny_runs import GraphLayout, cut_off

from gumtrace_experiments import Config, train
from gumtrace_experiments.curriculum import Curriculum
from gumtrace_experiments.loop.update import Batches, Updater
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.store.folder import read_json, read_metrics

data = listops_runs.data
pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
EASY = TINY.replace(curriculum="10:3")  # of 10 to 12 tokens: all of them from iteration 6 on


@pytest.fixture
def run(tmp_path, data):
    """Train in a folder of its own; returns the metrics of the seeds."""

    def call(name, config=EASY, **settings):
        train(ListOps, config, tmp_path / name, data=data, progress=False, **settings)
        return [read_metrics(tmp_path / name / f"seed-{seed}" / "metrics.jsonl") for seed in settings.get("seeds", [0])]

    return call


def batches(difficulty, curriculum, items=4, seed=0):
    """Of items that are as difficult as a list says."""
    config = Config(calls=items, samples=1, seed=seed, curriculum=curriculum)
    experiment = SimpleNamespace(
        name="ranked", config=config, data=torch.tensor(difficulty), items=len(difficulty), difficulty=lambda data: data
    )
    return Batches(experiment, CPU)


numbers = st.floats(-5, 5, width=32)


@given(st.lists(numbers, min_size=4, max_size=30), numbers, st.floats(0.1, 50), st.integers(0, 60))
def test_no_item_is_above_the_bound(difficulty, start, every, iteration):
    difficulty.append(start)  # one to begin with
    found = batches(difficulty, f"{start}:{every}").of(iteration)
    bound = Curriculum(start, every).bound(iteration)
    assert found.shape == (4,)
    assert all(difficulty[item] <= bound for item in found.tolist())


def test_a_bound_goes_up_by_one():
    assert [Curriculum.parse("12:500").bound(i) for i in (0, 250, 500, 19_000)] == [12, 12.5, 13, 50]
    assert Curriculum.parse("-1.5:0.5").bound(3) == 4.5


def test_draws_are_uniform():
    """Of the ten items that the bound has. Chi-square with 9 degrees of freedom: above 33.7 once in 10 000 runs."""
    found = batches([3.0] * 10 + [4.0] * 10, "3:1e9", items=20)
    drawn = torch.cat([found.of(i) for i in range(500)])
    counts = drawn.bincount(minlength=20)
    assert counts[10:].sum() == 0
    assert ((counts[:10] - 1000) ** 2 / 1000).sum() < 33.7


def test_a_batch_may_have_more_items_than_there_are_to_begin_with():
    assert batches([1, 2, 3, 4, 5], "1:10").of(0).tolist() == [0] * 4


def test_with_all_items_batches_are_those_without_a_curriculum():
    """Epochs, each in an order of its own, as if there had been some before."""
    easy, plain = batches(list(range(40)), "20:1"), batches(list(range(40)), "")
    for i in range(60):
        assert (easy.of(i).tolist() == plain.of(i).tolist()) == (i >= 19)
    epoch = torch.cat([easy.of(i) for i in range(50, 60)])
    assert epoch.sort().values.tolist() == list(range(40))


def test_batches_are_a_function_of_the_seed_and_the_iteration():
    one, other = batches(list(range(40)), "20:10"), batches(list(range(40)), "20:10")
    forward = [one.of(i).tolist() for i in range(30)]
    assert [other.of(i).tolist() for i in reversed(range(30))] == forward[::-1]
    assert batches(list(range(40)), "20:10", seed=1).of(0).tolist() != forward[0]


@pytest.mark.parametrize("text", ["12", "12:", ":500", "a:500", "12:0", "12:-5", "nan:500", "12:inf", "12:500:1"])
def test_other_grammars_are_refused(text):
    with pytest.raises(ValueError, match=f"curriculum must be START:EVERY, .* got '{text}'"):
        Config(curriculum=text)


@pytest.mark.parametrize(
    ("difficulty", "message"),
    [
        ([5.0] * 8, "curriculum 4:10 has no item to begin with: the least difficulty is 5"),
        ([1.0] * 7 + [float("nan")], "ranked needs one difficulty for each item, none of them nan"),
        ([[1.0]] * 8, "ranked needs one difficulty for each item"),
    ],
)
def test_what_cannot_begin(difficulty, message):
    with pytest.raises(ValueError, match=message):
        batches(difficulty, "4:10")


def test_an_experiment_without_a_difficulty_is_refused(tmp_path):
    config = GraphLayout.smoke(GraphLayout.config_type()).replace(curriculum="3:10")
    with pytest.raises(ValueError, match="curriculum: graph-layout does not say how difficult an item is"):
        train(GraphLayout, config, tmp_path, data=tmp_path, progress=False)
    assert not (tmp_path / "seed-0" / "config.json").exists()


# --- runs ---


def test_listops_is_as_difficult_as_it_is_long(data):
    model = ListOps.build(EASY, ListOps.load(EASY, data, CPU), CPU)
    updater, tokens = Updater(model, Workers(CPU)), model.data.train.tokens
    for i in range(6):
        updater.update(i)
        assert ((tokens[updater.index] != 0).sum(1) <= 10 + i // 3).all()


@pytest.mark.parametrize(
    "settings", [{}, {"shards": 2}, {"starts": 2, "start_iterations": 4}, {"estimator": "StochasticSoftmax"}]
)
def test_a_run_resumes_exactly(settings, run, tmp_path):
    config = EASY.replace(**settings)
    (whole,) = run("whole", config)
    assert whole != run("plain", config.replace(curriculum=""))[0]
    assert cut_off(run, config) == [whole]
    assert read_json(tmp_path / "whole" / "seed-0" / "config.json")["config"]["curriculum"] == "10:3"


@pytest.mark.slow
def test_two_processes_are_as_one(run, tmp_path, data):
    config = EASY.replace(shards=2)
    (one,) = run("one", config)
    default = ListOps.config_type().to_dict()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "gumtrace_experiments", "train", "listops", "--out", str(tmp_path / "two"), "--data", str(data)]
    command += [f"--{name.replace('_', '-')}={x}" for name, x in config.to_dict().items() if x != default[name]]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-3000:]
    two = read_metrics(tmp_path / "two" / "seed-0" / "metrics.jsonl")
    assert len(two) == len(one)
    for ours, theirs in zip(two, one, strict=True):
        for name, value in ours.items():
            assert value == (
                theirs[name] if isinstance(value, str) else pytest.approx(theirs[name], rel=1e-4, abs=1e-6)
            )


@pytest.mark.slow
def test_smoke_learns_with_short_expressions_first(tmp_path, data):
    config = ListOps.smoke(ListOps.config_type()).replace(curriculum="10:10")  # all of up to 20 from iteration 100 on
    (result,) = train(ListOps, config, tmp_path, data=data, progress=False)
    rows = [row for row in read_metrics(tmp_path / "seed-0" / "metrics.jsonl") if row["split"] == "train"]
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    assert rows[-1]["precision"] > 2 * rows[0]["precision"]  # nobody told it any edge
    assert result["test"]["accuracy"] > 0.2
