"""Objectives that are sums over decisions: who takes them, what they may hold, and errors that say what is wrong."""

import pytest
import torch
from cases import FAST
from common import seeded
from decision_terms import OBJECTIVES, by_gains, by_terms, weights_of
from torch.distributions import Independent
from unbiased import case

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import exact_gradient, gradients


@pytest.mark.parametrize("on", ["value", "trace"])
def test_without_terms_it_is_trace_reinforce(on):
    dist, f = case("tree-ragged")
    loss = f if on == "value" else lambda trace: f(trace.value)
    one, other = (
        gradients(estimator(samples=3), dist, loss, 5, seeded(1), on=on)
        for estimator in (E.TraceREINFORCE, E.DecisionREINFORCE)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", E.ESTIMATORS)
def test_any_estimator_takes_such_an_objective(name, kind):
    """The value of each is the mean over its samples; those that differentiate refuse traces, and the score of a subset
    knows no order."""
    dist = gt.Subset(torch.zeros(3, 5, dtype=torch.float64, requires_grad=True), 2)
    made = OBJECTIVES[kind](dist)
    critic = lambda: E.VectorCritic(5).double()  # noqa: E731
    estimator = E.ESTIMATORS[name].from_settings({"samples": 2, "extra": 2}, critic=critic)
    if estimator.differentiates or name == "StructureREINFORCE":
        with pytest.raises(ValueError, match=r"trace|the order of decisions"):
            estimator(dist, made, on="trace")
        return
    loss = estimator(dist, made, on="trace", generator=seeded(1))
    assert loss.shape == (3,)
    if name == "TraceREINFORCE":
        ours = E.DecisionREINFORCE(samples=2)(dist, made, on="trace", generator=seeded(1))
        torch.testing.assert_close(ours, loss)


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", FAST)
def test_the_score_of_a_structure_takes_terms_where_a_value_has_one_trace(name, kind):
    """There the two scores are the same; elsewhere it is an error, if log_prob is known at all."""
    dist = FAST[name]()
    made, traces = OBJECTIVES[kind](dist), [len(each.enumerate_traces()) for each in items(dist)]
    values = [len(each.enumerate_traces().value.flatten(1).unique(dim=0)) for each in items(dist)]
    if dist.one_to_one:
        assert traces == values
        one, other = (
            gradients(estimator(samples=2), dist, made, 5, seeded(1), on="trace")
            for estimator in (E.StructureREINFORCE, E.TraceREINFORCE)
        )
        torch.testing.assert_close(one, other)
        return
    assert sum(traces) > sum(values)
    x = dist.log_rates.clone().requires_grad_()
    with pytest.raises(ValueError, match=f"StructureREINFORCE: a {type(made).__name__} .*take DecisionREINFORCE"):
        E.StructureREINFORCE(samples=2)(dist.with_log_rates(x), made, on="trace")
    with torch.no_grad():  # its value is right
        assert E.StructureREINFORCE(samples=2)(dist, made, on="trace").shape == dist.batch_shape


def items(dist):
    return [dist.item(tuple(index)) for index in torch.ones(dist.batch_shape).nonzero().tolist()]


def test_weights_of_the_slots_of_a_binary_tree_are_refused():
    """Slot b is the one that token b won: a weight of it belongs to the token, so to its gain."""
    dist = gt.BinaryTree(torch.randn(2, 4, generator=seeded(1), dtype=torch.float64).requires_grad_())
    gains, of_slots = weights_of(4, 1), weights_of(4, 2)
    estimator = E.DecisionREINFORCE(samples=4)
    for weights in (of_slots, of_slots.expand(2, 4)):
        with pytest.raises(ValueError, match=r"BinaryTree .* key b won, .*biased; factors .* gain, .* a function of"):
            estimator(dist, E.DecisionGains(gains, weights), on="trace")
    _, exact = exact_gradient(dist, E.DecisionGains(gains, of_slots), on="trace")
    _, by_gain = exact_gradient(dist, E.DecisionGains(gains * of_slots), on="trace")
    torch.testing.assert_close(exact, by_gain)
    for weights in (torch.tensor(2.0), torch.tensor([[2.0], [3.0]])):  # of all decisions alike
        assert estimator(dist, E.DecisionGains(gains, weights), on="trace").shape == (2,)


def test_gains_and_weights_get_their_own_gradients():
    """Plain backpropagation through the terms of the runs, as everywhere."""
    gains = torch.rand(5, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(2, dtype=torch.float64, requires_grad=True)
    dist = gt.Subset(torch.zeros(5, dtype=torch.float64, requires_grad=True), 2)
    E.DecisionREINFORCE(samples=4)(dist, E.DecisionGains(gains, weights), on="trace", generator=seeded(1)).backward()
    won = dist.sample_trace((4,), generator=seeded(1)).winners
    expected = torch.zeros(5, dtype=torch.float64).index_add(0, won.flatten(), weights.detach().repeat(4)) / 4
    torch.testing.assert_close(gains.grad, expected)
    torch.testing.assert_close(weights.grad, gains.detach()[won].mean(0))


def test_what_is_in_the_padding_does_not_matter():
    logits = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    gains = torch.full((2, 5), torch.nan, dtype=torch.float64)
    gains[0, :3], gains[1, :5] = torch.arange(3.0).double(), torch.arange(5.0).double()
    dist = gt.Permutation(logits, lengths=torch.tensor([3, 5]))
    E.DecisionREINFORCE(samples=4)(dist, E.DecisionGains(gains), on="trace", generator=seeded(1)).sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[0, 3:] == 0).all()
    padded = E.DecisionTerms(lambda trace: torch.where(trace.winners < 0, torch.nan, 1.0))
    assert E.DecisionREINFORCE(samples=2)(dist, padded, on="trace").tolist() == [3, 5]


def test_a_term_that_is_not_finite_is_told():
    dist = gt.Subset(torch.zeros(2, 4, requires_grad=True), 2)
    gains = torch.tensor([[1.0, 2.0, 3.0, 4.0], [torch.nan] * 4])
    with pytest.raises(ValueError, match=r"DecisionREINFORCE: the loss of sample 0 of item \(1,\)"):
        E.DecisionREINFORCE(samples=2)(dist, E.DecisionGains(gains), on="trace")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_gain_that_is_not_finite_is_told_of_keys_that_never_win(value):
    """It is part of the mean: without the check the gradient would be nan."""
    x = torch.zeros(2, 4, dtype=torch.float64)
    x[1, 3] = -60
    gains = torch.ones(2, 4, dtype=torch.float64)
    gains[1, 3] = value
    estimator, made = E.DecisionREINFORCE(samples=2), E.DecisionGains(gains)
    with pytest.raises(gt.structures.NotFinite, match=rf"gain of key 3 of item \(1,\) of the batch is {value}"):
        estimator(gt.Subset(x.requires_grad_(), 2), made, on="trace", generator=seeded(1))
    unchecked = estimator(gt.Subset(x, 2, validate_args=False), made, on="trace", generator=seeded(1))
    assert unchecked.isfinite().tolist() == [True, False]
    (grad,) = torch.autograd.grad(unchecked.sum(), x)
    assert grad.isfinite().all(-1).tolist() == [True, False]  # that of the other item is as without it
    edges = torch.zeros(3, 3, requires_grad=True)
    length = torch.ones(3, 3)
    length[1, 2] = length[2, 1] = value
    tree = gt.SpanningTree(edges - 60 * (length != 1))
    with pytest.raises(gt.structures.NotFinite, match=rf"gain of key \(1, 2\) of the item is {value}"):
        estimator(tree, E.DecisionGains(length), on="trace", generator=seeded(1))


def test_objectives_have_short_names():
    def depth(trace):
        return trace.winners

    assert repr(E.DecisionTerms(depth)) == "DecisionTerms(depth)"
    assert repr(E.DecisionTerms(torch.nn.Identity())) == "DecisionTerms(Identity)"
    assert repr(E.DecisionGains(torch.ones(3, 5))) == "DecisionGains(gains of shape (3, 5))"
    assert repr(E.DecisionGains(torch.ones(5), depth)) == "DecisionGains(gains of shape (5,), weights depth)"


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_empty_batches_and_structures_without_decisions(kind):
    for dist in (
        gt.Subset(torch.zeros(0, 4), 2),
        gt.Subset(torch.zeros(3, 4), 0),
        gt.SpanningTree(torch.zeros(3, 1, 1)),
    ):
        x = dist.log_rates.double().requires_grad_()
        loss = E.DecisionREINFORCE(samples=2)(dist.with_log_rates(x), OBJECTIVES[kind](dist), on="trace")
        assert loss.shape == dist.batch_shape
        loss.sum().backward()
        assert (x.grad == 0).all()


BAD = {
    "no trace": (lambda d: (by_terms(d), {}), TypeError, 'on="trace"'),
    "no trace for gains": (lambda d: (by_gains(d), {}), TypeError, 'on="trace"'),
    "too few": (
        lambda d: E.DecisionTerms(lambda t: t.winners[..., :1]),
        ValueError,
        r"each of the 2 decisions.*\(4, 3, 2\)",
    ),
    "losses": (lambda d: E.DecisionTerms(lambda t: t.winners.sum(-1)), ValueError, r"got shape \(4, 3\)"),
    "a number": (lambda d: E.DecisionTerms(lambda t: 1.0), ValueError, "got float"),
    "gains of other keys": (lambda d: E.DecisionGains(torch.ones(4)), ValueError, "a gain for each key"),
    "gains of samples": (lambda d: E.DecisionGains(torch.ones(4, 3, 5)), ValueError, "do not fit batch"),
    "weights of more": (
        lambda d: E.DecisionGains(torch.ones(5), torch.ones(3)),
        ValueError,
        "a weight for each decision",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_use_is_told(bad):
    make, error, message = BAD[bad]
    dist = gt.Subset(torch.zeros(3, 5, requires_grad=True), 2)
    made = make(dist)
    objective, options = made if isinstance(made, tuple) else (made, {"on": "trace"})
    with pytest.raises(error, match=message):
        E.DecisionREINFORCE(samples=4)(dist, objective, **options)


def test_what_gains_and_weights_may_be_is_told():
    with pytest.raises(TypeError, match="gains must be a tensor"):
        E.DecisionGains([1.0, 2.0])
    with pytest.raises(TypeError, match="weights must be a tensor, or a function of the trace; got float"):
        E.DecisionGains(torch.ones(3), 1.0)


def test_several_structures_have_no_order():
    dist = Independent(gt.Subset(torch.zeros(3, 2, 5, requires_grad=True), 2), 1)
    with pytest.raises(ValueError, match="no order; take the structure itself"):
        E.DecisionREINFORCE(samples=2)(dist, by_terms(dist.base_dist), on="trace")


def test_one_sample_warns():
    with pytest.warns(UserWarning, match="DecisionREINFORCE: one sample has no others"):
        E.DecisionREINFORCE(samples=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_it_compiles_as_one_graph(kind):
    dist = gt.Subset(torch.zeros(3, 5, dtype=torch.float64), 2)
    made = {
        "terms": E.DecisionTerms(lambda trace: trace.winners.square()),
        "gains": E.DecisionGains(torch.arange(5.0).double(), torch.tensor([2.0, 1.0]).double()),
    }[kind]

    def step(x):
        at = gt.Subset(x, 2, validate_args=False)
        return E.DecisionREINFORCE(samples=2)(at, made, on="trace").sum()

    x = dist.logits.clone().requires_grad_()
    torch.compile(step, fullgraph=True, backend="aot_eager")(x).backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_torch_func(kind):
    dist = gt.Subset(torch.zeros(5, dtype=torch.float64), 2)
    gains = E.DecisionGains(torch.arange(5.0).double())
    made = gains if kind == "gains" else E.DecisionTerms(lambda trace: trace.winners.square())

    def loss(x):
        return E.DecisionREINFORCE(samples=2)(gt.Subset(x, 2, validate_args=False), made, on="trace")

    grads = torch.func.vmap(torch.func.grad(loss), randomness="different")(dist.logits.expand(4, 5))
    assert grads.shape == (4, 5)
    assert grads.isfinite().all()


def test_terms_of_the_first_decision_alone_leave_no_noise():
    """With gains: nothing comes later, whatever the others decide."""
    dist = gt.Subset(torch.randn(4, generator=seeded(), dtype=torch.float64), 2)
    first = E.DecisionGains(torch.arange(4.0).double(), torch.tensor([1.0, 0.0]))
    estimator = E.DecisionREINFORCE(samples=1, leave_one_out=False)
    ours = gradients(estimator, dist, first, 20, seeded(1), on="trace")
    torch.testing.assert_close(ours, exact_gradient(dist, first, on="trace")[1].expand_as(ours))
