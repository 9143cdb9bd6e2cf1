"""Forests that keep must-links and cannot-links: against the literal recursion, by enumeration, and for any links.
False alarms: one in a million for each statistical test; seeds are fixed."""

import copy
import pickle

import pytest
import torch
from common import FALSE_ALARM, decisions, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_algorithms import Kruskal

import gumtrace as gt
from gumtrace import diagnostics as D
from gumtrace.steps import steps

pytestmark = pytest.mark.usefixtures("one_thread")


def links(n, *pairs):
    """(n, n) bool, of which either triangle may be read."""
    given = torch.zeros(n, n, dtype=torch.bool)
    for u, v in pairs:
        given[u, v] = True
    return given


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


class Apart(Kruskal):
    """Kruskal's algorithm on groups that are joined in the beginning, where some parts may not be joined."""

    def __init__(self, n, group, apart, components):
        edges = {u * n + v: (u, v) for u in range(n) for v in range(u + 1, n) if group[u] != group[v]}
        super().__init__(edges, n, components)
        self.group, self.apart = tuple(group), apart

    def start(self):
        return self.left(self.edges, self.group), self.group

    def stop(self, K, R):
        return not K or super().stop(K, R)

    def map(self, K, R, winners):
        K, R = super().map(K, R, winners)
        return self.left(K, R), R

    def left(self, K, R):
        apart = {(R[u], R[v]) for u, v in self.apart}
        pairs = {k: (R[u], R[v]) for k, (u, v) in self.edges.items()}
        return {k for k in K if pairs[k] not in apart and pairs[k][::-1] not in apart}


CASES = {  # nodes, components, must-links, cannot-links
    "none": (4, 2, [], []),
    "must": (5, 2, [(0, 3)], []),
    "groups": (6, 2, [(0, 3), (3, 4), (5, 1)], []),
    "cannot": (4, 2, [], [(0, 1), (2, 3)]),
    "stuck": (4, 2, [], [(0, 1), (1, 2), (2, 3)]),  # if 0 and 3 are joined three parts are left
    "both": (5, 2, [(1, 4)], [(4, 2), (0, 3)]),
    "one-tree": (4, 1, [(2, 0)], []),
    "all-apart": (3, 1, [], [(0, 1), (0, 2), (1, 2)]),
}
every = pytest.mark.parametrize("case", CASES)


def make(case, seed=0):
    n, components, must, cannot = CASES[case]
    tree = gt.SpanningTree(randn(n, n, seed=seed), components)
    return tree.constrained(links(n, *must), links(n, *cannot).mT)


def two_phases(dist):
    """The edges inside of groups, and then those between them, each as the literal recursion: there, no key can wait
    until others have raced."""
    n = dist.key_shape[0]
    group = (dist.must_link | torch.eye(n, dtype=torch.bool)).int().argmax(-1).tolist()
    inside = {u * n + v: (u, v) for u in range(n) for v in range(u + 1, n) if group[u] == group[v]}
    first = gt.Custom(dist.logits, Kruskal(inside, n, len(set(group))))
    apart = dist.cannot_link.nonzero().tolist()
    return first, gt.Custom(dist.logits, Apart(n, group, apart, dist.components))


@every
def test_decisions_are_those_of_the_literal_recursion(case):
    dist = make(case)
    phases = two_phases(dist)
    for noise in dist.perturb((40,), generator=seeded()):
        literal = [decisions(custom.trace(noise), custom, True) for custom in phases]
        assert decisions(dist.trace(noise), dist, True) == literal[0] + literal[1]


@every
def test_probabilities_sum_to_one(case):
    dist = make(case)
    traces = dist.enumerate_traces()
    assert dist.trace_log_prob(traces).exp().sum().item() == pytest.approx(1)
    first, second = (len(custom.enumerate_traces()) for custom in two_phases(dist))
    assert len(traces) == first * second
    assert dist.support.check(traces.value).all()


@every
@pytest.mark.slow
def test_noise_given_the_trace(case):
    dist = make(case)
    trace = dist.sample_trace((500,), generator=seeded())
    assert dist.trace(dist.conditional(trace, generator=seeded())).equals(trace).all()
    assert D.goodness_of_fit(dist, 20_000, generator=seeded()).p_value > FALSE_ALARM
    report = D.check_conditional(dist, 10_000, generator=seeded())
    assert report.broken == 0
    assert report.p_value > FALSE_ALARM


@every
def test_log_probabilities_have_two_derivatives(case):
    dist = make(case)
    trace = dist.sample_trace((3,), generator=seeded())
    x = dist.logits.clone().requires_grad_()
    log_prob = lambda x: dist.with_log_rates(x).trace_log_prob(trace)  # noqa: E731
    assert torch.autograd.gradcheck(log_prob, x)
    assert torch.autograd.gradgradcheck(log_prob, x)


@pytest.mark.parametrize("case", ["must", "groups", "one-tree"])
def test_must_links_alone_have_the_largest_sum(case):
    """Among the forests of which each group is connected by its own edges."""
    dist = make(case)
    every_forest = dist.unconstrained.enumerate_support()
    possible = every_forest[dist.support.check(every_forest)]
    noise = dist.perturb((100,), generator=seeded())
    value = lambda x: torch.where(dist.racing, noise * x, 0.0).sum((-1, -2))  # noqa: E731
    best = torch.stack([value(x) for x in possible]).max(0).values
    torch.testing.assert_close(value(dist.trace(noise).value), best)


def test_cannot_links_are_kept_greedily():
    """Here the best edge is taken though the two that it rules out weigh more: the docs say so."""
    logits = torch.zeros(4, 4)
    logits[0, 3], logits[0, 2], logits[1, 3] = 9.0, 8.0, 8.0
    free = gt.SpanningTree(logits, 2)
    dist = free.constrained(cannot_link=links(4, (0, 1), (1, 2), (2, 3)))
    assert dist.mode.triu().nonzero().tolist() == [[0, 3]]
    better = torch.zeros(4, 4)
    better[0, 2] = better[2, 0] = better[1, 3] = better[3, 1] = 1.0
    assert dist.support.check(better)


def test_constraints_come_before_the_number_of_trees():
    dist = make("all-apart")
    trace = dist.sample_trace()
    assert trace.value.sum() == 0
    assert trace.labels().tolist() == [0, 1, 2]
    assert dist.trace_log_prob(trace) == 0
    stuck = make("stuck").sample_trace((500,), generator=seeded()).labels()
    assert stuck.amax(-1).unique().tolist() == [1, 2]


sizes = st.integers(2, 9)


@st.composite
def clusterings(draw):
    """Nodes with clusters, links that agree with them, and edges of few different weights."""
    n, seed = draw(sizes), draw(st.integers(0, 2**31))
    g = seeded(seed)
    labels = torch.randint(draw(st.integers(1, 4)), (n,), generator=g)
    known = torch.rand(n, n, generator=g) < draw(st.sampled_from([0.05, 0.2, 0.6, 1.0]))
    same = labels[:, None] == labels
    must, cannot = known & same, known & ~same
    components = draw(st.integers(1, len(labels.unique())))
    return torch.randint(4, (n, n), generator=g).float(), components, must, cannot


@settings(max_examples=150, deadline=None)
@given(clusterings())
@pytest.mark.slow
def test_links_are_always_kept(drawn):
    logits, components, must, cannot = drawn
    dist = gt.SpanningTree(logits, components).constrained(must, cannot)
    trace = dist.sample_trace((20,), generator=seeded())
    labels = trace.labels()
    together = labels[:, :, None] == labels[:, None, :]
    assert together[:, must].all()
    assert not together[:, cannot].any()
    assert (labels.amax(-1) + 1 >= components).all()
    assert dist.support.check(trace.value).all()
    assert dist.trace(dist.conditional(trace, generator=seeded())).equals(trace).all()
    assert dist.trace_log_prob(trace).isfinite().all()


@settings(max_examples=50, deadline=None)
@given(clusterings(), clusterings(), st.integers(0, 3))
def test_items_of_a_ragged_batch_run_as_they_do_alone(a, b, more):
    """Whatever is in the padding."""
    n = max(len(a[0]), len(b[0])) + more
    components = min(a[1], b[1])
    g = seeded(more)
    logits, must, cannot = torch.full((2, n, n), torch.nan), *(torch.rand(2, 2, n, n, generator=g) < 0.5)
    for item, (x, _, *known) in enumerate((a, b)):
        size = len(x)
        for whole, part in zip((logits, must, cannot), (x, *known), strict=True):
            whole[item, :size, :size] = part
    lengths = torch.tensor([len(a[0]), len(b[0])])
    batch = gt.ConstrainedForest(logits, components, must_link=must, cannot_link=cannot, lengths=lengths)
    noise = batch.perturb((5,), generator=g)
    traces = batch.trace(noise)
    log_prob = batch.trace_log_prob(traces)
    for item, (x, _, *known) in enumerate((a, b)):
        size = len(x)
        alone = gt.ConstrainedForest(x, components, must_link=known[0], cannot_link=known[1])
        own = alone.trace(noise[:, item, :size, :size])
        assert torch.equal(own.value, traces.value[:, item, :size, :size])
        assert torch.equal(own.labels(), traces.labels()[:, item, :size])
        assert (traces.labels()[:, item, size:] == -1).all()
        torch.testing.assert_close(alone.trace_log_prob(own), log_prob[:, item])


def test_masked_edges():
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[0, 3] = False
    tree = gt.SpanningTree(randn(4, 4), 2, mask=mask)
    dist = tree.constrained(links(4, (0, 3), (3, 1)))  # 0 and 3 are linked by way of 1
    value = dist.sample((50,), generator=seeded())
    assert (value[:, 0, 3] == 0).all()
    assert (value[:, 0, 1] == 1).all()
    assert (value[:, 1, 3] == 1).all()


def test_links_broadcast_and_follow_the_batch():
    must, cannot = links(4, (0, 1)), links(4, (1, 2))
    tree = gt.SpanningTree(randn(3, 4, 4), 2)
    dist = tree.constrained(must, cannot)
    each = tree.constrained(must.expand(3, 4, 4), cannot.expand(3, 4, 4))
    noise = dist.perturb((10,), generator=seeded())
    assert torch.equal(dist.trace(noise).value, each.trace(noise).value)
    assert each.must_link.shape == dist.cannot_link.shape == (3, 4, 4)
    assert dist.cannot_link[0].nonzero().tolist() == [[0, 2], [1, 2], [2, 0], [2, 1]]  # what follows is added
    larger = each.expand((2, 3))
    trace = larger.sample_trace((5,), generator=seeded())
    assert larger.trace_log_prob(trace).shape == (5, 2, 3)
    item = larger.item((1, 2))
    assert item.support.check(trace.value[:, 1, 2]).all()
    assert dist.mismatch(each) is None
    assert "links" in dist.mismatch(tree.constrained(must))


def test_gradients_for_any_objective():
    dist = make("both")
    cost = randn(5, 5, seed=3)
    objective = lambda x: (x * cost).sum((-1, -2)).tanh()  # noqa: E731
    report = D.check_unbiased(gt.estimators.TraceREINFORCE(samples=4), dist, objective, 3000, generator=seeded())
    assert report.p_value > FALSE_ALARM


def test_copies_pictures_and_words():
    dist = make("both")
    trace = dist.sample_trace(generator=seeded())
    again = pickle.loads(pickle.dumps(dist))
    assert torch.equal(again.trace_log_prob(trace), dist.trace_log_prob(trace))
    assert torch.equal(copy.deepcopy(dist).must_link, dist.must_link)
    told = list(steps(dist, trace))
    assert told[0].label == "1 - 4"
    assert told[0].race == "edges between 5 parts"
    assert told[0].probability == 1
    assert trace.edges().shape == (2, 3)


def test_links_of_a_node_with_itself_are_ignored():
    must, cannot = links(4, (0, 1)), links(4, (1, 2))
    plain = gt.ConstrainedForest(torch.zeros(4, 4), 2, must_link=must, cannot_link=cannot)
    itself = torch.eye(4, dtype=torch.bool)
    d = gt.ConstrainedForest(torch.zeros(4, 4), 2, must_link=must | itself, cannot_link=cannot | itself)
    assert torch.equal(d.must_link, plain.must_link)
    assert torch.equal(d.cannot_link, plain.cannot_link)
    with pytest.raises(ValueError, match="group of nodes 0 and 1"):
        gt.ConstrainedForest(torch.zeros(4, 4), 2, must_link=must, cannot_link=must | itself)


def test_contradictions_are_errors():
    logits = torch.zeros(2, 4, 4)
    must, cannot = torch.zeros(2, 2, 4, 4, dtype=torch.bool)
    must[1, 0, 1] = must[1, 1, 2] = cannot[1, 2, 0] = True
    with pytest.raises(ValueError, match=r"links of item \(1,\) of the batch contradict .* group of nodes 0 and 2"):
        gt.ConstrainedForest(logits, 2, must_link=must, cannot_link=cannot)
    with pytest.raises(ValueError, match="contradict"):
        gt.ConstrainedForest(logits, 2, must_link=must, cannot_link=cannot, validate_args=False)
    with pytest.raises(ValueError, match=r"item \(1,\) .* 3 trees: its must-links leave 2 parts of 4 nodes"):
        gt.ConstrainedForest(logits, 3, must_link=must)
    with pytest.raises(ValueError, match="0 parts of 0 nodes"):
        gt.ConstrainedForest(torch.zeros(0, 0))


def test_missing_edges_are_errors():
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[0, 1] = False
    with pytest.raises(ValueError, match="lacks edges: a must-linked group"):
        gt.ConstrainedForest(torch.zeros(4, 4), 2, must_link=links(4, (0, 1)), mask=mask)
    mask[0] = False
    with pytest.raises(ValueError, match="more than 1 parts without a path"):
        gt.ConstrainedForest(torch.zeros(4, 4), 1, mask=mask)
    apart = gt.ConstrainedForest(torch.zeros(4, 4), 2, cannot_link=links(4, (0, 1)), mask=mask)
    assert apart.sample().sum() == 4


def test_wrong_links_are_errors():
    tree = gt.SpanningTree(torch.zeros(2, 4, 4))
    with pytest.raises(TypeError, match=r"must_link must be a bool tensor .* got a torch.float32 tensor"):
        tree.constrained(torch.zeros(4, 4))
    with pytest.raises(TypeError, match=r"cannot_link must be a bool tensor .* got list"):
        tree.constrained(cannot_link=[[0, 1]])
    with pytest.raises(ValueError, match="must_link of shape"):
        tree.constrained(links(3))
    with pytest.raises(ValueError, match=r"links of batch \(3,\) do not fit \(2,\)"):
        tree.constrained(links(4).expand(3, 4, 4))
    with pytest.raises(NotImplementedError, match="only dense graphs"):
        gt.SpanningTree.from_edges(torch.zeros(1), torch.tensor([[0], [1]]), 2).constrained()
    with pytest.raises(NotImplementedError, match="it has its links"):
        tree.constrained().constrained()
    with pytest.raises(NotImplementedError, match="log"):
        tree.constrained().log_prob(torch.zeros(4, 4))
    with pytest.raises(NotImplementedError):
        gt.relax(tree.constrained(), torch.zeros(2, 4, 4), 1.0)
    other = tree.constrained(links(4, (0, 1)))
    with pytest.raises(ValueError, match="another structure, size or graph"):
        tree.constrained().trace_log_prob(other.sample_trace())


def test_traces_from_anywhere_do_no_harm():
    """Winners that no run gives: numbers without meaning, and nothing written outside."""
    dist = make("groups")
    keys, decisions = dist._layout.geometry.keys, dist._layout.geometry.decisions
    choices = torch.randint(-1, keys, (300, decisions), generator=seeded(), dtype=torch.int32)
    strange = gt.Trace(dist._layout, choices, torch.zeros(300, 1, dtype=torch.int32))
    assert dist.trace_log_prob(strange).shape == (300,)
    assert strange.labels().shape == (300, 6)
    with pytest.raises(ValueError, match="numbers that are not keys or decisions"):
        dist.trace_log_prob(gt.Trace(dist._layout, choices, torch.ones(300, 1, dtype=torch.int32)))


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a CUDA device, whose tensors are copied to the CPU; the rest is tested above",
)
def test_on_a_gpu_it_is_the_same():
    """Copied to the CPU and back."""
    dist, must, cannot = make("both"), links(5, (1, 4)), links(5, (4, 2), (0, 3))
    there = gt.SpanningTree(dist.logits.cuda().requires_grad_(), 2).constrained(must.cuda(), cannot.cuda())
    noise = there.perturb((50,))
    trace, own = there.trace(noise), dist.trace(noise.cpu())
    assert trace.device.type == there.must_link.device.type == "cuda"
    assert torch.equal(trace.winners.cpu(), own.winners)
    assert torch.equal(trace.labels().cpu(), own.labels())
    torch.testing.assert_close(there.trace_log_prob(trace).cpu(), dist.trace_log_prob(own), check_device=False)
    loss = gt.losses.FenchelYoung()(there.unconstrained, there)
    loss.backward()
    assert there.support.check(trace.value).all()
