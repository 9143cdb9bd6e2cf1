"""The ListOps experiment: training that resumes exactly, and its settings."""

import itertools

import listops_runs
import optuna
import pytest
import torch
from common import seeded
from listops_runs import TINY, ListOps
from optuna.distributions import CategoricalDistribution, FloatDistribution
from tiny_runs import cut_off

import gumtrace as gt
from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import evaluate, train
from gumtrace_experiments.listops import experiment as module
from gumtrace_experiments.listops.expressions import CLOSE, VOCABULARY
from gumtrace_experiments.store.folder import read_metrics

data, model = listops_runs.data, listops_runs.model
OPERATORS = [VOCABULARY.index(name) for name in ("[MIN", "[MAX", "[MED")]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def run(tmp_path, data):
    """Train in a folder of its own; returns the metrics of the seeds."""

    def call(name, config=TINY, seeds=(0,), **settings):
        train(ListOps, config, tmp_path / name, seeds=seeds, data=data, progress=False, **settings)
        return [read_metrics(tmp_path / name / f"seed-{seed}" / "metrics.jsonl") for seed in seeds]

    return call


# --- training ---


SUPPORTED = [name for name, cls in ESTIMATORS.items() if cls.supports(gt.Arborescence(torch.zeros(12, 12)))]


@pytest.mark.parametrize("estimator", SUPPORTED)
@pytest.mark.slow
def test_every_estimator_trains_and_resumes_exactly(estimator, run):
    config = TINY.replace(estimator=estimator, adaptive="adaptive" in ESTIMATORS[estimator].settings())
    (whole,) = run("whole", config)
    assert cut_off(run, config) == [whole]
    numbers = [value for row in whole for value in row.values() if not isinstance(value, str)]
    assert torch.tensor(numbers).isfinite().all()
    assert all(row["std"] > 0 for row in whole if row["split"] == "gradient")


def test_the_probability_of_an_arborescence_is_intractable(run):
    with pytest.raises(NotImplementedError, match="take TraceREINFORCE instead"):
        run("a", TINY.replace(estimator="StructureREINFORCE"))


@pytest.mark.parametrize("settings", [{"precision": "bfloat16"}, {"shards": 2}, {"dropout": 0.0}, {"relabel": 0.5}])
def test_settings_change_a_run_that_resumes_exactly(settings, run):
    config = TINY.replace(**settings)
    (whole,) = run("whole", config)
    assert whole[1:] != run("plain")[0][1:]
    assert cut_off(run, config) == [whole]


def test_seeds_side_by_side_are_as_alone(run):
    """Dropout, too, is each run's own."""
    together = run("together", seeds=[0, 1])
    alone = [run(f"alone-{seed}", seeds=[seed])[0] for seed in (0, 1)]
    assert together == alone
    assert alone[0] != alone[1]


def test_smoke_learns(tmp_path, data):
    config = ListOps.smoke(ListOps.config_type())
    (result,) = train(ListOps, config, tmp_path, data=data, progress=False)
    assert evaluate(tmp_path / "seed-0", "train", data=data) == result["train"]
    rows = [row for row in read_metrics(tmp_path / "seed-0" / "metrics.jsonl") if row["split"] == "train"]
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    assert rows[-1]["precision"] > 2 * rows[0]["precision"]  # nobody told it any edge
    assert evaluate(tmp_path / "seed-0", "test", data=data) == result["test"]


@pytest.mark.parametrize(
    ("estimator", "ways"),
    [
        ("TraceREINFORCE", [True]),
        ("RELAX", [True]),
        ("REBAR", [True, False, False]),  # the structure, then its control variate at two noises
        ("StochasticSoftmax", [False]),
        ("StraightThrough", [False]),
    ],
)
def test_only_structures_without_a_gradient_are_hard(estimator, ways, model, monkeypatch):
    one = ListOps.build(TINY.replace(estimator=estimator), model.data, torch.device("cpu"))
    seen, drawn, learning = [], [], []
    plain = one.classifier.forward

    def forward(tokens, structure, *, hard, masks=None):
        seen.append(hard)
        drawn.append(masks)
        learning.append(one.classifier.out1.weight.requires_grad)
        return plain(tokens, structure, hard=hard, masks=masks)

    monkeypatch.setattr(one.classifier, "forward", forward)
    one.loss(torch.arange(4), seeded())[0].backward()
    assert seen == ways
    assert learning == [way or estimator != "REBAR" for way in ways]  # it learns from hard structures alone
    assert len({id(masks) for masks in drawn}) == 1  # drawn once, whatever the number of calls
    assert drawn[0].messages.shape == (2, 4, 12, 8)
    assert one.encoder.embedding.weight.grad.any()
    with torch.no_grad():
        one.eval().evaluate("test", seeded())
    assert seen[len(ways) :] == [True]
    assert drawn[-1] is None


def test_the_posterior_is_rooted_at_the_first_token(model):
    """And of so many tokens as there are: neither the root nor padding has a head."""
    items = module._batch(model.data.train, torch.arange(8))
    dist = model.posterior(items)
    assert (dist.root, dist.node_counts.tolist()) == (0, items.lengths.tolist())
    tree = dist.sample((3,), generator=seeded())
    assert tree.sum(-2)[..., 0].eq(0).all()
    inside = torch.arange(12) < items.lengths[:, None]
    assert tree.sum(-2)[..., 1:].eq(inside[:, 1:].double()).all()


def test_operators_are_drawn_anew():
    """In the chosen share of the expressions, and nothing else is."""
    tokens = torch.tensor([[OPERATORS[0], 4, OPERATORS[1], 2, CLOSE, CLOSE, 0]]).expand(4000, -1)
    found = module.relabelled(tokens, 0.5, seeded(0))
    places = torch.tensor([True, False, True, False, False, False, False])
    assert torch.equal(found[:, ~places], tokens[:, ~places])
    changed = (found != tokens)[:, places]
    # 0.5 * 2 / 3 of either, within five standard deviations of 0.0075: a false alarm in a million
    assert (changed.float().mean(0) - 1 / 3).abs().max() < 5 * 0.0075
    assert (changed.all(1).float().mean() - 0.5 * 4 / 9).abs() < 5 * 0.0066  # both, in the same expressions
    assert set(found[:, places].unique().tolist()) == set(OPERATORS)
    assert torch.equal(module.relabelled(tokens, 0.0, seeded(0)), tokens)


def test_the_parse_is_sampled_from_true_operators(model, monkeypatch):
    """In training the encoder reads some anew, in evaluations none."""
    read = []
    monkeypatch.setattr(model, "config", TINY.replace(relabel=1.0))
    monkeypatch.setattr(model.encoder, "forward", lambda tokens, _: read.append(tokens) or torch.zeros(8, 12, 12))
    batch = module._batch(model.data.train, torch.arange(8))
    for training in (True, False):
        model.train(training).posterior(batch, seeded(0))
    assert not torch.equal(read[0], batch.tokens)
    assert torch.equal(read[1], batch.tokens)


def test_gradients_are_looked_at_with_other_masks_each_time(model, monkeypatch):
    drawn, plain = [], model.classifier.forward

    def forward(tokens, structure, *, hard, masks=None):
        drawn.append(masks.messages)
        return plain(tokens, structure, hard=hard, masks=masks)

    monkeypatch.setattr(model.classifier, "forward", forward)
    model.gradient_std(torch.arange(4), seeded())
    assert len(drawn) == module.DRAWS
    assert not torch.equal(drawn[0], drawn[1])


def test_only_edges_that_race_count_for_the_spread_of_gradients(model, monkeypatch):
    """Neither loops, nor what enters the first token, nor padding: their gradients are always zero."""
    inside = torch.arange(12) < model.data.train.lengths[:4, None]
    edges = inside[:, :, None] & inside[:, None, :] & ~torch.eye(12, dtype=torch.bool) & (torch.arange(12) > 0)
    signs = itertools.cycle([1.0, -1.0])
    monkeypatch.setattr(module, "gradients", lambda *_: next(signs) * edges[None])
    found = model.gradient_std(torch.arange(4), seeded())
    assert found == pytest.approx((module.DRAWS / (module.DRAWS - 1)) ** 0.5)  # of as many 1 as -1


def test_looking_at_gradients_leaves_the_model_alone(model):
    index = torch.arange(6)
    for name in ("RELAX", "StochasticSoftmax"):
        one = ListOps.build(TINY.replace(estimator=name), model.data, torch.device("cpu"))
        before = {key: value.clone() for key, value in one.state_dict().items() if torch.is_tensor(value)}
        assert one.gradient_std(index, seeded()) > 0
        assert all(p.grad is None for p in one.parameters())
        assert all(torch.equal(value, one.state_dict()[key]) for key, value in before.items())


def test_the_surrogate_sees_the_tokens(model):
    """One-hot, after the edges; both samples of an item see the same."""
    one = ListOps.build(TINY.replace(estimator="SurrogateREINFORCE", samples=2), model.data, torch.device("cpu"))
    one.loss(torch.arange(4), seeded())
    seen = one.estimator.surrogate.seen[: 2 * 4, 11**2 :].reshape(2, 4, 12, len(VOCABULARY))
    tokens = model.data.train.tokens[:4].long()
    assert torch.equal(seen, torch.nn.functional.one_hot(tokens, len(VOCABULARY)).float().expand_as(seen))


# --- settings ---


def test_each_part_has_a_learning_rate_of_its_own(model):
    config = TINY.replace(estimator="RELAX", lr=1e-3, classifier_lr=2e-3, estimator_lr=3e-3, weight_decay=4e-3)
    one = ListOps.build(config, model.data, torch.device("cpu"))
    for group, part, lr, decay in zip(
        one.parameter_groups(),
        (one.encoder, one.classifier, one.estimator),
        (1e-3, 2e-3, 3e-3),
        (4e-3, 4e-3, 0.0),
        strict=True,
    ):
        assert (group["lr"], group["weight_decay"]) == (lr, decay)
        assert {id(p) for p in group["params"]} == {id(p) for p in part.parameters()}
    assert [group["lr"] for group in model.parameter_groups()] == [2e-3, 2e-3]  # by default that of the encoder


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1"),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"train_size": 0}, "train_size must be at least 1, got 0"),
        ({"test_size": -1}, "test_size must be at least 1, got -1"),
        ({"longest": 9}, "longest must be at least 10, for expressions of this depth, got 9"),
        ({"depth": 5}, "longest must be at least 16, for expressions of this depth, got 12"),
        ({"classifier_lr": -1e-3}, "classifier_lr must not be negative, got -0.001"),
        ({"relabel": 1.5}, "relabel must be at least 0 and at most 1, got 1.5"),
        ({"weight_decay": float("nan")}, "weight_decay must not be negative, got nan"),
    ],
)
def test_settings_that_make_no_sense(wrong, message):
    with pytest.raises(ValueError, match=message):
        TINY.replace(**wrong)


def test_original_files_have_depths_of_their_own():
    assert TINY.replace(original=True, depth=5).longest == 12


@pytest.mark.parametrize(
    ("estimator", "name", "value"),
    [
        ("TraceREINFORCE", "samples", 5),
        ("NoiseREINFORCE", "samples", 2),
        ("RELAX", "estimator_lr", 2e-5),
        ("StochasticSoftmax", "temperature", 0.3),
    ],
)
def test_search(estimator, name, value):
    asked = {"lr": 1e-5, "classifier_lr": 1e-3, "weight_decay": 3e-4, name: value}
    config = ListOps.config_type(estimator=estimator)
    found = ListOps.search(config, optuna.trial.FixedTrial(asked))
    assert found == config.replace(**asked)
    assert found.calls == 100 == found.items * found.calls_per_item


@pytest.mark.parametrize(
    ("estimator", "name", "among"),
    [
        ("TraceREINFORCE", "samples", CategoricalDistribution([2, 4, 5])),
        ("NoiseREINFORCE", "samples", CategoricalDistribution([2, 4, 5])),
        ("RELAX", "estimator_lr", FloatDistribution(1e-5, 1e-3, log=True)),
        ("StochasticSoftmax", "temperature", FloatDistribution(0.1, 10.0, log=True)),  # which the paper does not say
    ],
)
def test_the_paper_s_ranges(estimator, name, among):
    trial = optuna.create_study().ask()
    ListOps.search(ListOps.config_type(estimator=estimator), trial)
    rates = dict.fromkeys(("lr", "classifier_lr", "weight_decay"), FloatDistribution(1e-5, 1e-3, log=True))
    assert trial.distributions == {**rates, name: among}
