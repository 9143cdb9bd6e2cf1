"""Learning to explain: training that resumes exactly, losses and metrics by hand."""

import optuna
import pytest
import torch
from common import seeded
from no_reading import NoReading
from review_files import beer_folder, eraser_folder
from tiny_runs import cut_off

import gumtrace as gt
from gumtrace.estimators import ESTIMATORS
from gumtrace.structures.base import Structure
from gumtrace_experiments import evaluate, find, train
from gumtrace_experiments.l2x import experiment as module
from gumtrace_experiments.store.folder import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
L2X = find("l2x")
TINY = L2X.config_type(
    reviews="synthetic",
    synthetic_size=40,
    longest=12,
    chosen=3,
    calls=12,
    extra=8,
    iterations=6,
    evaluate_every=3,
    lr=2e-3,
)
BASELINES = ("RandomSubset", "FirstTokens", "FullText")
SUPPORTED = [name for name, cls in ESTIMATORS.items() if cls.supports(gt.Subset(torch.zeros(4), 2))]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return L2X.load(TINY, tmp_path_factory.mktemp("data"), CPU)


@pytest.fixture
def run(tmp_path):
    """Train in a folder of its own; returns the metrics."""

    def call(name, config=TINY, **settings):
        train(L2X, config, tmp_path / name, progress=False, **settings)
        return read_metrics(tmp_path / name / "seed-0" / "metrics.jsonl")

    return call


# --- training ---


@pytest.mark.parametrize("estimator", [*SUPPORTED, *BASELINES])
@pytest.mark.slow
def test_every_way_trains_and_resumes_exactly(estimator, run):
    config = TINY.replace(estimator=estimator, adaptive=estimator == "IMLE")  # a fixed step changes no subset so early
    whole = run("whole", config)
    assert cut_off(run, config) == whole
    numbers = [value for row in whole for value in row.values() if not isinstance(value, str)]
    assert torch.tensor(numbers).isfinite().all()
    stds = [row["std"] for row in whole if row["split"] == "gradient"]
    assert all(std == 0 if estimator in BASELINES else std > 0 for std in stds)
    if estimator not in ("FirstTokens", "FullText"):
        assert run("other", config.replace(seed=1), seeds=[0]) == whole  # the seed of the folder counts


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "complex"},
        {"shards": 3},
        {"dropout": 0.0},
        {"final_decay": 1e-3},
        {"chosen": 4},
        {"estimator": "StochasticSoftmax", "kind": "binary"},
        {"estimator": "StochasticSoftmax", "kind": "euclidean"},
        {"estimator": "StochasticSoftmax", "kind": "categorical"},
        {"estimator": "REBAR", "learn_temperature": False},
    ],
    ids=lambda settings: ",".join(map(str, settings.values())),
)
@pytest.mark.slow
def test_settings_change_a_run_that_resumes_exactly(settings, run):
    config = TINY.replace(estimator=settings.get("estimator", "TraceREINFORCE"))
    whole = run("whole", config.replace(**settings))
    assert whole[1:] != run("plain", config)[1:]
    assert cut_off(run, config.replace(**settings)) == whole


@pytest.mark.parametrize(
    ("estimator", "least", "precision"),
    [("TraceREINFORCE", 0.25, 0.3), ("StochasticSoftmax", 0.3, 0.4), ("FullText", 0.4, 0.0)],
)
@pytest.mark.slow
def test_smoke_learns(estimator, least, precision, tmp_path, capsys):
    """By chance, a quarter of the tokens are marked, and nothing is explained."""
    (result,) = train(L2X, L2X.smoke(L2X.config_type(estimator=estimator)), tmp_path, progress=False)
    assert result["test"]["explained"] > least
    assert result["test"]["precision"] > precision
    assert evaluate(tmp_path / "seed-0", "test") == result["test"]
    assert "made-up reviews" in capsys.readouterr().err


@pytest.mark.parametrize("estimator", [*SUPPORTED, *BASELINES])
def test_the_loss_reads_no_tensor(estimator, data, monkeypatch):
    """As on a GPU; test_gpu_experiments.py checks the same on hardware."""
    monkeypatch.setattr(Structure, "_may_sync", property(lambda self: False))
    model = L2X.build(TINY.replace(estimator=estimator), data, CPU)
    with NoReading():
        loss, metrics = model.loss(torch.arange(4), seeded())
        loss.backward()
    assert metrics.keys() == {"loss"}
    with pytest.raises(AssertionError, match="synchronises"), NoReading():
        loss.item()


def test_the_loss_draws_from_its_generator_alone(data):
    for estimator in ("TraceREINFORCE", "StochasticSoftmax", "RELAX", "RandomSubset"):
        model = L2X.build(TINY.replace(estimator=estimator), data, CPU)
        first, *_ = model.loss(torch.arange(4), seeded())
        torch.rand(3)
        assert model.loss(torch.arange(4), seeded())[0] == first
        assert model.loss(torch.arange(4), seeded(1))[0] != first


# --- losses ---


def test_the_loss_is_the_mean_squared_error(data):
    index = torch.arange(6)
    batch = data.train.batch(index)
    model = L2X.build(TINY.replace(estimator="TraceREINFORCE"), data, CPU).eval()
    words = model.vectors(batch)
    assert torch.equal(words[2, 1], data.vectors[batch.words[2, 1].long()])
    logits = model.encoder(words)
    loss, metrics = model.loss(index, seeded())
    assert metrics["loss"] == loss
    dist = gt.Subset(logits, 3, lengths=batch.lengths)

    def error(x):
        return (model.predictor(words, x) - batch.ratings).square()

    expected = gt.estimators.TraceREINFORCE(samples=4)(dist, error, generator=seeded()).mean()
    torch.testing.assert_close(loss, expected)
    ours, theirs = (torch.autograd.grad(x, list(model.encoder.parameters())) for x in (loss, expected))
    torch.testing.assert_close(ours, theirs)


def test_relaxed_masks_are_computed_with_in_full(data):
    """Where the mask has a gradient, it must not be taken for one of k tokens."""
    batch = data.train.batch(torch.arange(4))
    for estimator in ("StochasticSoftmax", "StraightThrough"):
        model = L2X.build(TINY.replace(estimator=estimator), data, CPU)
        words = model.vectors(batch)
        soft = torch.full((1, 4, 12), 0.25, requires_grad=True)
        (grad,) = torch.autograd.grad(model.rate(words, soft).sum(), soft)
        torch.testing.assert_close(model.rate(words, soft), model.predictor(words, soft))
        assert (grad != 0).sum() > 3 * 4


def test_what_baselines_are_shown(data):
    batch = data.test.batch(torch.arange(5))
    models = {name: L2X.build(TINY.replace(estimator=name), data, CPU).eval() for name in BASELINES}
    words = models["FullText"].vectors(batch)
    shown = {name: model.shown(batch, words, seeded()) for name, model in models.items()}
    assert torch.equal(shown["FullText"], batch.racing.float())
    assert shown["FirstTokens"].tolist() == [[1.0] * 3 + [0.0] * 9] * 5
    assert shown["RandomSubset"].sum(-1).tolist() == [3.0] * 5
    assert not (shown["RandomSubset"] * ~batch.racing).any()
    assert not torch.equal(shown["RandomSubset"], models["RandomSubset"].shown(batch, words, seeded(1)))
    mean = torch.stack([models["RandomSubset"].shown(batch, words, seeded(i)) for i in range(2000)]).mean(0)
    expected = torch.where(batch.racing, 3 / batch.lengths[:, None], 0.0)
    assert (
        mean - expected
    ).abs().max() < 0.06  # 5 standard deviations, so once in 3 · 10⁴ at most; the seeds are fixed
    for name, model in models.items():
        guess = model.rate(words, shown[name])
        torch.testing.assert_close(guess, model.predictor(words, shown[name]))


# --- metrics ---


def test_metrics_by_hand(data, monkeypatch):
    model = L2X.build(TINY, data, CPU).eval()
    reviews, split = data.texts["test"], data.test

    def distribution(batch, words, generator=None):
        """The last tokens of a review are sure to be chosen."""
        places = torch.arange(batch.words.shape[-1])
        return gt.Subset(50.0 * places.expand(len(words), -1), 3, lengths=batch.lengths)

    monkeypatch.setattr(model, "distribution", distribution)
    found = {}
    for chunk in (3, 100):
        monkeypatch.setattr(module, "CHUNK", chunk)
        with torch.no_grad():
            found[chunk] = model.evaluate("test", seeded())
    assert found[3] == pytest.approx(found[100], rel=1e-6)
    hits = errors = 0.0
    for i, (tokens, rating, spans) in enumerate(reviews):
        n = len(tokens)
        inside = {place for start, end in spans for place in range(start, end)}
        hits += len(inside & {n - 3, n - 2, n - 1}) / 3
        mask = torch.zeros(1, 12)
        mask[0, n - 3 : n] = 1
        words = model.vectors(split.batch(torch.tensor([i])))
        errors += (model.predictor(words, mask).item() - rating) ** 2
    mse = errors / len(reviews)
    ratings = torch.tensor([review.rating for review in reviews])
    assert 0 < hits < len(reviews)
    assert found[3] == pytest.approx(
        {
            "mse": mse,
            "mse_of_samples": mse,
            "explained": 1 - mse / ratings.var(correction=0).item(),
            "precision": hits / len(reviews),
        },
        rel=1e-5,
    )


def test_beer_reviews_are_rated_on_one_set_and_explained_on_another(tmp_path, capsys):
    config = TINY.replace(reviews="beer", original=False, longest=20)
    beers = L2X.load(config, beer_folder(tmp_path), CPU)
    model = L2X.build(config, beers, CPU).eval()
    with torch.no_grad():
        found = {split: model.evaluate(split, seeded()) for split in ("train", "valid", "test")}
        beers.annotated.marked.fill_(True)
        marked = model.evaluate("test", seeded())
        precision = model.evaluate("test", seeded())["precision"]
    assert all("precision" not in found[split] for split in ("train", "valid"))
    assert precision == 1
    assert {**marked, "precision": found["test"]["precision"]} == found["test"]
    assert found["test"]["precision"] < 1


@pytest.mark.parametrize(("source", "make"), [("beer", beer_folder), ("eraser", eraser_folder)])
def test_files_are_trained_on(source, make, tmp_path, run):
    (tmp_path / "files").mkdir()
    config = TINY.replace(reviews=source, original=False, longest=20)
    rows = run("a", config, data=make(tmp_path / "files"))
    assert len(rows) > 3
    assert evaluate(tmp_path / "a" / "seed-0", "valid", data=tmp_path / "files")["mse"] > 0


# --- settings ---


def test_learning_rates_decay():
    config = L2X.config_type(iterations=100, final_decay=0.01)
    assert [config.rate_factor(i) for i in (0, 50, 100)] == pytest.approx([1, 0.1, 0.01])
    assert config.replace(final_decay=1.0).rate_factor(77) == 1
    both = config.replace(schedule="cosine")
    assert both.rate_factor(50) == pytest.approx(0.1 * 0.5)


def test_a_batch_has_as_many_calls_whatever_the_estimator():
    items = {"TraceREINFORCE": 25, "StochasticSoftmax": 100, "RELAX": 100, "REBAR": 33, "FullText": 100}
    for name, count in items.items():
        config = L2X.config_type(estimator=name)
        assert config.items == count
        assert L2X.config_type(**config.to_dict()).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"estimator": "FirstWords"}, "unknown estimator 'FirstWords': choose from Noise.*, FirstTokens, FullText"),
        ({"reviews": "wine"}, "unknown reviews 'wine': choose from eraser, beer, synthetic"),
        ({"aspect": "overall"}, "unknown aspect 'overall': choose from appearance, aroma, palate, taste"),
        ({"model": "large"}, "unknown model 'large': choose from simple, complex"),
        ({"kind": "hard"}, "unknown kind 'hard': choose from expfamily, euclidean, categorical, binary"),
        ({"chosen": 0}, "chosen must be at least 1, got 0"),
        ({"longest": 3}, "longest must be more than the 3 tokens to choose, got 3"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1"),
        ({"final_decay": 0.0}, "final_decay must be positive and at most 1, got 0"),
        ({"final_decay": 2.0}, "final_decay must be positive and at most 1, got 2"),
    ],
)
def test_settings_that_make_no_sense(wrong, message):
    with pytest.raises(ValueError, match=message):
        TINY.replace(**wrong)


@pytest.mark.parametrize(
    ("estimator", "more"),
    [
        ("FullText", {}),
        ("TraceREINFORCE", {"samples": 2}),
        ("RELAX", {"estimator_lr": 1e-4}),
        ("StochasticSoftmax", {"temperature": 0.3, "kind": "binary"}),
    ],
)
def test_search(estimator, more):
    asked = {"lr": 3e-3, "final_decay": 1e-2, "weight_decay": 1e-5, **more}
    config = L2X.config_type(estimator=estimator)
    assert L2X.search(config, optuna.trial.FixedTrial(asked)) == config.replace(**asked)
