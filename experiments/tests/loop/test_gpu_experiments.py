"""Training on real hardware: what a recorded update does is what the update does, and neither synchronises.

Metrics are compared up to rounding, not bit by bit: libraries choose other algorithms under a graph, and some sums are
in the order in which threads come. In float32 that is 2⁻²⁴ a sum, and a little of it is made much of: where a gradient
should be 0 (a bias before a batch norm, where ELU is linear) Adam takes a whole step to one side or the other, and a
race or a relu may be won by a hair. On the CPU, with initial weights changed by 10⁻⁶, eight updates change the ELBO by
up to 7·10⁻⁴ of it, a KL divergence that has only begun to grow by up to 7·10⁻³, and in most runs by a hundredth of
that. What the updates themselves do to the ELBO is a quarter of it.

The other experiments have LSTMs of cuDNN in their updates. In the same trial their losses change by up to 4·10⁻⁶; where
a race is won by a hair, an edge changes, which is a share of all edges, words or sentences.
"""

import warnings
from contextlib import ExitStack

import pytest
import tiny_runs
import torch
from tiny_runs import stop_early

from gumtrace_experiments import evaluate, find, names, train
from gumtrace_experiments.loop.profiling import PARTS, profile
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.store.folder import read_metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="needs a CUDA device; the harness runs on the CPU in test_experiments.py, without graphs",
    ),
    pytest.mark.usefixtures("one_machine"),
]

DEVICE = torch.device("cuda")
data, one_machine = tiny_runs.data, tiny_runs.one_machine
GraphLayout = find("graph-layout")
TINY = GraphLayout.config_type(  # the decoder's kernels for trees take widths of 16
    frames=4,
    nodes=4,
    hidden=16,
    critic_hidden=16,
    calls=24,
    train_size=100,
    test_size=20,
    iterations=8,
    evaluate_every=4,
    lr=2e-3,
    precision="float32",
)
LISTOPS = find("listops").config_type(
    longest=12,
    depth=2,
    rounds=2,
    hidden=16,
    calls=24,
    train_size=100,
    test_size=50,
    iterations=8,
    evaluate_every=4,
    lr=1e-3,
    precision="float32",
)
TREE = find("parentheses-tree").config_type(
    types=2,
    longest=6,
    hidden=16,
    calls=24,
    train_size=100,
    test_size=50,
    bound_samples=4,
    valid_bound_samples=4,
    proposal_trees=100,
    generated=50,
    iterations=8,
    evaluate_every=4,
    lr=1e-3,
    precision="float32",
)
TREEBANK = find("treebank").config_type(
    treebank="synthetic",
    synthetic_size=200,
    longest=8,
    hidden=16,
    calls=16,
    iterations=8,
    evaluate_every=4,
    lr=1e-3,
    precision="float32",
)
L2X = find("l2x").config_type(
    reviews="synthetic",
    synthetic_size=200,
    longest=20,
    chosen=4,
    calls=24,
    iterations=8,
    evaluate_every=4,
    lr=1e-3,
    precision="float32",
)
INSERTION = find("parentheses-insertion").config_type(
    types=2,
    longest=6,
    hidden=16,
    width=16,
    layers=1,
    heads=2,
    calls=24,
    train_size=100,
    test_size=50,
    bound_samples=4,
    valid_bound_samples=4,
    generated=50,
    iterations=8,
    evaluate_every=4,
    lr=1e-3,
    precision="float32",
)
ELBO, OTHERS = 1e-3, 2e-2  # relative; ELBO is for losses, too
FLIPS = 0.03  # absolute, of shares: some edges that are others
every_estimator = pytest.mark.parametrize(
    "estimator", ["TraceREINFORCE", "RELAX", "REBAR", "StochasticSoftmax", "GumbelRao", "SurrogateREINFORCE"]
)
with_lstms = pytest.mark.parametrize(
    "config",
    [
        *(LISTOPS.replace(estimator=name) for name in ("TraceREINFORCE", "RELAX", "REBAR", "StochasticSoftmax")),
        LISTOPS.replace(curriculum="10:2"),
        *(TREE.replace(estimator=name) for name in ("TraceREINFORCE", "RELAX")),
        TREE.replace(order="smart"),
        *(TREEBANK.replace(estimator=name) for name in ("TraceLikelihood", "MatrixTreeCRF", "TraceREINFORCE", "RELAX")),
        *(INSERTION.replace(estimator=name) for name in ("TraceREINFORCE", "RELAX")),
        INSERTION.replace(order="smart"),
        # It has convolutions instead, whose sums are in another order as well.
        *(L2X.replace(estimator=name) for name in ("TraceREINFORCE", "RELAX", "REBAR", "StraightThrough", "FullText")),
        L2X.replace(estimator="StochasticSoftmax", kind="binary", model="complex"),
    ],
    ids=lambda config: f"{experiment(config).name}-{config.estimator}" + "-curriculum" * bool(config.curriculum),
)
both_trainings = pytest.mark.parametrize("training", ["teacher-forced", "unrolled"])


def experiment(config):
    """The one whose config this is."""
    return next(found for found in map(find, names()) if found.config_type is type(config))


@pytest.fixture
def run(tmp_path, data):
    """Train in a folder of its own; returns the metrics of the seeds."""

    def call(name, config=TINY, seeds=(0,), **settings):
        where = {"device": DEVICE, "data": data, "progress": False}
        train(experiment(config), config, tmp_path / name, seeds=seeds, **where, **settings)
        return [read_metrics(tmp_path / name / f"seed-{seed}" / "metrics.jsonl") for seed in seeds]

    return call


@pytest.fixture
def build(data):
    """A run that is not recorded in a folder."""
    with ExitStack() as stack:

        def call(config, **settings):
            stack.enter_context(config.set_precision())
            kind = experiment(config)
            return Run(kind.build(config, kind.load(config, data, DEVICE), DEVICE), None, Workers(DEVICE), **settings)

        yield call


def check_alike(ours, theirs, flips=0.0):
    """The metrics of runs, up to rounding and, of shares, up to some edges."""
    assert len(ours) == len(theirs)
    for mine, others in zip(ours, theirs, strict=True):
        assert [moment(row) for row in mine] == [moment(row) for row in others]
        for row, other in zip(mine, others, strict=True):
            for name, value in row.items():
                close = ELBO if name in ("elbo", "loss") or name.startswith("start ") else OTHERS
                apart = max(1e-5, 0.0 if name in ("loss", "std") else flips)
                exact = isinstance(value, str) or name == "iteration"
                expected = other[name] if exact else pytest.approx(other[name], rel=close, abs=apart)
                assert value == expected, f"{name} of {row}, {other}"
            assert row.keys() == other.keys()


def moment(row):
    return row["iteration"], row["split"]


def valid_elbos(rows, name="elbo"):
    return [row[name] for row in rows if row["split"] == "valid"]


# --- recorded or not ---


@both_trainings
@every_estimator
def test_a_graph_changes_nothing(estimator, training, run):
    config = TINY.replace(estimator=estimator, training=training)
    recorded, plain = run("recorded", config, graph=True), run("plain", config)
    check_alike(recorded, plain)
    first, last = valid_elbos(recorded[0])
    assert last > first + 10 * ELBO * abs(first)  # it learns: far more than what counts as alike


@with_lstms
def test_a_graph_changes_nothing_with_lstms(config, run):
    recorded, plain = run("recorded", config, graph=True), run("plain", config)
    check_alike(recorded, plain, FLIPS)
    first, last = (row["loss"] for row in recorded[0] if row["split"] == "train")
    assert first != pytest.approx(last, rel=ELBO)  # of other items, with other noise and another model


@pytest.mark.parametrize(
    "settings",
    [{"schedule": "cosine"}, {"clip": 0.1}, {"shards": 2}, {"starts": 2, "start_iterations": 4}],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_under_a_graph(settings, run):
    config = TINY.replace(**settings)
    recorded = run("recorded", config, seeds=(0, 1, 2), graph=True)
    check_alike(recorded, run("plain", config, seeds=(0, 1, 2)))


def test_starts_under_a_graph(run):
    """Each is an initial model of its own, and a new one does not learn from what the one before has learnt."""
    config = TINY.replace(starts=2, start_iterations=4)
    seeds = (0, 1, 2)
    rows = run("starts", config, seeds=seeds, graph=True)
    plain = run("plain", TINY, seeds=seeds, graph=True)
    for mine, others in zip(rows, plain, strict=True):
        (found,) = [row for row in mine if row["split"] == "starts"]
        scores = [found["start 0"], found["start 1"]]
        early, late = valid_elbos(others)
        assert scores[0] == pytest.approx(early, rel=ELBO)
        assert scores[1] != pytest.approx(scores[0], rel=ELBO)
        if scores[0] > scores[1]:  # it continues as if it had been the only one
            assert valid_elbos(mine) == [pytest.approx(late, rel=ELBO)]


def test_cut_off_and_gone_on_without_a_graph(run, tmp_path):
    check_gone_on(TINY, False, run, tmp_path)


@every_estimator
def test_cut_off_and_gone_on(estimator, run, tmp_path, data):
    """With a graph: without one they are resumed on the CPU, too, in test_experiments.py."""
    rows = check_gone_on(TINY.replace(estimator=estimator), True, run, tmp_path)
    found = evaluate(tmp_path / "parts" / "seed-0", "valid", DEVICE, data)
    assert found["elbo"] == pytest.approx(max(valid_elbos(rows[0])), rel=ELBO)


def check_gone_on(config, graph, run, tmp_path):
    stop_early(run, config, graph=graph)
    assert len(valid_elbos(read_metrics(tmp_path / "parts" / "seed-0" / "metrics.jsonl"))) == 1
    rows = run("parts", config, graph=graph)
    check_alike(rows, run("whole", config, graph=graph))
    return rows


@with_lstms
def test_cut_off_and_gone_on_with_lstms(config, run, tmp_path, data):
    stop_early(run, config, graph=True)
    rows = run("parts", config, graph=True)
    check_alike(rows, run("whole", config, graph=True), FLIPS)
    better = experiment(config).selection_metric
    found = evaluate(tmp_path / "parts" / "seed-0", "valid", DEVICE, data)
    assert found[better] == pytest.approx(max(valid_elbos(rows[0], better)), abs=FLIPS)


@pytest.mark.parametrize("graph", [False, True])
def test_seeds_side_by_side_are_as_alone(graph, run):
    seeds = (0, 1, 2)
    together = run("together", seeds=seeds, graph=graph)
    alone = [run(f"alone-{seed}", seeds=(seed,), graph=graph)[0] for seed in seeds]
    check_alike(together, alone)
    last = [valid_elbos(rows)[-1] for rows in together]
    assert last[0] != pytest.approx(last[1], rel=ELBO)
    assert last[1] != pytest.approx(last[2], rel=ELBO)


@both_trainings
@every_estimator
def test_recording_leaves_no_trace(estimator, training, build):
    check_no_trace(TINY.replace(estimator=estimator, training=training), build)


@with_lstms
def test_recording_leaves_no_trace_with_lstms(config, build):
    check_no_trace(config, build)


def check_no_trace(config, build):
    """The updates made on the way are undone, to the bit."""
    recorded, plain = build(config, graph=True), build(config)
    torch.cuda.synchronize()
    assert (recorded.iteration, recorded.best, recorded.valid) == (plain.iteration, plain.best, plain.valid)
    assert recorded.experiment.training == plain.experiment.training
    for named in (torch.nn.Module.named_parameters, torch.nn.Module.named_buffers):
        ours, theirs = (dict(named(made.experiment)) for made in (recorded, plain))
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), name
    for state in (*recorded.updater.optimiser.state.values(), *plain.updater.optimiser.state.values()):
        for name, value in state.items():
            assert not value.any(), name  # it begins with zeros
    for ours, theirs in zip(recorded.updater.optimiser.param_groups, plain.updater.optimiser.param_groups, strict=True):
        assert float(ours["lr"]) == float(theirs["lr"])
    assert not any(recorded.updater.totals().values())


# --- no waiting ---


WITH_ALL = {"schedule": "cosine", "clip": 1.0}


@both_trainings
@every_estimator
def test_an_update_does_not_wait(estimator, training, build):
    check_no_waiting(build(TINY.replace(estimator=estimator, training=training, **WITH_ALL)))


@with_lstms
def test_an_update_does_not_wait_with_lstms(config, build):
    check_no_waiting(build(config.replace(**WITH_ALL)))


@pytest.mark.parametrize("config", [TINY, LISTOPS.replace(curriculum="10:2")], ids=["layout", "curriculum"])
def test_a_replay_does_not_wait(config, build):
    """An update that synchronises cannot be recorded as a CUDA graph, so one estimator is enough here."""
    check_no_waiting(build(config.replace(**WITH_ALL), graph=True))


def check_no_waiting(made):
    with made.updater.on_stream():
        made.update()  # compiles
        made.update()
        torch.cuda.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # says that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            made.update()
            made.update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert made.iteration == 4
    torch.cuda.synchronize()
    assert all(value == value for value in made.updater.totals().values())  # none is nan


def test_a_profile_has_the_time_of_host_and_device(data):
    report = profile(GraphLayout, TINY, data, "cuda", 2)
    for part in PARTS:
        assert float(report.split(f"{part} ")[1].split()[1]) > 0
    assert float(report.split("device busy")[1].split()[0]) > 0
