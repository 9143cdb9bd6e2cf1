"""Surrogates: ridge regression that is solved only now and then, and states that survive saving and moving."""

import copy

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.recursions import MaximalIndependentSet

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = {"linear": E.LinearSurrogate, "pairwise": E.PairwiseSurrogate, "mlp": lambda: E.MLPSurrogate(5)}
RIDGE = pytest.mark.parametrize("kind", ["linear", "pairwise"])


def rows(count, generator, size=5):
    """Entries 0/1, of which the last is always 0: with it go all its pairs."""
    x = torch.randint(2, (count, size), generator=generator).double()
    x[:, -1] = 0
    return x, torch.randn(count, generator=generator, dtype=torch.float64)


def fitted(kind, calls=20, seed=3):
    generator = seeded(seed)
    torch.manual_seed(seed)
    surrogate = KINDS[kind]()
    for _ in range(calls):
        surrogate.fit(*rows(4, generator), generator=generator)
    return surrogate


def direct(surrogate, calls):
    """Ridge regression on all calls at once, each weighted by its age."""
    gram, moment = 0.0, 0.0
    for age, (x, loss) in enumerate(reversed(calls)):
        features, weight = surrogate.features(x), surrogate.forget**age
        gram, moment = gram + weight * features.mT @ features, moment + weight * features.mT @ loss
    held = torch.eye(len(gram), dtype=gram.dtype)
    held[0, 0] = 0  # the weight of the one is free
    return torch.linalg.solve(gram + surrogate.ridge * held, moment)


@pytest.mark.parametrize("forget", [1.0, 0.9])
@RIDGE
def test_solution_is_that_of_all_losses_at_once(kind, forget):
    surrogate = KINDS[kind](ridge=0.3, forget=forget)
    generator, calls, solved = seeded(1), [], 0
    for call in range(60):
        calls.append(rows(1 + call % 3, generator))
        surrogate.fit(*calls[-1])
        if len(surrogate.waiting) == 0:
            torch.testing.assert_close(surrogate.weight, direct(surrogate, calls), atol=1e-9, rtol=1e-9)
            solved += 1
    assert solved > 10


def test_large_systems_are_rarely_solved(monkeypatch):
    solved = []
    solve = E.PairwiseSurrogate._solve
    monkeypatch.setattr(E.PairwiseSurrogate, "_solve", lambda self: (solved.append(1), solve(self)))
    surrogate, generator = E.PairwiseSurrogate(forget=1.0), seeded(1)
    for _ in range(200):
        surrogate.fit(*rows(4, generator, size=30))  # 466 features
    assert len(solved) < 30
    assert len(surrogate.waiting) < 466 / 3


@RIDGE
def test_prediction_is_the_weighted_sum_of_the_features(kind):
    surrogate = fitted(kind)
    x = rows(7, seeded(5))[0].reshape(7, 1, 5).expand(7, 2, 5)
    torch.testing.assert_close(surrogate(x), surrogate.features(x) @ surrogate.weight)
    assert surrogate(x.float()).dtype == torch.float32


def test_entries_and_pairs_that_never_occur_weigh_nothing():
    surrogate = fitted("pairwise")
    assert (surrogate.weight[surrogate.gram.diagonal() == 0] == 0).all()
    assert (surrogate.gram.diagonal() == 0).sum() == 5  # the last entry, and its four pairs


def test_many_rows_in_one_call():
    """More than are written down at a time."""
    surrogate, call = E.PairwiseSurrogate(), rows(2500, seeded(1))
    surrogate.fit(*call)
    torch.testing.assert_close(surrogate.weight, direct(surrogate, [call]))


@pytest.mark.parametrize("kind", KINDS)
def test_state_survives_saving(kind, tmp_path):
    estimator = E.SurrogateREINFORCE(surrogate=fitted(kind, calls=22), samples=2, extra=4)
    torch.save(estimator.state_dict(), tmp_path / "state.pt")
    torch.manual_seed(9)
    other = E.SurrogateREINFORCE(surrogate=KINDS[kind](), samples=2, extra=4)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.state_dict().keys() == estimator.state_dict().keys()
    for name, value in estimator.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=0, atol=0)
    x, loss = rows(40, seeded(6))
    torch.testing.assert_close(other.surrogate(x), estimator.surrogate(x), rtol=0, atol=0)
    for surrogate in (estimator.surrogate, other.surrogate):
        surrogate.fit(x, loss, generator=seeded(7))
    torch.testing.assert_close(other.surrogate(x), estimator.surrogate(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_state_can_be_loaded_over_a_fitted_one(kind):
    surrogate = fitted(kind)
    surrogate.load_state_dict(KINDS[kind]().state_dict())
    surrogate.fit(*rows(4, seeded(1)))
    assert surrogate(rows(3, seeded(2))[0]).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change", [torch.nn.Module.double, torch.nn.Module.float, copy.deepcopy], ids=lambda f: f.__name__
)
def test_learning_goes_on_after_a_change(kind, change):
    estimator = E.SurrogateREINFORCE(surrogate=fitted(kind), samples=4, extra=8)
    x, loss = rows(40, seeded(6))
    before = estimator.surrogate(x)
    changed = change(estimator)
    torch.testing.assert_close(changed.surrogate(x), before, atol=1e-5, rtol=1e-5)
    changed.surrogate.fit(x, loss)
    assert (changed.surrogate(x) != before).any()


@RIDGE
def test_normal_equations_stay_in_double_precision(kind):
    surrogate = fitted(kind)
    before = surrogate.gram.clone()
    torch.testing.assert_close(surrogate.half().gram, before, rtol=0, atol=0)


def test_perceptron_learns_by_adam_from_the_latest_losses():
    """Torch's own Adam on what is left of the losses when the memory holds twelve; five calls bring twenty."""
    torch.manual_seed(0)
    surrogate = E.MLPSurrogate(5, memory=12, steps=3).double()
    net = copy.deepcopy(surrogate.net).requires_grad_(True)
    adam = torch.optim.Adam(net.parameters(), surrogate.lr)
    generator, draws = seeded(4), seeded(4)
    x, losses = rows(20, seeded(6))
    for end in range(4, 21, 4):
        surrogate.fit(x[end - 4 : end], losses[end - 4 : end], generator=generator)
        kept = sorted(range(max(end - 12, 0), end), key=lambda i: i % 12)  # each in its place
        centre, spread = losses[kept].mean(), losses[kept].std(correction=0)
        for _ in range(3):
            drawn = (torch.rand(256, generator=draws) * len(kept)).long()
            error = net(x[kept][drawn]).squeeze(-1) - (losses[kept][drawn] - centre) / spread
            adam.zero_grad()
            error.square().mean().backward()
            adam.step()
        expected = net(x).squeeze(-1) * spread + centre
        torch.testing.assert_close(surrogate(x), expected.detach(), rtol=1e-9, atol=1e-9)


def test_perceptron_learns_alike_under_autocast():
    x, losses = rows(40, seeded(6))
    plain, under = fitted("mlp"), fitted("mlp")
    plain.fit(x, losses, generator=seeded(1))
    with torch.autocast("cpu", torch.bfloat16):
        under.fit(x, losses, generator=seeded(1))
        torch.testing.assert_close(under(x), plain(x), rtol=0, atol=0)
    torch.testing.assert_close(under.state_dict(), plain.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("change", [torch.nn.Module.half, torch.nn.Module.bfloat16], ids=lambda f: f.__name__)
def test_perceptron_stays_in_single_precision(change):
    surrogate = change(fitted("mlp"))
    assert {t.dtype for t in surrogate.state_dict().values()} == {torch.float32, torch.int64}


def test_a_call_without_losses():
    surrogate = E.MLPSurrogate(5)
    surrogate.fit(torch.zeros(0, 5), torch.zeros(0))
    assert surrogate(torch.zeros(2, 5)).isfinite().all()


def test_more_losses_than_the_memory_holds():
    surrogate = E.MLPSurrogate(5, memory=6)
    x, losses = rows(15, seeded(6))
    surrogate.fit(x, losses, generator=seeded(1))
    torch.testing.assert_close(surrogate.centre, losses[-6:].mean().float())
    torch.testing.assert_close(surrogate.losses.sort().values, losses[-6:].sort().values.float())


def test_perceptron_draws_from_the_generator():
    x = rows(3, seeded(8))[0]
    torch.testing.assert_close(fitted("mlp")(x), fitted("mlp")(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["linear", "pairwise", "mlp"])
@pytest.mark.parametrize("structure", [gt.SpanningTree, gt.Arborescence, gt.Matching, gt.BinaryTree])
def test_batches_of_different_lengths_have_the_same_entries(structure, kind):
    logits = torch.zeros(2, 4) if structure is gt.BinaryTree else torch.zeros(2, 4, 4)
    size = {gt.SpanningTree: 6, gt.Arborescence: 9, gt.Matching: 16, gt.BinaryTree: 20}[structure]
    surrogate = E.MLPSurrogate(size) if kind == "mlp" else KINDS[kind]()
    estimator = E.SurrogateREINFORCE(surrogate=surrogate, samples=2, extra=4)
    for lengths in ([2, 3], [3, 4], [2, 2]):
        dist = structure(logits, lengths=torch.tensor(lengths))
        estimator(dist, lambda x: (x == 1).double().flatten(2).sum(-1), generator=seeded(1))


@pytest.mark.parametrize("root", [0, 2])
def test_entries_of_an_arborescence(root):
    """All but loops and what enters the root, row by row."""
    surrogate, values = E.MLPSurrogate(9), []
    estimator = E.SurrogateREINFORCE(surrogate=surrogate, samples=5, extra=2)
    estimator(gt.Arborescence(torch.zeros(4, 4), root=root), lambda x: (values.append(x), x.sum((-1, -2)))[1])
    kept = [4 * i + j for i in range(4) for j in range(4) if i != j != root]
    torch.testing.assert_close(surrogate.seen[:5], values[0].flatten(1)[:, kept])


@pytest.mark.parametrize(("kind", "most"), [("pairwise", 0.3), ("mlp", 0.5)])
def test_what_is_left_over_of_an_objective_is_small(kind, most):
    """Pairs predict a quadratic of a subset, a perceptron nearly: less than this share of its spread remains."""
    dist = gt.Subset(torch.zeros(8), 3)
    target = torch.randn(4, 8, generator=seeded(2))
    f = lambda x: (x @ target.T - 1).square().mean(-1)  # noqa: E731
    torch.manual_seed(0)
    surrogate = E.MLPSurrogate(8) if kind == "mlp" else E.PairwiseSurrogate()
    estimator = E.SurrogateREINFORCE(surrogate=surrogate, samples=8, extra=8)
    for step in range(100):
        estimator(dist, f, generator=seeded(step))
    x = dist.sample((1000,), generator=seeded(200))
    assert (f(x) - surrogate(x)).std() < most * f(x).std()


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_what_is_fitted_does_not_reach_into_the_encoder(kind):
    """The context is the user's: no gradient, and no graph that is kept alive between calls."""
    encoder = torch.nn.Linear(2, 2)
    logits = torch.zeros(3, 5, requires_grad=True)
    surrogate = E.MLPSurrogate(5, context=2) if kind == "mlp" else E.LinearSurrogate()
    estimator = E.SurrogateREINFORCE(surrogate=surrogate, samples=2, extra=4)
    for _ in range(2):  # the second fit would go back through the graph of the first
        context = encoder(torch.ones(3, 2))
        estimator(gt.Subset(logits, 2), lambda x: x[..., 0], context, generator=seeded(1)).mean().backward()
    assert all(p.grad is None for p in encoder.parameters())
    assert not any(buffer.requires_grad for buffer in estimator.buffers())
    x = torch.zeros(4, 3, 5, requires_grad=True)
    surrogate.fit(x, x.sum(-1), encoder(torch.ones(3, 2)))
    assert x.grad is None


def test_an_outer_optimiser_does_not_move_the_perceptron():
    surrogate = fitted("mlp")
    before = copy.deepcopy(surrogate.net.state_dict())
    torch.optim.SGD(surrogate.parameters(), 1.0).step()
    torch.testing.assert_close(surrogate.net.state_dict(), before, rtol=0, atol=0)
    assert all(p.grad is None and not p.requires_grad for p in surrogate.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: E.PairwiseSurrogate().fit(torch.zeros(2, 200), torch.zeros(2)), "20,101 features"),
        (lambda: E.LinearSurrogate(ridge=0.0), "ridge > 0"),
        (lambda: E.MLPSurrogate(5, memory=0), "memory must be at least 1, got 0"),
        (lambda: E.MLPSurrogate(5)(torch.zeros(2, 6)), "made for 5 entries and features of the context, got 6 and 0"),
        (
            lambda: E.MLPSurrogate(5, context=2).fit(torch.zeros(2, 5), torch.zeros(2)),
            "made for 7 entries and features of the context, got 5 and 0",
        ),
        (lambda: E.PairwiseSurrogate(forget=1.5), "PairwiseSurrogate: needs"),
    ],
)
def test_bad_use_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_integers_that_are_no_indices():
    class Count(MaximalIndependentSet):
        def combine(self, X, K, R, winners):
            return torch.tensor([7])

    d = gt.Custom(torch.zeros(3), Count(torch.ones(3, 3) > 0))
    with pytest.raises(ValueError, match="a value of integers must be indices, -1 to 0"):
        gt.estimators.SurrogateREINFORCE()(d, lambda x: x[..., 0].float())


@pytest.mark.parametrize("calls", [1, 5])
@RIDGE
def test_other_entries_than_those_it_has_learnt_from_are_named(kind, calls):
    """Before and after the first solution, where its losses are given and where they are asked for."""
    surrogate = fitted(kind, calls)
    estimator = E.SurrogateREINFORCE(samples=4, extra=4, surrogate=surrogate)
    message = rf"{type(surrogate).__name__}: it has learnt from structures of 5 entries, these have 6; a surrogate is"
    for call in (
        lambda: estimator(gt.Subset(torch.zeros(6), 2), lambda x: x[..., 0]),
        lambda: surrogate(torch.zeros(2, 6)),
        lambda: surrogate.fit(torch.zeros(2, 6), torch.zeros(2)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
