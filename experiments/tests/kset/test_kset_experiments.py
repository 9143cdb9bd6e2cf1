"""The three k-subset tasks: training that resumes exactly, losses and scores by hand."""

import math

import pytest
import torch
from common import seeded
from tiny_runs import cut_off
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import gumtrace as gt
from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import evaluate, find, train
from gumtrace_experiments.kset.data import Split, load
from gumtrace_experiments.store.folder import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
Autoencoder, Features, Neighbours = (find(f"kset-{task}") for task in ("autoencoder", "features", "neighbours"))
_SMALL = {
    "digits": "synthetic",
    "synthetic_size": 60,
    "width": 8,
    "calls": 24,
    "extra": 8,
    "iterations": 6,
    "evaluate_every": 3,
    "lr": 2e-3,
}
TINY = {
    Autoencoder: Autoencoder.config_type(**_SMALL, samples=2, rows=3, columns=5, subset_size=2),
    Features: Features.config_type(**_SMALL, subset_size=9, selector_width=4),
    Neighbours: Neighbours.config_type(**_SMALL, candidates=12, subset_size=3),
}
TASKS = pytest.mark.parametrize("task", TINY, ids=lambda task: task.name)
SUPPORTED = [name for name, cls in ESTIMATORS.items() if cls.supports(gt.Subset(torch.zeros(4), 2))]


@pytest.fixture(scope="module")
def data():
    return load("", "synthetic", 1, 60)


@pytest.fixture
def run(tmp_path):
    """Train in a folder of its own; returns the metrics."""

    def call(name, config, **settings):
        task = next(task for task in TINY if task.config_type is type(config))
        train(task, config, tmp_path / name, progress=False, **settings)
        return read_metrics(tmp_path / name / "seed-0" / "metrics.jsonl")

    return call


def build(task, data, **settings):
    return task.build(TINY[task].replace(**settings), data, CPU)


# --- training ---


@pytest.mark.parametrize("estimator", SUPPORTED)
@TASKS
@pytest.mark.slow
def test_every_estimator_trains_and_resumes_exactly(task, estimator, run):
    config = TINY[task].replace(estimator=estimator)
    whole = run("whole", config)
    assert cut_off(run, config) == whole
    numbers = [value for row in whole for value in row.values() if not isinstance(value, str)]
    assert torch.tensor(numbers).isfinite().all()
    exact = (task, estimator) == (Neighbours, "MarginalStraightThrough")  # of a loss that is linear in the subset
    assert all((row["std"] > 0) is not exact for row in whole if row["split"] == "gradient")


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (Autoencoder, {"kl": "noise"}),
        (Autoencoder, {"logit_scale": 1.0}),
        (Features, {"selector": "instance"}),
        (Features, {"selector_lr": 0.1}),
        (Neighbours, {"dimensions": 3}),
        (Neighbours, {"shards": 2}),
    ],
    ids=lambda part: part.name if isinstance(part, type) else next(iter(part)),
)
@pytest.mark.slow
def test_settings_change_a_run_that_resumes_exactly(task, settings, run):
    config = TINY[task].replace(**settings)
    whole = run("whole", config)
    assert whole[1:] != run("plain", TINY[task])[1:]
    assert cut_off(run, config) == whole


@pytest.mark.parametrize(
    ("task", "estimator", "metric", "least"),
    [
        (Autoencoder, "StraightThrough", "objective", -205),  # of 264 after one update, and 140 in the end
        (Features, "StraightThrough", "accuracy", 0.5),  # by chance: 0.1
        (Features, "TraceREINFORCE", "accuracy", 0.4),
        (Neighbours, "TraceREINFORCE", "accuracy", 0.6),
    ],
)
@pytest.mark.slow
def test_smoke_learns(task, estimator, metric, least, tmp_path):
    config = task.smoke(task.config_type(estimator=estimator))
    (result,) = train(task, config, tmp_path, progress=False)
    assert result["test"][metric] > least
    assert evaluate(tmp_path / "seed-0", "test") == result["test"]


# --- losses ---


@TASKS
def test_objectives_take_any_number_of_samples(task, data):
    """What belongs to an item broadcasts from the right, as diagnostics need it."""
    with torch.no_grad():
        dist, objective, context = build(task, data).problem(torch.arange(4), seeded())
        value = getattr(dist, "base_dist", dist).sample((2, 3), generator=seeded())
        losses = objective(value)
        assert losses.shape == (2, 3, 4)
        for place in ((0, 0), (1, 2)):
            torch.testing.assert_close(losses[place], objective(value[place]))
    assert context.shape[:-1] == (4,)
    assert losses.std(0).sum() > 0


@pytest.mark.parametrize("kl", ["category", "noise"])
def test_the_loss_of_the_autoencoder(kl, data):
    model = build(Autoencoder, data, kl=kl, kl_weight=0.3)
    index = torch.arange(12)
    images = data.train.images[index] / 255
    loss, metrics = model.loss(index, seeded())
    logits = model.encoder(images).view(12, 3, 5)
    value = gt.Subset(5 * logits, 2).sample((2,), generator=seeded())
    found = binary_cross_entropy_with_logits(
        model.decoder(value.flatten(-2)), images.expand(2, 12, 784), reduction="none"
    )
    if kl == "category":
        p = logits.softmax(-1)
        other = (p * (5 * p).log()).sum((-1, -2))
    else:
        other = gt.divergences.noise_kl(gt.Subset(5 * logits, 2), gt.Subset(torch.zeros(5), 2), any_scale=True).sum(-1)
    torch.testing.assert_close(loss, found.sum(-1).mean() + 0.3 * other.mean())
    assert metrics["loss"] == loss
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_bound_of_the_autoencoder(data):
    """With few keys the divergence can be enumerated; it is at most that of the noise, and above log-likelihoods."""
    model = build(Autoencoder, data, logit_scale=2.0)
    with torch.no_grad():
        for p in model.encoder.parameters():
            p.mul_(1.5)
        found = model.evaluate("test", seeded())
        posterior = model.posterior(model.encode(data.test.images / 255)).base_dist
        exact = torch.distributions.kl_divergence(posterior, gt.Subset(torch.zeros(5), 2).expand(posterior.batch_shape))
        noise = gt.divergences.noise_kl(posterior, gt.Subset(torch.zeros(15, 3, 5), 2), any_scale=True)
    # The estimate is of 15 images and one sample each: its standard error was 0.2.
    assert found["kl"] == pytest.approx(exact.sum(-1).mean().item(), abs=1.0)
    assert 1 < found["kl"] < noise.sum(-1).mean() + 1
    assert found["bound"] == pytest.approx(found["cross_entropy"] + found["kl"])
    assert found["objective"] == pytest.approx(-found["loss"])  # what is trained by default is what I-MLE prints


def test_the_bound_bounds(data):
    """-log p of an image with black or white pixels, by summing over all codes."""
    model = build(Autoencoder, data, rows=1)
    prior = gt.Subset(torch.zeros(5), 2)
    with torch.no_grad():
        images = (data.test.images[:4] > 127).float()
        codes = prior.enumerate_support()[:, None, None]  # (10, 1, 1, 5)
        each = -model.cross_entropy(images, codes.expand(10, 4, 1, 5))
        likelihood = each.logsumexp(0) - math.log(10)
        posterior = model.posterior(model.encode(images)).base_dist
        chances = posterior.log_prob(codes.expand(10, 4, 1, 5)).squeeze(-1).exp()
        kl = torch.distributions.kl_divergence(posterior, prior.expand((4, 1))).squeeze(-1)
        bound = -(chances * each).sum(0) + kl
    assert (bound >= -likelihood - 1e-3).all()
    assert (-(chances * each).sum(0) < bound).all()


@pytest.mark.parametrize("selector", ["global", "instance"])
def test_the_loss_of_feature_selection(selector, data):
    model = build(Features, data, selector=selector)
    index = torch.arange(6)
    images, labels = data.train.images[index] / 255, data.train.labels[index]
    loss, _ = model.loss(index, seeded())
    logits = torch.zeros(6, 784) if selector == "global" else model.selector(images)
    assert torch.equal(model.subsets(images).logits, logits)
    value = gt.Subset(logits, 9).sample((4,), generator=seeded())
    assert not torch.equal(value[0, 0], value[0, 1])
    found = model.classifier(value * images)
    torch.testing.assert_close(loss, cross_entropy(found.flatten(0, 1), labels.repeat(4)))
    loss.backward()
    assert all(p.grad is not None for p in model.selector.parameters())


def test_feature_selection_reads_the_largest_logits(data):
    model = build(Features, data)
    with torch.no_grad():
        model.selector.logits.copy_(torch.randn(784, generator=seeded()))
        kept = torch.zeros(784).index_fill(0, model.selector.logits.topk(9).indices, 1.0)
        found = model.evaluate("test", seeded())
        output = model.classifier(kept * data.test.images / 255)
    labels = data.test.labels
    assert found["accuracy"] == (output.argmax(-1) == labels).double().mean()
    assert found["cross_entropy"] == pytest.approx(cross_entropy(output, labels).item(), rel=1e-5)


def test_the_loss_of_neighbours(data):
    model = build(Neighbours, data)
    index = torch.arange(8)
    dist, objective, alike = model.problem(index, seeded())
    there = torch.randint(60, (12,), generator=seeded())
    images, labels = data.train.images / 255, data.train.labels
    mine, others = model.encoder(images[index]), model.encoder(images[there])
    logits = -torch.cdist(mine, others).square()
    same = index[:, None] == there
    assert same.any()
    torch.testing.assert_close(dist.logits, logits.masked_fill(same, -torch.inf), atol=1e-4, rtol=1e-4)
    assert torch.equal(alike, (labels[index][:, None] == labels[there]).float())
    value = dist.sample((3,), generator=seeded())
    assert not (value.bool() & same).any()
    torch.testing.assert_close(objective(value), -(value * alike).sum(-1) / 3)
    loss, _ = model.loss(index, seeded())
    assert -1 <= loss <= 0


def test_accuracy_is_that_of_the_most_frequent_digit(data, monkeypatch):
    """Points on a line, whose nearest three are known."""
    train_points, train_labels = [0.0, 1.0, 2.0, 10.0, 11.0, 12.5], [3, 3, 1, 7, 5, 5]
    points, labels = [0.5, 11.6, 11.0], [3, 5, 7]  # the last is wrong: 7, 5, 5

    def split(places, digits):
        images = torch.zeros(len(places), 784, dtype=torch.uint8)
        images[:, 0] = torch.tensor(places).mul(10).to(torch.uint8)
        return Split(images, torch.tensor(digits))

    made = type(data)(split(train_points, train_labels), data.valid, split(points, labels))
    model = Neighbours.build(TINY[Neighbours], made, CPU)
    monkeypatch.setattr(model.encoder, "forward", lambda images: images[:, :1] * 25.5)
    found = model.evaluate("test", seeded())
    assert found == {"accuracy": pytest.approx(2 / 3), "alike": pytest.approx((2 + 2 + 1) / 9)}
    # An image is no neighbour of its own: 0.0 has {3, 1, 7} and 2.0 {3, 3, 7}.
    assert model.evaluate("train", seeded())["alike"] == pytest.approx((1 + 1 + 0 + 0 + 1 + 1) / 18)


# --- settings ---


@pytest.mark.parametrize(
    ("task", "wrong", "message"),
    [
        (Autoencoder, {"subset_size": 5}, "subset_size must be at least 1 and less than the 5 keys, got 5"),
        (Autoencoder, {"rows": 0}, "rows must be at least 1, got 0"),
        (Autoencoder, {"logit_scale": 0.0}, "logit_scale must be positive, got 0"),
        (Autoencoder, {"kl_weight": -1.0}, "kl_weight must not be negative, got -1"),
        (Features, {"subset_size": 784}, "subset_size must be at least 1 and less than the 784 keys, got 784"),
        (Features, {"selector_width": 0}, "selector_width must be at least 1, got 0"),
        (Features, {"selector_lr": -1.0}, "selector_lr must not be negative, got -1"),
        (Features, {"width": 1}, "width must be at least 2, got 1"),
        (Features, {"valid_size": 0}, "valid_size must be at least 1, got 0"),
        (Neighbours, {"candidates": 4}, "subset_size must be at least 1 and less than the 3 keys, got 3"),
        (Neighbours, {"dimensions": 0}, "dimensions must be at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense(task, wrong, message):
    with pytest.raises(ValueError, match=message):
        TINY[task].replace(**wrong)


def test_the_defaults_are_those_of_the_contest():
    config = Autoencoder.config_type(estimator="StraightThrough")
    assert (config.items, config.k, config.iterations) == (100, 10, 60_000)
    assert (config.rows, config.columns, config.subset_size) == (20, 20, 10)
    config = Features.config_type(estimator="StraightThrough")
    assert (config.items, config.subset_size, config.iterations, config.lr) == (128, 50, 8000, 1e-3)
    config = Neighbours.config_type()
    assert (config.candidates, config.subset_size, config.dimensions) == (128, 10, 2)
