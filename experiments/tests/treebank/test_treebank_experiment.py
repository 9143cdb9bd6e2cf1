"""The treebank experiment: training that resumes exactly, and scores by hand."""

import optuna
import pytest
import torch
from common import seeded
from tiny_runs import cut_off

import gumtrace as gt
from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import evaluate, find, train
from gumtrace_experiments.store.folder import read_metrics
from gumtrace_experiments.treebank import experiment as module
from gumtrace_experiments.treebank.data import Split

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
Treebank = find("treebank")
TINY = Treebank.config_type(
    treebank="synthetic",
    synthetic_size=60,
    longest=8,
    hidden=8,
    layers=2,
    calls=8,
    extra=8,
    iterations=6,
    evaluate_every=3,
    lr=2e-3,
)
LIKELIHOODS = ("TraceLikelihood", "MatrixTreeCRF")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return Treebank.load(TINY, tmp_path_factory.mktemp("data"), CPU)


@pytest.fixture
def run(tmp_path):
    """Train in a folder of its own; returns the metrics."""

    def call(name, config=TINY, **settings):
        train(Treebank, config, tmp_path / name, progress=False, **settings)
        return read_metrics(tmp_path / name / "seed-0" / "metrics.jsonl")

    return call


# --- training ---


SUPPORTED = [name for name, cls in ESTIMATORS.items() if cls.supports(gt.Arborescence(torch.zeros(12, 12)))]


@pytest.mark.parametrize("estimator", [*LIKELIHOODS, *SUPPORTED])
@pytest.mark.slow
def test_every_way_trains_and_resumes_exactly(estimator, run):
    config = TINY.replace(estimator=estimator)
    config = config.replace(adaptive="adaptive" in config.estimator_type.settings())
    whole = run("whole", config)
    assert cut_off(run, config) == whole
    numbers = [value for row in whole for value in row.values() if not isinstance(value, str)]
    assert torch.tensor(numbers).isfinite().all()
    stds = [row["std"] for row in whole if row["split"] == "gradient"]
    assert all(std == 0 if estimator in LIKELIHOODS else std > 0 for std in stds)


@pytest.mark.parametrize("settings", [{"shards": 2}, {"likelihood": 0.5}, {"dropout": 0.0, "word_dropout": 0.0}])
def test_settings_change_a_run_that_resumes_exactly(settings, run):
    config = TINY.replace(estimator="TraceREINFORCE")
    whole = run("whole", config.replace(**settings))
    assert whole[1:] != run("plain", config)[1:]
    assert cut_off(run, config.replace(**settings)) == whole


def test_the_probability_of_an_arborescence_is_intractable(run):
    with pytest.raises(NotImplementedError, match="take TraceREINFORCE instead"):
        run("a", TINY.replace(estimator="StructureREINFORCE"))


@pytest.mark.parametrize(
    ("estimator", "samples", "least"),
    [("TraceLikelihood", 0, 0.95), ("MatrixTreeCRF", 0, 0.95), ("TraceREINFORCE", 8, 0.6)],
)
@pytest.mark.slow
def test_smoke_learns(estimator, samples, least, tmp_path, capsys):
    config = Treebank.smoke(Treebank.config_type(estimator=estimator, samples=samples))
    (result,) = train(Treebank, config, tmp_path, progress=False)
    rows = [row for row in read_metrics(tmp_path / "seed-0" / "metrics.jsonl") if row["split"] == "train"]
    assert rows[-1]["loss"] < 0.6 * rows[0]["loss"]
    assert result["test"]["uas"] > least  # by chance: a tenth
    assert evaluate(tmp_path / "seed-0", "test") == result["test"]
    assert "made-up sentences" in capsys.readouterr().err


def test_the_loss_is_that_of_a_word(data):
    index = torch.arange(12)
    batch = data.train.batch(index)
    words = int(batch.lengths.sum()) - 12
    for name, likelihood in module.LIKELIHOODS.items():
        model = Treebank.build(TINY.replace(estimator=name), data, CPU).eval()
        loss, metrics = model.loss(index, seeded())
        expected = -likelihood(model.distribution(batch), batch.gold).sum() / words
        torch.testing.assert_close(loss, expected)
        assert metrics["loss"] == loss
    risk = TINY.replace(estimator="TraceREINFORCE")
    model = Treebank.build(risk, data, CPU).eval()
    loss, _ = model.loss(index, seeded())
    dist = model.distribution(batch)
    wrong = gt.estimators.TraceREINFORCE(samples=4)(dist, lambda x: (x * ~batch.gold).sum((-1, -2)), generator=seeded())
    torch.testing.assert_close(loss, wrong.sum() / words)
    mixed, _ = Treebank.build(risk.replace(likelihood=0.5), data, CPU).eval().loss(index, seeded())
    likely = module.trace_log_likelihood(dist, batch.gold).sum()
    torch.testing.assert_close(mixed, (wrong.sum() - 0.5 * likely) / words)
    mixed.backward()


# --- settings ---


def test_a_batch_has_as_many_sentences_whatever_the_estimator():
    for name, k in {"TraceLikelihood": 1, "MatrixTreeCRF": 1, "TraceREINFORCE": 4, "REBAR": 1}.items():
        config = Treebank.config_type(estimator=name)
        assert (config.items, config.k) == (64, k)
        assert Treebank.config_type(**config.to_dict()).to_dict() == config.to_dict()
    assert Treebank.config_type(estimator="TraceREINFORCE", samples=16).items == 64


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"estimator": "CRF"},
            "unknown estimator 'CRF': choose from Noise.*, TraceLikelihood, MatrixTreeCRF",
        ),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1"),
        ({"word_dropout": -0.1}, "word_dropout must be at least 0 and less than 1, got -0.1"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"longest": 0}, "longest must be at least 1, got 0"),
        ({"likelihood": 0.5}, "likelihood is added .* TraceLikelihood is not one: set it to 0"),
        ({"likelihood": -1.0, "estimator": "RELAX"}, "likelihood must not be negative, got -1"),
    ],
)
def test_settings_that_make_no_sense(wrong, message):
    with pytest.raises(ValueError, match=message):
        TINY.replace(**wrong)


def test_likelihoods_belong_to_this_experiment_alone():
    with pytest.raises(ValueError, match="unknown estimator 'MatrixTreeCRF'"):
        find("listops").config_type(estimator="MatrixTreeCRF")


@pytest.mark.parametrize(
    ("estimator", "more"),
    [
        ("MatrixTreeCRF", {}),
        ("TraceREINFORCE", {"samples": 8}),
        ("RELAX", {"estimator_lr": 2e-3}),
        ("StochasticSoftmax", {"temperature": 0.3}),
    ],
)
def test_search(estimator, more):
    asked = {"lr": 1e-3, "dropout": 0.4, **more}
    config = Treebank.config_type(estimator=estimator)
    assert Treebank.search(config, optuna.trial.FixedTrial(asked)) == config.replace(**asked)


# --- scores ---


def batch():
    """Two sentences of four and two words; the last word of the first is punctuation."""
    heads = torch.tensor([[-1, 2, 0, 2, 2], [-1, 0, 1, -2, -2]])
    tags = torch.tensor([[1, 12, 17, 9, 14], [1, 9, 9, 0, 0]])
    return Split(torch.zeros_like(heads), tags, heads, torch.tensor([5, 3]))


def tree(*sentences):
    """(B, 5, 5), from the heads of all words."""
    value = torch.zeros(len(sentences), 5, 5)
    for i, heads in enumerate(sentences):
        for word, head in enumerate(heads, 1):
            value[i, head, word] = 1
    return value


def test_scores_by_hand():
    found, other = tree([2, 0, 2, 3], [0, 1]), tree([2, 0, 1, 1], [0, 1])
    totals = module.counts(batch(), found, other)
    assert dict(zip(module.COUNTS, totals.tolist(), strict=True)) == {
        "words": 6,
        "right": 5,
        "in heaviest": 4,
        "others": 5,
        "others right": 5,  # only a full stop is wrong
        "sentences": 2,
        "sentences right": 1,
    }
    assert module.shares(totals) == {
        "uas": 5 / 6,
        "uas_without_punctuation": 1.0,
        "uas_of_heaviest": 4 / 6,
        "exact": 1 / 2,
    }
    assert module.wrong_heads(batch(), torch.stack([found, other])).tolist() == [[1, 0], [2, 0]]
    soft = (found + other) / 2
    assert module.wrong_heads(batch(), soft).tolist() == [1.5, 0]


def test_evaluation_is_of_all_sentences_whatever_the_chunks(data, monkeypatch):
    model = Treebank.build(TINY, data, CPU).eval()

    def distribution(items, generator=None):
        """Half of the heads right, and all of them sure."""
        wanted = torch.where(items.words % 2 == 0, 0, items.heads)
        logits = 20.0 * (wanted[:, None, :] == torch.arange(items.heads.shape[-1])[:, None])
        return gt.Arborescence(logits, lengths=items.lengths, validate_args=False)

    monkeypatch.setattr(model, "distribution", distribution)
    found = {}
    for chunk in (4, 250):
        monkeypatch.setattr(module, "CHUNK", chunk)
        found[chunk] = model.evaluate("valid", seeded())
    assert found[4] == found[250]
    whole = data.valid
    expected = (torch.where(whole.words % 2 == 0, 0, whole.heads) == whole.heads) & whole.is_word
    assert found[4]["uas"] == expected.sum().item() / whole.is_word.sum().item()
    assert 0.1 < found[4]["exact"] < found[4]["uas"] < 0.9


@pytest.mark.parametrize("estimator", [*LIKELIHOODS, "TraceREINFORCE"])
def test_who_parses_by_what(estimator, data):
    """The random field by its most probable tree, the others by the noiseless run."""
    model = Treebank.build(TINY.replace(estimator=estimator), data, CPU)
    dist = gt.Arborescence(3 * torch.randn(50, 5, 5, generator=seeded()))
    assert model.parse(dist).equal(dist.mode) == (estimator != "MatrixTreeCRF")
    assert model.parse(dist).equal(module.heaviest(dist)) == (estimator == "MatrixTreeCRF")
