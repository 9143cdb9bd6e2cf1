"""Parentheses by insertions: training that resumes exactly, and likelihoods against enumeration."""

import math
from itertools import permutations

import pytest
import torch
from common import FALSE_ALARM, seeded
from no_reading import NoReading
from scipy import stats
from tiny_runs import cut_off

from gumtrace.structures.base import Structure
from gumtrace_experiments import evaluate, find, train
from gumtrace_experiments.parentheses.data import Split
from gumtrace_experiments.store.folder import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
Insertion = find("parentheses-insertion")
TINY = Insertion.config_type(
    types=2,
    hidden=6,
    longest=6,
    width=8,
    layers=1,
    heads=2,
    calls=12,
    train_size=60,
    test_size=20,
    iterations=6,
    evaluate_every=3,
    bound_samples=8,
    valid_bound_samples=4,
    generated=50,
)
WAYS = [
    {"order": "left-to-right"},
    {"order": "smart"},
    {"order": "semi-supervised", "estimator": "RELAX"},
    {"order": "semi-supervised", "estimator": "TraceREINFORCE", "dropout": 0.0},
    {"order": "unsupervised", "estimator": "TraceREINFORCE"},
]
every_way = pytest.mark.parametrize("settings", WAYS, ids=lambda settings: "-".join(map(str, settings.values())))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return Insertion.load(TINY, tmp_path_factory.mktemp("data"), CPU)


# --- training ---


@every_way
@pytest.mark.slow
def test_every_way_trains_and_resumes_exactly(settings, tmp_path):
    def run(name, config, **options):
        train(Insertion, config, tmp_path / name, data=tmp_path, progress=False, **options)
        return read_metrics(tmp_path / name / "seed-0" / "metrics.jsonl")

    config = TINY.replace(**settings)
    whole = run("whole", config)
    assert cut_off(run, config) == whole
    numbers = [value for row in whole for value in row.values() if not isinstance(value, str)]
    assert torch.tensor(numbers).isfinite().all()
    fixed = config.order in ("left-to-right", "smart")
    assert all((row["std"] == 0) == fixed for row in whole if row["split"] == "gradient")


@pytest.mark.slow
def test_smoke_learns(tmp_path):
    """The encoder's most likely order is the smart one mostly, and most of what the decoder generates is balanced."""
    config = Insertion.smoke(Insertion.config_type(estimator="TraceREINFORCE")).replace(generated=300)
    (result,) = train(Insertion, config, tmp_path, data=tmp_path, progress=False)
    found = result["test"]
    assert found["smart_modes"] > 0.5
    assert found["correct_generated"] > 0.6
    assert math.isclose(found["perplexity"], math.exp(-found["log_likelihood"]))
    assert evaluate(tmp_path / "seed-0", "test", data=tmp_path) == found


@every_way
def test_the_loss_reads_no_tensor(settings, data, monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(Structure, "_may_sync", property(lambda self: False))
    model = Insertion.build(TINY.replace(**settings), data, CPU)
    with NoReading():
        loss, _ = model.loss(torch.arange(model.config.items), seeded())
        loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@every_way
def test_the_loss_draws_from_its_generator_alone(settings, data):
    model = Insertion.build(TINY.replace(**settings), data, CPU)
    first, *_ = model.loss(torch.arange(4), seeded())
    torch.rand(3)
    assert model.loss(torch.arange(4), seeded())[0] == first
    random = settings["order"] not in ("left-to-right", "smart") or model.config.dropout > 0
    assert (model.loss(torch.arange(4), seeded(1))[0] != first) == random


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "width must be a multiple of the 3 heads, got 8"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"estimator": "StochasticSoftmax"}, "unknown estimator 'StochasticSoftmax'"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        TINY.replace(**settings)


# --- likelihoods ---


@pytest.fixture(scope="module")
def trained(data):
    """A semi-supervised model after some updates, and sequences with all their orders: (orders, sequences)."""
    config = TINY.replace(order="semi-supervised", estimator="TraceREINFORCE", dropout=0.0, lr=1e-2, calls=40)
    model = Insertion.build(config, data, CPU)
    optimiser, noise = torch.optim.Adam(model.parameters(), lr=1e-2), seeded()
    for _ in range(60):
        loss, _ = model.loss(torch.randint(model.items, (config.items,), generator=noise), noise)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.double().eval()


def every_order(batch, model):
    """log P(x, z) and log Q(z | x), (720, B): for all orders of six tokens; -inf, where they are not of that length."""
    orders = torch.tensor(list(permutations(range(6))))
    place = torch.arange(6)
    possible = ((orders[:, None] == place) | (place < batch.lengths[:, None])).all(-1)  # (720, B)
    valid = torch.where(possible[..., None], orders[:, None], place)
    with torch.no_grad():
        rows = Split(*(x.expand(720, *x.shape).flatten(0, 1) for x in batch))
        joint = model.log_joint(rows, valid.flatten(0, 1)).view(720, -1)
        own = model.posterior(batch).log_prob(valid)
    return joint.masked_fill(~possible, -torch.inf), own.masked_fill(~possible, -torch.inf)


def test_the_bound_is_that_of_enumeration(trained):
    """Σ over orders of P(x, z) is what IWAE estimates. Its mean of K weights P/Q has the variance
    (Σ P²/Q - P(x)²) / K, which enumeration gives, too. False-alarm rate 10⁻⁶, for 20 sequences."""
    samples, batch = 1000, trained.data.test
    assert set(batch.lengths.tolist()) == {2, 4, 6}
    joint, own = every_order(batch, trained)
    torch.testing.assert_close(own.logsumexp(0), torch.zeros(20, dtype=torch.float64), atol=1e-9, rtol=0)
    exact = joint.logsumexp(0)
    second = torch.where(joint > -torch.inf, 2 * joint - own, -torch.inf).logsumexp(0)
    relative = ((second - 2 * exact).exp() - 1).sqrt()
    assert (relative > 0.05).sum() > 10  # an encoder that were the posterior would need no samples
    with torch.no_grad():
        found = trained.bounds(batch, trained.proposal("test", seeded()), samples)[""].log_likelihood
    z = ((found - exact).exp() - 1) / (relative / math.sqrt(samples)).clamp(min=1e-9)
    assert z.abs().max() < stats.norm.isf(FALSE_ALARM / 2 / len(z))


def test_the_objective_is_the_bound_of_enumeration(trained):
    """E_Q [log Q - log P], exactly, of the objective on all orders."""
    batch = trained.data.test.batch((trained.data.test.lengths == 6).nonzero().flatten())
    joint, own = every_order(batch, trained)
    orders = torch.tensor(list(permutations(range(6))))[:, None].expand(-1, len(batch.lengths), -1)
    with torch.no_grad():
        objective = trained._objective(batch, trained.posterior(batch), seeded())
        torch.testing.assert_close(objective(orders), own - joint)
    bound = (own.exp() * (own - joint)).sum(0)
    assert (bound > -joint.logsumexp(0)).all()


def test_fixed_orders(trained):
    batch = Split(torch.tensor([[0, 2, 3, 1, 0, 0], [0, 1, 2, 3, 0, 1]]), torch.tensor([4, 6]))
    assert trained.fixed_order(batch, "smart").tolist() == [[0, 3, 1, 2, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert trained.fixed_order(batch, "left-to-right").tolist() == [list(range(6))] * 2
    model = Insertion.build(TINY.replace(order="smart"), trained.data, CPU).eval()
    steps = model.decoder(batch.tokens, trained.fixed_order(batch, "smart"), batch.lengths)
    torch.testing.assert_close(model.bounds(batch, None, 1)[""].log_likelihood, steps.total.double())


def test_what_does_not_end_has_no_length(data):
    model = Insertion.build(TINY, data, CPU)
    generated = model.generate(20, seeded())
    assert generated.tokens.shape == generated.order.shape == (20, 12)
    assert (generated.lengths > 0).any()
    model.decoder.word.bias.data[-1] = -1e4
    assert (model.generate(20, seeded()).lengths == -1).all()
