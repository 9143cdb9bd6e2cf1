"""A curriculum: what batches have, by iteration, and runs with one."""

import math
import subprocess
import sys
from types import SimpleNamespace

import listops_runs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from listops_runs import TINY, ListOps
from test_experiment_processes import ENVIRONMENT
from tiny_runs import GraphLayout, cut_off

from gumtrace_experiments import Config, find, train
from gumtrace_experiments.curriculum import Curriculum
from gumtrace_experiments.loop.easy_first import EasyFirst
from gumtrace_experiments.loop.profiling import profile
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


def ranked(items, curriculum, difficulty, **settings):
    """An experiment of so many items, as far as batches go."""
    config = Config(calls=min(items, 4), samples=1, curriculum=curriculum, **settings)
    return SimpleNamespace(name="ranked", config=config, data=None, items=items, difficulty=difficulty)


def batches(difficulty, curriculum, items=4, seed=0):
    """Of items that are as difficult as a list says."""
    config = Config(calls=items, samples=1, seed=seed, curriculum=curriculum)
    experiment = ranked(len(difficulty), curriculum, lambda data: torch.tensor(difficulty))
    experiment.config = config
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


def test_what_cannot_begin():
    with pytest.raises(ValueError, match="curriculum 4:10 has no item to begin with: the least difficulty is 5"):
        batches([5.0] * 8, "4:10")


@pytest.mark.parametrize(
    ("found", "got"),
    [
        ([1.0] * 8, "list"),
        (np.ones(8), "ndarray"),
        (None, "NoneType"),
        (torch.ones(8, 1), r"one of shape \(8, 1\)"),
        (torch.ones(7), r"one of shape \(7,\)"),
        (torch.tensor([1.0] * 6 + [math.nan] * 2), "nan for 2 of them"),
    ],
)
def test_a_wrong_difficulty_is_one_line(found, got):
    wanted = r"difficulty of ranked must return one number for each item of the training set, a tensor \(8,\)"
    with pytest.raises(ValueError, match=f"^curriculum: {wanted}, got {got}$"):
        EasyFirst(ranked(8, "4:10", lambda data: found))


def test_a_difficulty_that_needs_more_than_the_data_is_one_line():
    """As one without @staticmethod does, which gets the experiment as data."""
    with pytest.raises(ValueError, match="difficulty of ranked must be called with the data alone: make it a static"):
        EasyFirst(ranked(8, "4:10", lambda data, config: data))


class Property(GraphLayout):
    @property
    def difficulty(self):
        return torch.ones(8)


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        (GraphLayout, "graph-layout does not say how difficult an item is: leave out --curriculum, or give"),
        (Property, r"difficulty of graph-layout must be a method difficulty\(data\), got a property"),
    ],
)
def test_experiments_without_a_difficulty_are_refused_before_their_data_are_made(experiment, message, tmp_path):
    config = GraphLayout.smoke(GraphLayout.config_type()).replace(curriculum="3:10")
    with pytest.raises(ValueError, match=f"^curriculum: {message}"):
        train(experiment, config, tmp_path / "runs", data=tmp_path / "data", progress=False)
    with pytest.raises(ValueError, match=f"^curriculum: {message}"):
        profile(experiment, config, tmp_path / "data")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("curriculum", "iterations", "says"),
    [
        ("10:500", 50_000, "all items from iteration 1,500 on"),
        ("12.5:100", 51, "all items from iteration 50 on"),
        ("20:1", 50_000, "all items from iteration 0 on"),
        ("10:500", 1500, "never all items; in the last of 1,500 iterations 3 of 4, up to difficulty 12 of 13"),
        ("12.5:100", 50, "never all items; in the last of 50 iterations 3 of 4, up to difficulty 12 of 13"),
        ("10:100000", 50_000, "never all items; in the last of 50,000 iterations 1 of 4, up to difficulty 10 of 13"),
    ],
)
def test_it_says_how_far_it_comes(curriculum, iterations, says):
    experiment = ranked(4, curriculum, lambda data: torch.tensor([12.0, 10.0, 13.0, 11.0]), iterations=iterations)
    easy_first = EasyFirst(experiment)
    assert str(easy_first) == f"curriculum {curriculum}: {says}"
    assert (easy_first.draw(iterations - 1) is None) == says.startswith("all")
    if says.startswith("all") and not says.endswith(" 0 on"):
        first = int(says.split()[-2].replace(",", ""))
        assert easy_first.draw(first) is None
        assert easy_first.draw(first - 1) is not None


# --- runs ---


def test_listops_is_as_difficult_as_it_is_long(data):
    model = ListOps.build(EASY, ListOps.load(EASY, data, CPU), CPU)
    updater, tokens = Updater(model, Workers(CPU)), model.data.train.tokens
    for i in range(6):
        updater.update(i)
        assert ((tokens[updater.index] != 0).sum(1) <= 10 + i // 3).all()


def test_treebank_is_as_difficult_as_it_has_words(tmp_path):
    treebank = find("treebank")
    config = treebank.config_type(treebank="synthetic", synthetic_size=60, longest=12, calls=8, curriculum="5:2")
    model = treebank.build(config, treebank.load(config, tmp_path, CPU), CPU)
    of = Updater(model, Workers(CPU)).batches.of
    words = [[len(model.data.sentences["train"][item].forms) for item in of(i).tolist()] for i in range(14)]
    assert all(max(drawn) <= 5 + i // 2 for i, drawn in enumerate(words))
    assert max(map(max, words)) > 5


@pytest.mark.parametrize(("order", "known"), [("left-to-right", 0), ("semi-supervised", 20)])
@pytest.mark.parametrize("name", ["parentheses-tree", "parentheses-insertion"])
def test_parentheses_are_as_difficult_as_they_are_long(name, order, known, tmp_path):
    """Items are those whose order is not known, which come behind the others."""
    experiment = find(name)
    small = {"types": 2, "hidden": 8, "calls": 20, "samples": 1, "longest": 8, "train_size": 200, "test_size": 20}
    config = experiment.config_type(curriculum="4:10", order=order, **small)
    model = experiment.build(config, experiment.load(config, tmp_path, CPU), CPU)
    of, tokens = Updater(model, Workers(CPU)).batches.of, model.data.train.tokens
    for i in (0, 19, 20, 39):  # the last one closes, and so is odd; padding is not
        lengths = [max((row % 2).nonzero()).item() + 1 for row in tokens[known + of(i)]]
        assert max(lengths) <= 4 + i // 10


@pytest.mark.parametrize(
    ("curriculum", "says"),
    [("10:3", "curriculum 10:3: all items from iteration 6 on"), ("10:300", "curriculum 10:300: never all items; in")],
)
def test_training_says_how_far_it_comes(curriculum, says, tmp_path, data, capsys):
    """Once for all seeds, and not in a search."""
    config = EASY.replace(curriculum=curriculum)
    train(ListOps, config, tmp_path / "a", data=data, seeds=[0, 1])
    about = [line for line in capsys.readouterr().err.splitlines() if line.startswith("curriculum")]
    assert len(about) == 1
    assert about[0].startswith(says)
    train(ListOps, config, tmp_path / "b", data=data, progress=False)
    assert "curriculum" not in capsys.readouterr().err


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
