"""What graph layout optimises, and what it reports: graph by graph, frame by frame and pair by pair."""

import statistics

import pytest
import torch
from common import seeded
from tiny_runs import GraphLayout
from torch import nn
from torch.distributions import Gumbel, kl_divergence

import gumtrace as gt
from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments.config import derive_seed
from gumtrace_experiments.graph_layout import experiment
from gumtrace_experiments.graph_layout.data import Layouts, Split
from gumtrace_experiments.loop.evaluation import evaluate_split

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
FRAMES, NODES, SIZES = 4, 5, (9, 7, 6)
INDEX = torch.tensor([7, 2, 4])  # of the training set
PAIRS = [(i, j) for i in range(NODES) for j in range(NODES) if i != j]  # ordered
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
PROTOCOLS = pytest.mark.parametrize("training", ["teacher-forced", "unrolled"])


def made(**settings):
    """A model in float64, on data of its own: nodes anywhere, and trees that have nothing to do with them."""
    config = GraphLayout.config_type(
        frames=FRAMES, nodes=NODES, hidden=8, critic_hidden=6, calls=24, train_size=SIZES[0], extra=8, **settings
    )
    generator = seeded(1)
    splits = [Split(frames(size, generator), trees(size, generator=generator).bool()) for size in SIZES]
    return GraphLayout.build(config, Layouts(*splits), CPU).double()


def frames(size, generator):
    return torch.rand(size, FRAMES, NODES, 2, dtype=torch.float64, generator=generator) * 2 - 1


def trees(*batch, generator):
    return gt.SpanningTree(torch.zeros(NODES, NODES, dtype=torch.float64)).sample(batch, generator=generator)


# --- one graph, written out ---


def literal_reconstruction(model, positions, tree, unrolled):
    """-log N(frames; predicted, 5e-5) without its constant, over n; of frames (T, n, 2) after the first."""
    total, x = torch.zeros(()), positions[0]
    for true in positions[1:]:
        x = model.decoder(x[None], tree, hard=False)[0]
        total = total + ((x - true) ** 2 / (2 * 5e-5)).sum()
        if not unrolled:
            x = true
    return total / NODES


def literal_kl(logits):
    """Of Gumbels at u from those at 0, over n. (i, j) and (j, i) are two terms, though they are one number and one key:
    the paper's model has a logit for every ordered pair, and its KL divergence is the sum over all of them. To compare
    an ELBO with the paper's, ours has to count them twice as well."""
    return torch.stack([logits[i, j] + torch.exp(-logits[i, j]) - 1 for i, j in PAIRS]).sum() / NODES


def literal_precision(values, true):
    """The share of the true trees' edges (B, n, n) in values (samples, B, n, n)."""
    found = [value[b, i, j].item() for value in values for b in range(len(true)) for i, j in PAIRS if true[b, i, j]]
    return sum(found) / (2 * (NODES - 1) * len(values) * len(true))


def literal_loss(model, values, unrolled):
    """Of structures (samples, B, n, n), and its KL divergence: on average over the items."""
    positions = model.data.train.positions[INDEX]
    logits = model.encoder(positions)
    losses, divergences = [], []
    for b, item in enumerate(positions):
        terms = [literal_reconstruction(model, item, value[b], unrolled) for value in values]
        divergences.append(literal_kl(logits[b]))
        losses.append(sum(terms) / len(terms) + divergences[-1])
    return torch.stack(losses).mean(), torch.stack(divergences).mean()


def assert_metrics(model, values, loss, kl, metrics):
    found = {name: value.item() for name, value in metrics.items()}
    precision = literal_precision(values, model.data.train.trees[INDEX])
    assert found == pytest.approx({"elbo": -loss.item(), "kl": kl.item(), "precision": precision}, rel=1e-9)


def test_the_divergence_is_that_of_gumbels():
    u = torch.randn(NODES, NODES, dtype=torch.float64, generator=seeded(0))
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    of_pairs = [kl_divergence(Gumbel(u[i, j], one), Gumbel(zero, one)).item() for i, j in PAIRS]
    assert literal_kl(u).item() == pytest.approx(sum(of_pairs) / NODES, rel=1e-9)


# --- training ---


class Given(nn.Module):
    """In an estimator's place: the objective of structures that are given."""

    differentiates = False

    def __init__(self, values):
        super().__init__()
        self.values = values

    def forward(self, dist, objective, context, *, generator):
        self.context, self.generator = context, generator
        return objective(self.values).mean(0)


@PROTOCOLS
@pytest.mark.parametrize("samples", [1, 4])  # from three on the decoder has another way
def test_the_loss_is_the_literal_one(training, samples):
    """With its gradients, the encoder's being those of the divergence alone."""
    model, generator = made(training=training), seeded(3)
    values = trees(samples, len(INDEX), generator=seeded(2))
    model.estimator = Given(values)
    loss, metrics = model.loss(INDEX, generator)
    expected, kl = literal_loss(model, values, unrolled=training == "unrolled")
    assert kl > 0.01
    torch.testing.assert_close(loss, expected, **CLOSE)
    assert_metrics(model, values, expected, kl, metrics)
    parameters = [*model.encoder.parameters(), *model.decoder.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad(x, parameters) for x in (loss, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    assert torch.equal(model.estimator.context, model.data.train.positions[INDEX].flatten(1))
    assert model.estimator.generator is generator


@PROTOCOLS
@pytest.mark.parametrize("estimator", [name for name, cls in ESTIMATORS.items() if not cls.weighted])
def test_every_estimator_sees_the_literal_loss(estimator, training, monkeypatch):
    """Of the structures that it asks for first, the soft ones of SST among them."""
    model, seen = made(estimator=estimator, training=training), []
    real = model.reconstruction
    monkeypatch.setattr(model, "reconstruction", lambda x, value: (seen.append(value.detach()), real(x, value))[1])
    loss, metrics = model.loss(INDEX, seeded(3))
    expected, kl = literal_loss(model, seen[0], unrolled=training == "unrolled")
    torch.testing.assert_close(loss, expected, **CLOSE)
    assert_metrics(model, seen[0], expected, kl, metrics)


@pytest.mark.parametrize("look", ["loss", "gradient_std"])
def test_the_critic_reads_the_frames(look):
    """Those of the same item, behind its noise."""
    model, calls = made(estimator="RELAX"), []
    critic = model.estimator.critic
    critic.register_forward_hook(lambda module, args, out: calls.append((*args, out)))
    getattr(model, look)(INDEX, seeded(3))
    first, _, second = critic.net
    ((noise, _, out),) = calls  # at the noise and given the trace, of one sample or of ten draws
    for b, item in enumerate(model.data.train.positions[INDEX]):
        noises, outs = noise[..., b, :, :].flatten(0, -3), out[..., b].flatten()
        assert len(outs) == (2 if look == "loss" else 20)
        for x, y in zip(noises, outs, strict=True):
            hidden = torch.tanh(first.weight @ torch.cat([x.flatten(), item.flatten()]) + first.bias)
            torch.testing.assert_close(y, (second.weight @ hidden + second.bias)[0], **CLOSE)


# --- the gradient's noise ---


class Noisy(nn.Module):
    """In an estimator's place: what its gradients are is drawn, around means that are much larger."""

    differentiates = False

    def forward(self, dist, objective, context, *, generator):
        drawn = torch.randn(dist.logits.shape, dtype=torch.float64, generator=generator)
        sizes = torch.arange(1.0, NODES**2 + 1).view(NODES, NODES)
        self.gradient = (100 + drawn) * sizes  # (draws, B, n, n)
        self.losses, self.context = objective(trees(1, *dist.batch_shape, generator=seeded(2))), context
        return (dist.log_rates * self.gradient).sum((-1, -2))


def test_the_gradient_s_standard_deviation_is_that_over_draws():
    """Of each entry by itself, and then the mean: over items, and over pairs, whose gradient is above the diagonal."""
    model = made()
    model.estimator = Noisy()
    found = model.gradient_std(INDEX, seeded(3))
    gradient = model.estimator.gradient
    assert gradient.shape == (10, len(INDEX), NODES, NODES)
    above = [(b, i, j) for b in range(len(INDEX)) for i, j in PAIRS if i < j]
    expected = statistics.mean(statistics.stdev(gradient[:, b, i, j].tolist()) for b, i, j in above)
    assert found == pytest.approx(expected, rel=1e-6)

    positions = model.data.train.positions[INDEX]
    assert torch.equal(model.estimator.context, positions.flatten(1).expand(10, -1, -1))
    one = trees(1, 10, len(INDEX), generator=seeded(2))[0, 6, 1]
    expected = literal_reconstruction(model, positions[1], one, unrolled=False)
    torch.testing.assert_close(model.estimator.losses[0, 6, 1], expected, **CLOSE)


# --- evaluation ---


def literal_metrics(model, values, unrolled=False):
    """On the validation set, of one tree per graph, with the networks in the mode that they are in."""
    positions, true = model.data.valid
    elbo = kl = 0.0
    pairs = {"tree": [], "others": []}  # of those that are taken for edges, which are
    parts = [model.encoder(part) for part in positions.split(3)]
    for frames_, logits, value, tree in zip(positions, torch.cat(parts), values, true, strict=True):
        divergence = literal_kl(logits).item()
        elbo -= literal_reconstruction(model, frames_, value, unrolled).item() + divergence
        kl += divergence
        for i, j in PAIRS:
            pairs["tree" if value[i, j] else "others"].append(tree[i, j].item())
    better = max(pairs, key=lambda name: statistics.mean(pairs[name]))
    return {
        "elbo": elbo / len(true),
        "kl": kl / len(true),
        "precision": statistics.mean(pairs[better]),
        "recall": sum(pairs[better]) / (len(true) * 2 * (NODES - 1)),
        "complement": float(better == "others"),
    }


@PROTOCOLS
@torch.no_grad()
def test_evaluation_is_the_literal_one(training, monkeypatch):
    """Of one sample per graph, teacher-forced whatever the training was, and with the statistics that batch norm has
    learned: not of the most likely tree, nor unrolled, nor with the statistics of what is evaluated."""
    monkeypatch.setattr(experiment, "CHUNK", 3)
    model = made(training=training, seed=5)
    found = evaluate_split(model, "valid", CPU)
    model.eval()
    parts = [gt.SpanningTree(model.encoder(part)) for part in model.data.valid.positions.split(3)]
    generator = seeded(derive_seed(5, "evaluate", "valid"))
    values = torch.cat([dist.sample((1,), generator=generator)[0] for dist in parts])
    assert found == pytest.approx(literal_metrics(model, values), rel=1e-9)

    mode = torch.cat([dist.mode for dist in parts])
    others = [literal_metrics(model, mode), literal_metrics(model, values, unrolled=True)]
    others.append(literal_metrics(model.train(), values))
    for other in others:  # this test can tell them apart
        assert found["elbo"] != pytest.approx(other["elbo"], rel=1e-6)


def test_evaluation_leaves_the_model_as_it_is():
    model = made()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    first = evaluate_split(model, "valid", CPU)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert evaluate_split(model, "valid", CPU) == first != evaluate_split(model, "test", CPU)
