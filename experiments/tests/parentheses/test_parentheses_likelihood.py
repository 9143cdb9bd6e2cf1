"""Bounds of likelihoods against sums over all trees, on a model that was trained for a moment; and the decoder."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from common import seeded
from parentheses_runs import TINY, Tree, every_order

from gumtrace_experiments.parentheses import tree_model
from gumtrace_experiments.parentheses.data import Split, generate, load
from gumtrace_experiments.parentheses.draws import categorical
from gumtrace_experiments.parentheses.evaluation import iwae, of_different
from gumtrace_experiments.parentheses.tree_model import Decoder
from gumtrace_experiments.parentheses.tree_order import from_level_order, level_order
from gumtrace_experiments.parentheses.tree_proposals import GeneratedTrees, propose

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A few dozen updates: neither network is uniform any more."""
    config = TINY.replace(train_size=500, estimator="TraceREINFORCE")
    model = Tree.build(config, Tree.load_data(config, tmp_path_factory.mktemp("data"), torch.device("cpu")), "cpu")
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for i in range(60):
        optimiser.zero_grad()
        model.loss(torch.arange(20) + 20 * (i % 20), seeded(i))[0].backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def sequences():
    """Two of each length."""
    made = generate(300, 2, np.random.default_rng(0), longest=8)
    index = torch.cat([(made.lengths == length).nonzero()[:2, 0] for length in (2, 4, 6, 8)])
    return made.batch(index)


@pytest.fixture(scope="module")
def exact(trained, sequences):
    """For each sequence log P(x, z) and log Q(z | x) of all trees z."""
    dist, found = trained.posterior(sequences), []
    for i, length in enumerate(sequences.lengths.tolist()):
        orders = every_order(length, 8)
        several = Split(*(x[i].expand(len(orders), *x[i].shape) for x in sequences))
        own = trained.structure(dist.logits[i].expand(len(orders), 8), several.lengths)
        found.append((trained.log_joint(several, orders).double(), own.log_prob(orders).double()))
    return found


def weights(trained, sequences, proposal, count):
    """log P / Q, (count, B)."""
    ((orders, log_q),) = proposal(sequences, trained.posterior(sequences), count).values()
    several = Split(*(x.expand(count, *x.shape).flatten(0, 1) for x in sequences))
    return trained.log_joint(several, orders.flatten(0, 1)).view(log_q.shape).double() - log_q


def some_trees(trained):
    _, lengths, parents = trained.generate(300, seeded())
    return GeneratedTrees(parents[:, :8], lengths)


def test_all_trees_are_summed(exact):
    """Catalan numbers of them, and the encoder's probabilities are those of a distribution."""
    assert [len(joint) for joint, _ in exact] == [2, 2, 14, 14, 132, 132, 1430, 1430]
    for _, own in exact:
        assert own.exp().sum().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("share", [1.0, 0.1, 0.5])
def test_weights_are_unbiased(trained, sequences, exact, share):
    """Their mean is the likelihood: eight means of 4000 weights, each within five standard errors."""
    trees = some_trees(trained)
    found = weights(
        trained,
        sequences,
        lambda batch, dist, count: propose(dist, batch.lengths, trees, {"": share}, count, seeded(3)),
        4000,
    ).exp()
    expected = torch.stack([joint.logsumexp(0).exp() for joint, _ in exact])
    error = found.std(0) / 4000**0.5  # of a mixture in fixed parts it is less
    assert ((found.mean(0) - expected).abs() < 5 * error + 1e-12).all()


def test_weights_of_a_few_trees_are_unbiased(trained, sequences, exact):
    """A tenth of four is less than one: 20 trees of the decoder leave many out, which one draw of the encoder covers.
    Eight means of 4000 groups, each within five standard errors."""
    _, lengths, parents = trained.generate(20, seeded())
    trees, repeats = GeneratedTrees(parents[:, :8], lengths), 4000
    several = Split(*(x.repeat_interleave(repeats, 0) for x in sequences))
    found = weights(
        trained, several, lambda batch, dist, count: propose(dist, batch.lengths, trees, {"": 0.1}, count, seeded(5)), 4
    )
    found = found.exp().mean(0).view(-1, repeats)
    expected = torch.stack([joint.logsumexp(0).exp() for joint, _ in exact])
    error = found.std(1) / repeats**0.5
    assert ((found.mean(1) - expected).abs() < 5 * error + 1e-12).all()


def test_trees_of_the_decoder_alone_give_what_they_cover(trained, sequences, exact):
    """As the paper has it: the likelihood of the sequence along one of the trees that were generated."""
    trees = some_trees(trained)
    found = weights(
        trained,
        sequences,
        lambda batch, dist, count: propose(dist, batch.lengths, trees, {"": 0.0}, count, seeded(4)),
        4000,
    ).exp()
    error = found.std(0) / 4000**0.5
    for i, length in enumerate(sequences.lengths.tolist()):
        chances = trees.log_prob(every_order(length, 8)[:, None], torch.tensor([length]))[:, 0].exp()
        assert chances.sum().item() == pytest.approx(1)
        covered = exact[i][0][chances > 0].logsumexp(0).exp()
        assert (found[:, i].mean() - covered).abs() < 5 * error[i] + 1e-12
        assert length < 8 or covered < exact[i][0].logsumexp(0).exp()


@pytest.mark.slow
def test_the_bound_rises_to_the_likelihood(trained, sequences, exact):
    """With one order of the encoder it is the ELBO, known exactly. In the mean over 200 repetitions it rises with K,
    and stays below the likelihood; the mean of 20,000 weights is the likelihood. All within five standard errors."""
    proposal = trained.proposal("valid", seeded())
    elbo = torch.stack([(own.exp() * (joint - own)).sum() for joint, own in exact])
    full = torch.stack([joint.logsumexp(0) for joint, _ in exact])
    by_encoder = super(Tree, trained).proposal("valid", seeded(1))
    ones = weights(trained, sequences, by_encoder, 4000)
    assert ((ones.mean(0) - elbo).abs() < 5 * ones.std(0) / 4000**0.5 + 1e-6).all()
    means = []
    for count in (1, 4, 16, 64):
        found = weights(trained, sequences, proposal, 200 * count)
        found = found[torch.randperm(len(found), generator=seeded())]  # those of the encoder come first
        found = found.view(200, count, 8).logsumexp(1) - np.log(count)
        means.append((found.mean(0), found.std(0) / 200**0.5))
    for (low, error), (high, other) in pairwise(means):
        assert (low < high + 5 * (error.square() + other.square()).sqrt()).all()
        assert low.mean() < high.mean()
    assert (means[-1][0] < full + 5 * means[-1][1]).all()
    many = (weights(trained, sequences, proposal, 20_000) - full).exp()
    error = many.std(0) / 20_000**0.5
    assert ((many.mean(0) - 1).abs() < 5 * error + 1e-3).all()
    assert error.max() < 0.1
    found, effective = trained.bounds(sequences, proposal, 1000)[""]
    relative = (1 / effective - 1 / 1000).clamp(min=0).sqrt()  # standard error of the mean of weights, divided by it
    assert (((found - full).exp() - 1).abs() < 5 * relative + 1e-3).all()
    assert (found - full).abs().max() < (means[0][0] - full).abs().max() / 2


def test_the_bound_and_the_effective_sample_size_by_hand():
    """One item whose weights are equal, one of which one has all, and one that has none."""
    joint = torch.tensor([[1.0, 0.0, -np.inf], [1.5, -np.inf, -np.inf], [2.0, -np.inf, -np.inf]])
    found = iwae(joint, torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    torch.testing.assert_close(found.log_likelihood, torch.tensor([1.0, -np.log(3), -np.inf]).double())
    torch.testing.assert_close(found.effective, torch.tensor([3.0, 1.0, 0.0]).double())


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_equal_orders_are_evaluated_once(at_once):
    """The same order of another item is another one."""
    orders, seen = torch.randint(0, 2, (40, 3, 4), generator=seeded()), []

    def log_joint(item, order):
        assert len(item) <= at_once
        seen.extend(zip(item.tolist(), map(tuple, order.tolist()), strict=True))
        return 100.0 * item + (order * torch.tensor([1, 2, 4, 8])).sum(-1)

    found = of_different(log_joint, orders, at_once)
    expected = 100.0 * torch.arange(3) + (orders * torch.tensor([1, 2, 4, 8])).sum(-1)
    assert found.equal(expected)
    assert len(seen) == len(set(seen)) == len({(b, *o.tolist()) for k in orders for b, o in enumerate(k)}) < 120


def test_what_is_of_each_alone_is_as_if_it_were_alone(trained, sequences):
    """The draws that shares have in common: those of the encoder, and those of the decoder."""
    trees = some_trees(trained)
    dist = trained.posterior(sequences)
    found = propose(dist, sequences.lengths, trees, {"": 0.25, "encoder": 1.0, "decoder": 0.0}, 40, seeded())
    (orders, log_q), (own, by_encoder), (others, by_decoder) = found.values()
    assert orders.equal(torch.cat([own[:10], others[10:]]))
    torch.testing.assert_close(by_encoder, dist.log_prob(own).double())
    torch.testing.assert_close(by_decoder, trees.log_prob(others, sequences.lengths))
    mixture = torch.logaddexp(
        dist.log_prob(orders).double() + np.log(0.25), trees.log_prob(orders, sequences.lengths) + np.log(0.75)
    )
    torch.testing.assert_close(log_q, mixture)


def test_fixed_orders_are_exact(trained, sequences, tmp_path):
    for order in ("left-to-right", "smart"):
        config = TINY.replace(order=order)
        model = Tree.build(config, load(tmp_path, 2, 200, 40, 40, longest=8), "cpu").eval().requires_grad_(False)
        data = model.data.valid
        found = model.evaluate("valid", seeded())
        total = model.log_joint(data, model.fixed_order(data, order)).double().sum() / data.lengths.sum()
        assert found["log_likelihood"] == pytest.approx(total.item())
        assert found["perplexity"] == pytest.approx(np.exp(-total.item()))
        assert "entropy" not in found


# The decoder ------------------------------------------------------------------------------------------


def test_the_decoder_is_a_language_model_of_symbols():
    """Its log-probability is the sum of those of its steps, one by one, up to the end."""
    torch.manual_seed(0)
    decoder, symbols = Decoder(types=2, hidden=6), torch.tensor([[0, 4, 3, 4, 4, 4, 4], [4, 1, 1, 1, 1, 1, 1]])
    for row, length in zip(symbols, (5, 1), strict=True):
        state, last, total = None, torch.tensor(5), 0.0
        for symbol in row[:length]:
            output, state = decoder.lstm(decoder.embedding[last][None, None], state)
            total += decoder.out(output[0, 0]).log_softmax(-1)[symbol]
            last = symbol
        torch.testing.assert_close(decoder(row[None])[0], total)
    torch.testing.assert_close(decoder(symbols), torch.stack([decoder(row[None])[0] for row in symbols]))


@pytest.mark.parametrize("look", [tree_model.EVERY, 2])
def test_what_is_generated_follows_the_log_probabilities(look, monkeypatch):
    """Chi-square over the trees of up to two tokens and the rest; by seed, it would fail by chance once in 10 000. Also
    where complete trees are left out while those are still growing."""
    from scipy.stats import chi2

    monkeypatch.setattr(tree_model, "EVERY", look)
    torch.manual_seed(1)
    decoder = Decoder(types=1, hidden=6).requires_grad_(False)
    for p in decoder.parameters():
        p *= 3  # what came before matters
    tokens, lengths, parents = from_level_order(decoder.generate(20_000, 6, seeded()), decoder.eos)
    statistic, rest, seen = 0.0, 1.0, 0
    for length in (0, 1, 2):
        for order in every_order(length, 6) if length else torch.full((1, 6), -2):
            for number in range(2**length):
                own = torch.tensor([[number >> i & 1 for i in range(length)] + [0] * (6 - length)])
                sizes = torch.tensor([length])
                chance = decoder(level_order(own, sizes, order[None], decoder.eos)).exp().item()
                same = (lengths == length) & (parents == order).all(-1) & (tokens == own).all(-1)
                statistic += (same.sum().item() - 20_000 * chance) ** 2 / (20_000 * chance)
                rest, seen = rest - chance, seen + 1
    others = (lengths < 0) | (lengths > 2)
    statistic += (others.sum().item() - 20_000 * rest) ** 2 / (20_000 * rest)
    assert seen == 1 + 2 + 2 * 4
    assert statistic < chi2.isf(1e-4, seen)


def test_clocks_that_stand_still_make_nothing_likely(monkeypatch):
    """torch's exponential noise may be 0: even then, what has probability 10⁻¹³ does not win."""

    def stopped(self, generator=None):
        self.fill_(1.0)
        self[:, 0] = 0.0
        return self

    monkeypatch.setattr(torch.Tensor, "exponential_", stopped)
    assert categorical(torch.tensor([[-30.0, 0.0], [0.0, 0.0]]), None).tolist() == [1, 0]


def test_generation_stops_where_everything_ended():
    decoder = Decoder(types=1, hidden=4).requires_grad_(False)
    decoder.out.bias[decoder.eos] = 100.0
    assert decoder.generate(3, longest=2).eq(decoder.eos).all()
    decoder.out.bias[decoder.eos] = -100.0
    assert from_level_order(decoder.generate(3, longest=2), decoder.eos)[1].eq(-1).all()


def test_padding_that_nobody_needs_is_not_read(trained, sequences, monkeypatch):
    """Bounds are the same as with it."""
    short = Split(sequences.tokens[:4], sequences.lengths[:4])  # of two and four tokens
    proposed = trained.proposal("test", seeded())(short, trained.posterior(short), 20)
    several = Split(*(x.expand(20, *x.shape).flatten(0, 1) for x in short))
    widths, plain = [], trained.log_joint
    monkeypatch.setattr(trained, "log_joint", lambda *given: widths.append(given[1].shape[-1]) or plain(*given))
    found = trained.bounds(short, lambda *_: proposed, 20)
    assert widths == [4]
    for name, (orders, log_q) in proposed.items():
        expected = iwae(plain(several, orders.flatten(0, 1)).view(20, 4), log_q)
        torch.testing.assert_close(found[name], expected)
