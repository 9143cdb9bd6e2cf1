"""Structures at the sites of Pyro's models and guides: the gradients of its ELBOs against enumeration, plates, events,
masks, errors. False alarms: one in a million for each statistical test; seeds are fixed."""

import inspect
import math
import pickle

import pytest
import torch
from common import FALSE_ALARM, seeded

import gumtrace as gt
from gumtrace import diagnostics as D
from gumtrace import structures
from gumtrace.diagnostics.p_values import smallest, two_sided
from gumtrace.recursions import MaximalIndependentSet

pyro = pytest.importorskip("pyro", reason="pyro-ppl is not installed, which is the extra `pyro`")
from pyro import distributions as dist  # noqa: E402 - there may be none
from pyro import poutine  # noqa: E402
from pyro.infer import SVI, Trace_ELBO, TraceGraph_ELBO  # noqa: E402
from pyro.ops.provenance import get_provenance, track_provenance  # noqa: E402

import gumtrace.pyro as gp  # noqa: E402

RING = torch.eye(4).roll(1, 0)
EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])


def randn(*shape, seed=4):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


BUILD = {
    "subset": (lambda x: gp.Subset(x, 2), (4,)),
    "subset over traces": (lambda x: gp.Subset(x, 2).over_traces(), (4,)),
    "permutation": (gp.Permutation, (3,)),
    "matching": (gp.Matching, (2, 3)),
    "matching over traces": (lambda x: gp.Matching(x).over_traces(), (2, 3)),
    "tree": (gp.SpanningTree, (3, 3)),
    "forest over traces": (lambda x: gp.SpanningTree(x, components=2).over_traces(), (4, 4)),
    "edges": (lambda x: gp.SpanningTree.from_edges(x, EDGES, 4), (5,)),
    "arborescence": (gp.Arborescence, (3, 3)),
    "binary": (gp.BinaryTree, (3,)),
    "custom": (lambda x: gp.Custom(x, MaximalIndependentSet(RING), event_dim=1), (4,)),
}
ITEMS = 2


def likelihood(value, keys):
    """log p(y | X) of an item, (samples, items): all structures have another one."""
    flat = value.double().flatten(value.dim() - keys)
    return (flat @ randn(flat.shape[-1], seed=3)).square()


def exact_elbo(build, logits, prior, dims):
    """Σ q (log p + log p(y | X) - log q) over all values, or all traces, of each item."""
    total = logits.new_zeros(())
    for x, y in zip(logits.unbind(), prior.unbind(), strict=True):
        q, p = build(x), build(y)
        if q.is_over_traces:
            law = D.enumerate_traces(q)
            value, log_p = law.outcomes.value, p.trace_log_prob(law.outcomes)
        else:
            law = D.enumerate_values(q)
            value, log_p = law.outcomes, p.log_prob(law.outcomes)
        total = total + (law.log_prob.exp() * (log_p + likelihood(value, dims) - law.log_prob)).sum()
    return total


def problem(name):
    """Model and guide, the guide's logits, and the number of dimensions of a value."""
    build, keys = BUILD[name]
    logits, prior = randn(ITEMS, *keys).requires_grad_(), randn(ITEMS, *keys, seed=5)
    dims = len(build(prior).event_shape)

    def model():
        with pyro.plate("items", ITEMS):
            z = pyro.sample("z", build(prior))
            pyro.factor("y", likelihood(z, dims))

    def guide():
        with pyro.plate("items", ITEMS):
            pyro.sample("z", build(pyro.param("logits", logits)))

    return model, guide, logits, exact_elbo(build, logits, prior, dims)


def p_value(elbo, model, guide, logits, exact, replicates):
    """Of the mean value and gradient of many estimates."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    (target,) = torch.autograd.grad(exact, logits)
    target = torch.cat([exact.detach()[None], target.flatten()])
    rows = torch.empty(replicates, len(target), dtype=torch.float64)
    for row in rows:
        row[0] = -elbo.loss_and_grads(model, guide)
        parameter = pyro.param("logits")
        row[1:] = -parameter.grad.flatten()
        parameter.grad = None
    rows -= target
    error = rows.std(0) / replicates**0.5
    random = error > 1e-12
    assert (rows.mean(0)[~random].abs() < 1e-9).all()
    return smallest(two_sided(rows.mean(0)[random] / error[random]), int(random.sum()))


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO])
@pytest.mark.parametrize("name", BUILD)
@pytest.mark.slow
def test_elbo(name, elbo):
    settings = {"num_particles": 20, "vectorize_particles": True, "max_plate_nesting": 1}
    assert p_value(elbo(**settings), *problem(name), 60) > FALSE_ALARM


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO])
@pytest.mark.parametrize("name", BUILD)
def test_one_step_of_inference(name, elbo):
    """Particles one after the other, as is Pyro's default."""
    pyro.clear_param_store()
    build, keys = BUILD[name]

    def model():
        with pyro.plate("items", ITEMS):
            z = pyro.sample("z", build(torch.zeros(ITEMS, *keys)))
            mean = z.double().flatten(1).sum(-1)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.ones(ITEMS))

    def guide():
        logits = pyro.param("logits", randn(ITEMS, *keys).float())
        with pyro.plate("items", ITEMS):
            pyro.sample("z", build(logits))

    before = guide() or pyro.param("logits").detach().clone()
    loss = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), elbo()).step()
    assert torch.tensor(loss).isfinite()
    assert not torch.equal(pyro.param("logits"), before)


@pytest.mark.slow
def test_several_structures_in_an_event():
    """`to_event` makes one variable of an item's structures, with one likelihood."""
    logits = randn(2, 2, 3).requires_grad_()
    prior = randn(2, 2, 3, seed=5)

    def model():
        with pyro.plate("items", 2):
            z = pyro.sample("z", gp.Subset(prior, 1).to_event(1))
            pyro.factor("y", likelihood(z, 2))

    def guide():
        with pyro.plate("items", 2):
            pyro.sample("z", gp.Subset(pyro.param("logits", logits), 1).to_event(1))

    exact = logits.new_zeros(())
    values = torch.eye(3, dtype=torch.float64)[torch.cartesian_prod(torch.arange(3), torch.arange(3))]  # (9, 2, 3)
    for x, y in zip(logits, prior, strict=True):
        log_q, log_p = ((values * each.log_softmax(-1)).sum((-1, -2)) for each in (x, y))
        exact = exact + (log_q.exp() * (log_p + likelihood(values, 2) - log_q)).sum()
    elbo = TraceGraph_ELBO(num_particles=20, vectorize_particles=True, max_plate_nesting=1)
    assert p_value(elbo, model, guide, logits, exact, 60) > FALSE_ALARM


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO])
@pytest.mark.parametrize("build", [gp.SpanningTree, lambda x: gp.SpanningTree(x).over_traces()])
@pytest.mark.slow
def test_logits_that_depend_on_another_site(elbo, build):
    """TraceGraph_ELBO needs to know that the tree depends on the first site."""
    scores = randn(2).requires_grad_()
    priors, likelihoods, drawn_from = (randn(2, 3, 3, seed=seed) for seed in (5, 6, 7))
    drawn_from[1] *= 4  # far from its prior

    def model():
        first = pyro.sample("first", dist.Bernoulli(torch.tensor(0.3, dtype=torch.float64))).long()
        z = pyro.sample("z", build(priors[first]))
        pyro.factor("y", (z * likelihoods[first]).sum((-1, -2)))

    def guide():
        chance = pyro.param("logits", scores).softmax(-1)[1]
        first = pyro.sample("first", dist.Bernoulli(chance)).long()
        pyro.sample("z", build(drawn_from[first]))

    exact = scores.new_zeros(())
    for first, (chance, prior) in enumerate(zip(scores.softmax(-1), (0.7, 0.3), strict=True)):
        q, p = build(drawn_from[first]), build(priors[first])
        law = D.enumerate_traces(q) if q.is_over_traces else D.enumerate_values(q)
        value = law.outcomes.value if q.is_over_traces else law.outcomes
        log_p = p.trace_log_prob(law.outcomes) if q.is_over_traces else p.log_prob(value)
        inner = log_p + (value * likelihoods[first]).sum((-1, -2)) - law.log_prob
        exact = exact + chance * (math.log(prior) - chance.log() + (law.log_prob.exp() * inner).sum())
    assert p_value(elbo(), model, guide, scores, exact, 600) > FALSE_ALARM


def test_log_probabilities_know_the_sites_they_depend_on():
    logits, value = randn(4), gp.Subset(randn(4), 2).over_traces().sample((3,))
    d = gp.Subset(track_provenance(logits, frozenset("a")), k=torch.tensor(2))
    for law in (d, d.expand((3,)), d.with_log_rates(logits)):
        assert get_provenance(law.over_traces().log_prob(track_provenance(value, frozenset("b")))) == {"a", "b"}
    assert type(d.logits) is torch.Tensor


def test_signatures_are_those_of_the_structures():
    for name in structures.__all__:
        assert inspect.signature(getattr(gp, name)) == inspect.signature(getattr(gt, name))


@pytest.mark.parametrize("name", BUILD)
def test_plates(name):
    """Nested plates expand a distribution, subsampling takes some of its items, and `mask` leaves some out."""
    build, keys = BUILD[name]
    event = build(torch.zeros(keys)).event_shape

    def model():
        outer = pyro.plate("outer", 4, subsample_size=2, dim=-2)
        with outer as rows, pyro.plate("inner", 3, dim=-1):
            pyro.sample("one", build(torch.zeros(keys)))
            pyro.sample("each", build(torch.zeros(4, 1, *keys)[rows]))
            pyro.sample("some", build(torch.zeros(keys)).expand([2, 3]).mask(torch.tensor([True, False, True])))
            pyro.sample("event", build(torch.zeros(2, 3, 5, *keys)).to_event(1))

    trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    for site, extra in (("one", ()), ("each", ()), ("some", ()), ("event", (5,))):
        node = trace.nodes[site]
        assert node["value"].shape == (2, 3, *extra, *event)
        assert node["log_prob"].shape == (2, 3)
        assert node["scale"] == 2  # four rows, of which two were taken
    assert (trace.nodes["some"]["log_prob"][:, 1] == 0).all()


def test_every_structure_is_there():
    for name in structures.__all__:
        made = getattr(gp, name)
        assert issubclass(made, getattr(gt, name))
        assert issubclass(made, dist.TorchDistribution.__mro__[2])
    assert isinstance(gp.SpanningTree.from_edges(torch.zeros(5), EDGES, 4), gp.SparseSpanningTree)
    assert gt.pyro is gp


def test_the_plain_classes_are_none_of_pyro():
    """Why there is this module: what torch.distributions has, Pyro does not call."""
    with pytest.raises(TypeError, match="not callable"):
        pyro.sample("z", gt.Subset(torch.zeros(4), 2))


def test_structures_are_observed_and_traces_are_not():
    value = gt.Subset(torch.zeros(4), 2).sample()
    d = gp.Subset(randn(4), 2)

    def model(d):
        return pyro.sample("z", d, obs=value)

    trace = poutine.trace(model).get_trace(d)
    assert trace.log_prob_sum() == gt.Subset(d.logits, 2).log_prob(value)
    with pytest.raises(ValueError, match=r"carries no trace.* an observed structure needs one over structures"):
        poutine.trace(model).get_trace(d.over_traces()).compute_log_prob()


def test_model_and_guide_must_agree():
    d = gp.Subset(randn(4), 2)
    with pytest.raises(ValueError, match=r"comes from a distribution over traces.* take over_traces\(\) of both"):
        d.log_prob(d.over_traces().sample())
    with pytest.raises(ValueError, match="carries no trace"):
        d.over_traces().log_prob(d.sample())
    with pytest.raises(ValueError, match="carries no trace"):
        gp.trace_of(d.over_traces().sample() + 0)


def test_winners_of_a_site():
    """Indices in place of 0/1 values, in the model itself."""
    d = gp.Subset(randn(5, 4), 2).over_traces()
    value = pyro.sample("z", d)
    winners = gp.trace_of(value).winners
    assert torch.equal(torch.zeros_like(value).scatter(-1, winners, 1.0), value)


def test_trees_that_are_too_large_for_log_prob():
    d = gp.SpanningTree(torch.zeros(30, 30))
    with pytest.raises(ValueError, match=r"takes at most 20(.|\n)*take over_traces\(\)"):
        d.log_prob(d.sample())
    assert d.over_traces().log_prob(d.over_traces().sample()).isfinite()


def test_copies():
    """The variable of a site stays what it is in expansions, other log-rates and pickles."""
    d = gp.Subset(randn(4), 2).over_traces()
    copies = [d.expand((3,)), d.expand_by((3,)), d.with_log_rates(randn(3, 4)), pickle.loads(pickle.dumps(d))]
    assert all(copy.is_over_traces and type(copy) is gp.Subset for copy in copies)
    assert not gp.Subset(randn(4), 2).is_over_traces


def test_estimators_take_them_too():
    logits = randn(5, 3, 4).requires_grad_()
    loss = gt.estimators.TraceREINFORCE()(gp.Subset(logits, 2).to_event(1), lambda x: x.sum((-1, -2)))
    assert loss.shape == (5,)
