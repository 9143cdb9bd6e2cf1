"""Several graphs in one batch, given by their edges: against each graph alone, decision by decision. False alarms: one
in a million for each statistical test; seeds are fixed."""

import copy
import pickle

import pytest
import torch
from common import FALSE_ALARM, decisions, seeded
from torch.distributions import Independent

import gumtrace as gt
from gumtrace import diagnostics as D
from gumtrace import divergences as V
from gumtrace import estimators as E
from gumtrace.steps import steps

EDGES = [
    torch.tensor([[0, 1, 2, 0, 2], [1, 2, 0, 3, 2]]),  # with a loop
    torch.tensor([[0, 1, 0], [1, 0, 1]]),  # parallel edges
    torch.zeros(2, 0, dtype=torch.long),  # one node
    torch.tensor([[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 2, 3]]),
]
NODES = [4, 2, 1, 4]


def logits(*shape, dtype=torch.float64):
    return [torch.randn(*shape, edges.shape[1], generator=seeded(g), dtype=dtype) for g, edges in enumerate(EDGES)]


def both(*shape, **settings):
    """The batch, and each graph alone."""
    given = logits(*shape)
    alone = [gt.SpanningTree.from_edges(*x, **settings) for x in zip(given, EDGES, NODES, strict=True)]
    return gt.SpanningTree.from_edges(given, EDGES, NODES, **settings), alone


def together(mixed=False):
    """As PyTorch Geometric has them: nodes and edges in one list; mixed, in any order."""
    starts = torch.tensor([0, *NODES]).cumsum(0)[:-1]
    edges = torch.cat([each + start for each, start in zip(EDGES, starts, strict=True)], 1)
    batch = torch.arange(len(NODES)).repeat_interleave(torch.tensor(NODES))
    nodes = torch.randperm(len(batch), generator=seeded(1)) if mixed else torch.arange(len(batch))
    order = torch.randperm(edges.shape[1], generator=seeded(2)) if mixed else torch.arange(edges.shape[1])
    edges, batch = nodes[edges[:, order]], torch.empty_like(batch).index_copy(0, nodes, batch)
    return torch.cat(logits(), -1)[..., order], edges, batch, order


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_every_graph_runs_as_it_does_alone(shape):
    d, alone = both(*shape)
    assert d.batch_shape == (*shape, 4)
    assert d.event_shape == (6,)
    noise = d.perturb((50,), generator=seeded())
    trace = d.trace(noise)
    log_prob = d.trace_log_prob(trace)
    assert log_prob.shape == (50, *shape, 4)
    for g, one in enumerate(alone):
        count = EDGES[g].shape[1]
        own = one.trace(noise[..., g, :count])
        assert torch.equal(own.winners, trace.winners[..., g, : NODES[g] - 1])
        assert (trace.winners[..., g, NODES[g] - 1 :] == -1).all()
        assert torch.equal(own.value, trace.value[..., g, :count])
        torch.testing.assert_close(one.trace_log_prob(own), log_prob[..., g], rtol=0, atol=0)


def test_decisions_are_those_of_each_graph():
    d, alone = both()
    trace = d.sample_trace((20,), generator=seeded())
    for g, one in enumerate(alone):
        item = d.item((g,))
        for sample in range(20):
            own = gt.Trace(one._layout, trace.choices[sample, g, : NODES[g] - 1], trace.links[sample, g, :0])
            assert decisions(trace[sample, g], item, True) == decisions(own, one, True)


def test_gradients_are_those_of_each_graph():
    given = [x.requires_grad_() for x in logits()]
    d = gt.SpanningTree.from_edges(given, EDGES, NODES)
    trace = d.sample_trace((10,), generator=seeded())
    log_prob = d.trace_log_prob(trace).sum()
    grads = torch.autograd.grad(log_prob, given, create_graph=True)
    again = torch.autograd.grad(sum(g.square().sum() for g in grads), given, allow_unused=True)
    for g, (x, edges, nodes) in enumerate(zip(given, EDGES, NODES, strict=True)):
        one = gt.SpanningTree.from_edges(x, edges, nodes)
        own = gt.Trace(one._layout, trace.choices[:, g, : nodes - 1].contiguous(), trace.links[:, g, :0])
        (expected,) = torch.autograd.grad(one.trace_log_prob(own).sum(), x, create_graph=True, materialize_grads=True)
        torch.testing.assert_close(grads[g], expected)
        (twice,) = torch.autograd.grad(expected.square().sum(), x, materialize_grads=True)
        torch.testing.assert_close(torch.zeros_like(x) if again[g] is None else again[g], twice)


@pytest.mark.parametrize("components", [1, 2])
def test_noise_given_the_trace(components):
    keep = [0, 1, 3] if components == 2 else [0, 1, 2, 3]  # one node is no forest of two
    d = gt.SpanningTree.from_edges(
        [logits()[g] for g in keep], [EDGES[g] for g in keep], [NODES[g] for g in keep], components
    )
    trace = d.sample_trace((500,), generator=seeded())
    assert d.trace(d.conditional(trace, generator=seeded())).equals(trace).all()
    for g in range(len(keep)):
        report = D.check_conditional(d.item((g,)), 10_000, generator=seeded())
        assert report.broken == 0
        assert report.p_value > FALSE_ALARM
        assert D.goodness_of_fit(d.item((g,)), 20_000, generator=seeded()).p_value > FALSE_ALARM


@pytest.mark.parametrize("mixed", [False, True])
def test_a_batch_vector_is_the_same_as_a_list(mixed):
    flat, edges, batch, order = together(mixed)
    d = gt.SpanningTree.from_edges(flat, edges, len(batch), batch=batch)
    listed, _ = both()
    assert d.batch_shape == listed.batch_shape
    assert torch.equal(d.flat(d.mode), listed.flat(listed.mode)[order])
    value = d.sample((3,), generator=seeded())
    assert d.flat(value).shape == (3, len(order))
    assert torch.equal(d.padded(d.flat(value)), value)
    assert torch.equal(d.flat(d.logits), flat)


def test_masks():
    flat, edges, batch, _ = together()
    mask = torch.ones(len(flat), dtype=torch.bool)
    mask[0] = False  # of the triangle
    d = gt.SpanningTree.from_edges(flat, edges, len(batch), batch=batch, mask=mask)
    assert (d.flat(d.sample((100,), generator=seeded()))[:, 0] == 0).all()
    listed = gt.SpanningTree.from_edges(logits(), EDGES, NODES, mask=list(mask.split([e.shape[1] for e in EDGES])))
    assert torch.equal(listed.racing, d.racing)
    mask[2] = False
    with pytest.raises(ValueError, match=r"item \(0,\) of the batch is not connected"):
        gt.SpanningTree.from_edges(flat, edges, len(batch), batch=batch, mask=mask)


def test_support_and_traces_of_others():
    d, _ = both()
    assert d.support.check(d.sample((30,), generator=seeded())).all()
    assert not d.support.check(torch.zeros(4, 6)).all()
    cycle = d.mode.clone()
    cycle[0, :4] = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert d.support.check(cycle).tolist() == [False, True, True, True]
    with pytest.raises(ValueError, match="holds numbers that are not keys or decisions"):
        d.trace_log_prob(d.sample_trace()[torch.tensor([3, 2, 1, 0])])
    other, _ = both(components=1)
    assert d.trace_log_prob(other.sample_trace()).shape == (4,)


def test_shapes_and_copies():
    d, _ = both()
    wide = d.expand((5, 4))
    assert wide.sample((2,)).shape == (2, 5, 4, 6)
    assert wide.item((1, 3)).sample().shape == (6,)
    assert wide.item((1,)).batch_shape == (4,)
    for same in (copy.deepcopy(d), pickle.loads(pickle.dumps(d))):
        assert torch.equal(same.sample(generator=seeded()), d.sample(generator=seeded()))
    half = gt.SpanningTree.from_edges([x.half() for x in logits()], EDGES, NODES)
    assert half.sample().dtype == torch.float16
    unchecked = gt.SpanningTree.from_edges(logits(), EDGES, NODES, validate_args=False)
    assert torch.equal(unchecked.sample(generator=seeded()), d.sample(generator=seeded()))


def test_the_smallest():
    nothing = gt.SpanningTree.from_edges(
        torch.zeros(0), torch.zeros(2, 0, dtype=torch.long), 0, batch=torch.zeros(0).long()
    )
    assert nothing.sample((2,)).shape == (2, 0, 0)
    assert nothing.trace_log_prob(nothing.sample_trace()).shape == (0,)
    nodes = gt.SpanningTree.from_edges([torch.zeros(0)] * 2, [EDGES[2]] * 2, [1, 1])
    assert nodes.sample().shape == (2, 0)
    assert (nodes.trace_log_prob(nodes.sample_trace((3,))) == 0).all()


def test_losses_of_graphs_and_of_batches():
    """One loss for each graph, or one for all of them."""
    d, _ = both()

    def f(x):
        return (x * torch.arange(1.0, 7.0)).sum(-1).square()

    assert D.check_unbiased(E.TraceREINFORCE(samples=2), d, f, 3000, generator=seeded()).p_value > FALSE_ALARM
    assert E.TraceREINFORCE()(Independent(d, 1), lambda x: f(x).sum(-1)).shape == ()
    with pytest.raises(NotImplementedError, match="BatchedSpanningTree has no relaxation"):
        E.StochasticSoftmax()(d, f)


def test_divergences():
    p, alone = both()
    q = p.with_log_rates(p.log_rates * 0.5)
    expected = [V.exact_kl(one, one.with_log_rates(one.log_rates * 0.5)) for one in alone]
    torch.testing.assert_close(V.exact_kl(p, q), torch.stack(expected))
    other = gt.SpanningTree.from_edges(logits(), [EDGES[0].flip(1), *EDGES[1:]], NODES)
    with pytest.raises(ValueError, match="are not over the same graphs"):
        V.noise_kl(p, other)


def test_steps_name_the_nodes_of_their_graph():
    d, alone = both()
    trace = d.trace(d.log_rates)
    for g, one in enumerate(alone):
        told = [step.label for step in steps(d.item((g,)), trace[g])]
        assert told == [step.label for step in steps(one, one.trace(one.log_rates))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda f, e, b: (f[1:], e, 11, 1, b), r"logits of shape \(13,\) do not fit 14 edges"),
        (lambda f, e, b: (f, e, 11, 1, b[1:]), r"the graph of each of the 11 nodes, integers; got torch.int64 \(10,\)"),
        (lambda f, e, b: (f, e, 11, 1, b.float()), "integers; got torch.float32"),
        (lambda f, e, b: (f, e, 11, 1, b - 1), "batch has the graph -1 for node 0"),
        (lambda f, e, b: (f, e, 11, 1, b.flip(0)), r"edge \d+ = \[\d+, \d+\] joins graphs \d and \d"),
        (lambda f, e, b: (f, e, 10, 1, b[:10]), r"edge \d+ = \[\d+, 10\] names a node outside 0..9"),
        (lambda f, e, b: (f, EDGES, 11, 1, None), "4 graphs need a list with the number of nodes of each, got 11"),
        (lambda f, e, b: (f, EDGES, [4, 2, 1, 3], 1, None), r"edge \d = \[2, 3\] names a node outside 0..2"),
        (lambda f, e, b: (f, e, 11, 3, b), r"item \(1,\) of the batch cannot be split into 3 trees"),
    ],
)
def test_errors(arguments, message):
    flat, edges, batch, _ = together()
    *others, batch = arguments(flat, edges, batch)
    with pytest.raises(ValueError, match=message):
        gt.SpanningTree.from_edges(*others, batch=batch)


def test_lengths_are_refused():
    flat, edges, batch, _ = together()
    with pytest.raises(ValueError, match="graphs of a batch have their own numbers of nodes"):
        gt.SpanningTree.from_edges(flat, edges, 11, batch=batch, lengths=torch.tensor([4, 2, 1, 4]))


def test_lists_of_no_graphs():
    d = gt.SpanningTree.from_edges([], [], [])
    assert d.batch_shape == (0,)
    assert d.trace_log_prob(d.sample_trace((3,))).shape == (3, 0)


def test_lists_of_another_shape_are_refused():
    """Labels are by node: as edges, they would be numbers without a meaning."""
    d = gt.SpanningTree.from_edges(
        torch.zeros(4), torch.tensor([[0, 1, 2, 4], [1, 2, 3, 5]]), 6, batch=torch.tensor([0, 0, 0, 0, 1, 1])
    )
    with pytest.raises(ValueError, match=r"flat: expected numbers by graph and edge, shape \(\.\.\., 2, 3\), got"):
        d.flat(d.sample_trace().labels())
    with pytest.raises(ValueError, match=r"padded: expected numbers for 4 edges .* got shape \(3,\)"):
        d.padded(torch.zeros(3))


def test_lists_that_fit_in_all_but_not_one_by_one():
    """Five logits for five edges, two of them of the wrong graph."""
    edges, nodes = [torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([[0, 1], [1, 0]])], [3, 2]
    with pytest.raises(ValueError, match=r"logits of shape \(2,\) do not fit graph 0 of 3 edges"):
        gt.SpanningTree.from_edges([torch.zeros(2), torch.zeros(3)], edges, nodes)
    masks = [torch.ones(3, dtype=torch.bool), torch.ones(1, dtype=torch.bool)]
    with pytest.raises(ValueError, match=r"mask of shape \(1,\) do not fit graph 1 of 2 edges"):
        gt.BatchedSpanningTree([torch.zeros(3), torch.zeros(2)], edges, nodes, mask=masks)
    with pytest.raises(ValueError, match="3 logits in a list do not fit 2 graphs"):
        gt.SpanningTree.from_edges([torch.zeros(3), torch.zeros(2), torch.zeros(0)], edges, nodes)


def test_a_batch_vector_goes_with_one_tensor_of_edges():
    edges, batch = torch.tensor([[0, 1], [1, 0]]), torch.zeros(2, dtype=torch.long)
    with pytest.raises(TypeError, match="batch= goes with edges in one tensor"):
        gt.BatchedSpanningTree([torch.zeros(2)], [edges], [2], batch=batch)
    with pytest.raises(TypeError, match="need batch=, the graph of each node"):
        gt.BatchedSpanningTree(torch.zeros(2), edges, 2)


def test_its_edges_are_where_the_trace_is():
    d, _ = both()
    assert d.sample_trace().to("meta").layout.geometry.edges.device.type == "meta"


def test_a_graph_alone_is_of_another_kind():
    d, alone = both()
    for p, q in ((d, alone[0]), (alone[0], d)):
        with pytest.raises(ValueError, match="not of one kind and size"):
            torch.distributions.kl_divergence(p, q)


def test_edges_of_a_trace_of_no_graph():
    """A trace may come from anywhere."""
    d, _ = both()
    trace = d.sample_trace()
    trace.links[:] = torch.tensor([[-1], [7], [10**8], [0]], dtype=torch.int32)
    assert trace.edges().shape == (4, 2, 3)


@pytest.mark.parametrize("form", ["list", "batch"])
def test_without_validation_edges_are_not_read(form, monkeypatch):
    """But on the CPU, where reading costs nothing, errors stay."""
    flat, edges, batch, _ = together()
    arguments = (logits(), EDGES, NODES) if form == "list" else (flat, edges, 11)
    more = {} if form == "list" else {"batch": batch}
    expected = gt.SpanningTree.from_edges(*arguments, **more)
    bad = (logits(), [EDGES[0] + 3, *EDGES[1:]], NODES) if form == "list" else (flat, edges + 3, 11)
    with pytest.raises(ValueError, match="names a node outside"):
        gt.SpanningTree.from_edges(*bad, **more, validate_args=False)
    monkeypatch.setattr(gt.BatchedSpanningTree, "_may_sync", False)
    read = []
    monkeypatch.setattr(torch.Tensor, "nonzero", lambda x: read.append(x))
    d = gt.SpanningTree.from_edges(*arguments, **more, validate_args=False)
    assert torch.equal(d.log_rates, expected.log_rates)
    assert torch.equal(d._layout.geometry.edges, expected._layout.geometry.edges)
    ends = gt.SpanningTree.from_edges(*bad, **more, validate_args=False)._layout.geometry.edges[:, :, :-1]
    assert 0 <= ends.min() <= ends.max() < 4
    assert read == []


def test_the_support_broadcasts_values():
    edges, value = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([1.0, 1.0, 0.0])
    sparse = gt.SpanningTree.from_edges(torch.zeros(2, 3), edges, 3)
    graphs = gt.SpanningTree.from_edges([torch.zeros(3)] * 2, [edges] * 2, [3, 3])
    for d in (sparse, graphs):
        assert d.support.check(value).tolist() == [True, True]
        assert d.support.check(torch.ones(3)).tolist() == [False, False]
        assert d.support.check(torch.stack([value, torch.ones(3)])[:, None]).tolist() == [[True, True], [False, False]]
