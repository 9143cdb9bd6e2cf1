"""The experiment with binary trees: its losses, its gradients, and runs of it."""

import json

import pytest
import torch
from common import seeded
from no_reading import NoReading
from parentheses_runs import TINY, Tree, every_order
from tiny_runs import Killed

from gumtrace.diagnostics.gradients import gradients
from gumtrace.structures.base import Structure
from gumtrace_experiments import train
from gumtrace_experiments.parentheses.data import Split, load
from gumtrace_experiments.parentheses.encoder import Encoder
from gumtrace_experiments.parentheses.evaluation import GENERATED
from gumtrace_experiments.parentheses.orders import ORDERS, USABLE

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def sequences(data):
    return load(data, 2, 200, 40, 40, longest=8)


def build(sequences, **settings):
    return Tree.build(TINY.replace(**settings), sequences, "cpu")


def trained(path, data, config, **settings):
    (result,) = train(Tree, config, path, data=data, progress=False, **settings)
    return result, (path / "seed-0" / "metrics.jsonl").read_text()


@pytest.mark.parametrize("order", ["left-to-right", "smart"])
def test_the_loss_of_a_fixed_order_is_its_likelihood(sequences, order):
    model = build(sequences, order=order)
    index = torch.tensor([5, 0, 150])
    loss, _ = model.loss(index, seeded())
    batch = sequences.train.batch(index)
    torch.testing.assert_close(loss, -model.log_joint(batch, model.fixed_order(batch, order)).mean())
    assert not hasattr(model, "encoder")
    assert model.config.items == 20


def test_the_semi_supervised_loss_has_two_parts(sequences, monkeypatch):
    """Sequences of the batch have no order; those that join it are among the first tenth, and have the smart one."""
    model = build(sequences, estimator="TraceREINFORCE", samples=3)
    assert (model.items, model.config.known, model.config.known_beside(3)) == (180, 20, 1)
    index, drawn = torch.tensor([0, 7, 179]), []
    plain = model.log_joint

    def log_joint(batch, order, generator=None):
        drawn.append((batch, order))
        return plain(batch, order, generator)

    monkeypatch.setattr(model, "log_joint", log_joint)
    loss, metrics = model.loss(index, seeded())
    ((batch, order),) = drawn  # one call of the decoder
    assert len(order) == 3 * 3 + 1
    assert batch.tokens[:9].equal(sequences.train.tokens[20 + index].repeat(3, 1))
    known = Split(batch.tokens[9:], batch.lengths[9:])
    assert (sequences.train.tokens[:20] == known.tokens).all(-1).any()
    assert order[9:].equal(model.fixed_order(known, "smart"))
    whole, joint = model.posterior(Split(batch.tokens[[0, 1, 2, 9]], batch.lengths[[0, 1, 2, 9]])), plain(batch, order)
    own = model.structure(whole.logits[:3], batch.lengths[:3]).log_prob(order[:9].view(3, 3, 8))
    bound = (own - joint[:9].view(3, 3)).mean(0)
    smart = model.posterior(known).log_prob(order[9:])
    torch.testing.assert_close(loss, (bound.sum() - joint[9] - smart[0]) / 4)
    torch.testing.assert_close(metrics["bound"], bound.mean())


def test_shards_change_no_weight_of_known_orders(sequences, monkeypatch):
    """Of 36 sequences without an order and 4 with one: the same numbers in one shard and in two."""
    model = build(sequences, calls=36, estimator="TraceREINFORCE", samples=1)
    joined = []

    def some_known(count, generator):
        joined.append((count, len(found.orders) if (found := plain(count, generator)) else 0))
        return found

    plain = model._some_known
    monkeypatch.setattr(model, "_some_known", some_known)
    for shards in (1, 2):
        for index in torch.arange(model.config.items).chunk(shards):
            model.loss(index, seeded())
    assert joined == [(36, 4), (18, 2), (18, 2)]


def test_nothing_is_known_without_supervision(sequences):
    model = build(sequences, order="unsupervised")
    assert (model.items, model.config.known_beside(4)) == (200, 0)
    assert set(model.loss(torch.arange(4), seeded())[1]) == {"loss", "bound"}


@pytest.mark.parametrize("estimator", ["RELAX", "TraceREINFORCE"])
def test_gradients_are_those_of_the_bound(sequences, estimator):
    """In the mean over 3000 draws, against the sum over all trees: 14 logits, each within five standard errors."""
    model = build(sequences, estimator=estimator, samples=2, order="unsupervised")
    batch = sequences.train.batch((sequences.train.lengths == 4).nonzero()[:3, 0])
    logits = model.encoder(batch).detach().requires_grad_()
    dist, orders = model.structure(logits, batch.lengths), every_order(4, 8)
    total = 0.0
    for order in orders:
        own = dist.log_prob(order.expand(3, 8))
        total = total + (own.exp() * (own - model.log_joint(batch, order.expand(3, 8)).detach())).sum()
    (exact,) = torch.autograd.grad(total, logits)
    with torch.no_grad():
        context = model._context(batch)
    draws = gradients(model.estimator, dist, model._objective(batch, dist, seeded()), 3000, seeded(1), context)
    error = draws.std(0) / 3000**0.5
    assert ((draws.mean(0) - exact).abs() <= 5 * error + 1e-6).all()
    assert exact[:, :4].abs().max() > 0.05


def test_every_part_learns(sequences):
    model = build(sequences, estimator="RELAX")
    model.loss(torch.arange(6), seeded())[0].backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("estimator", ["RELAX", "TraceREINFORCE"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_loss_reads_no_tensor(sequences, order, estimator, monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(Structure, "_may_sync", property(lambda self: False))
    model = build(sequences, order=order, estimator=estimator)
    with NoReading():
        model.loss(torch.arange(model.config.items), seeded())[0].backward()
    assert all(p.grad is not None for p in model.parameters())


def test_padding_is_not_read(sequences):
    batch = sequences.train.batch(torch.arange(10))
    other = Split(torch.where(batch.racing, batch.tokens, 3), batch.lengths)
    encoder = Encoder(2, 8)
    inside = batch.racing
    torch.testing.assert_close(encoder(batch)[inside], encoder(other)[inside])


def test_encoder_metrics(sequences):
    """With a logit that grows from the end to the beginning the mode is the order from left to right."""
    model = build(sequences, order="unsupervised")
    logits = -50.0 * torch.arange(8.0)
    model.encoder.forward = lambda batch: logits.expand(len(batch.lengths), 8)
    found = model._encoder_metrics(sequences.valid, seeded())
    assert found["entropy"] == pytest.approx(0, abs=1e-4)
    smart = model.fixed_order(sequences.valid, "smart") == model.fixed_order(sequences.valid, "left-to-right")
    assert found["smart_modes"] == pytest.approx(smart.all(-1).float().mean().item())
    logits = torch.zeros(8)
    uniform = sum(-(p * p.log()).sum() for p in _chances(sequences.valid.lengths)) / 40
    assert model._encoder_metrics(sequences.valid, seeded())["entropy"] == pytest.approx(uniform.item(), rel=0.05)


def _chances(lengths):
    """Probabilities of all trees, where all logits are equal."""
    for length in lengths.tolist():
        orders = every_order(length, 8)
        dist = Tree.structure(None, torch.zeros(len(orders), 8), torch.full((len(orders),), length))
        yield dist.log_prob(orders).exp()


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_runs(tmp_path, data, order):
    """All of it: training, the bound, what is generated; nothing of the latter is left in the folder."""
    result, _ = trained(tmp_path, data, TINY.replace(order=order))
    found = result["test"]
    assert found["old"] + found["new_correct"] + found["wrong"] == pytest.approx(1)
    assert found["different"] <= 60 <= found["draws"]
    assert {"perplexity", "smart_generated", "wrong_unclosed"} <= found.keys()
    assert ("entropy" in found) == ("perplexity_by_encoder" in found) == (order not in ORDERS[:2])
    assert not (tmp_path / "seed-0" / GENERATED).exists()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"order": "smart"}], ids=["RELAX", "smart"])
def test_a_run_that_was_cut_off_resumes_exactly(tmp_path, data, settings):
    config = TINY.replace(**settings)
    whole, curve = trained(tmp_path / "whole", data, config)

    def stop(run):
        raise Killed

    with pytest.raises(Killed):
        trained(tmp_path / "parts", data, config, watch=stop)
    again, resumed = trained(tmp_path / "parts", data, config)
    assert resumed == curve
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}


def test_generation_that_was_cut_off_resumes_exactly(tmp_path, data, monkeypatch):
    """After the last update, while sequences are generated."""
    from gumtrace_experiments.parentheses import evaluation

    monkeypatch.setattr(evaluation, "BATCH", 20)
    monkeypatch.setattr(evaluation, "PAUSE", 0.0)
    config = TINY.replace(order="smart")
    whole, _ = trained(tmp_path / "whole", data, config)
    plain, left = Tree.generate, iter(range(3))  # one is of another kind: in which order sequences are generated

    def killed(self, count, generator):
        if next(left, None) is None:
            raise Killed
        return plain(self, count, generator)

    with monkeypatch.context() as patched:
        patched.setattr(Tree, "generate", killed)
        with pytest.raises(Killed):
            trained(tmp_path / "parts", data, config)
    assert (tmp_path / "parts" / "seed-0" / GENERATED).exists()
    assert not (tmp_path / "parts" / "seed-0" / "result.json").exists()
    again, _ = trained(tmp_path / "parts", data, config)
    assert again["test"] == whole["test"] == json.loads(json.dumps(whole["test"]))


def test_usable_estimators_are_unbiased():
    assert {"NoiseREINFORCE", "TraceREINFORCE", "StructureREINFORCE", "RELAX"} <= set(USABLE)
    assert "SurrogateREINFORCE" not in USABLE  # there is no surrogate of these orders
    assert all(cls.unbiased and not cls.differentiates for cls in USABLE.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": "backwards"}, "unknown order 'backwards'"),
        ({"estimator": "StochasticSoftmax"}, "unknown estimator"),
        ({"types": 0}, "types must be at least 1"),
        ({"longest": 7}, "longest must be even"),
        ({"longest": 32}, "longest must be even and from 2 to 30"),
        ({"supervision": 1.0}, "supervision must be more than 0 and less than 1"),
        ({"supervision": 0.001}, "leaves no sequence with an order"),
        ({"proposal_share": 1.1}, "proposal_share must be from 0 to 1"),
        ({"proposal_trees": 0}, "proposal_trees must be at least 1"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        TINY.replace(**change)
