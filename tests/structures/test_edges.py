"""Edge lists, cluster labels and graphs of networkx against the values of the same traces."""

import networkx
import pytest
import torch
from cases import CASES, EDGES, every
from common import seeded
from torch.utils._python_dispatch import TorchDispatchMode

import gumtrace as gt
from gumtrace.structures.description import Description
from gumtrace.structures.edges import component_labels

FORESTS = [case for case in CASES if isinstance(case(), gt.SpanningTree)]


def listed(edges):
    """The edges of one item that has (2, E), as pairs; what is missing is at the end."""
    pairs = edges.T.tolist()
    there = [tuple(pair) for pair in pairs if pair != [-1, -1]]
    assert pairs == [list(pair) for pair in there] + [[-1, -1]] * (len(pairs) - len(there))
    return there


def expected_edges(case, value, symmetric):
    if case.kind == "parents":
        return {(parent, child) for child, parent in enumerate(value.tolist()) if parent >= 0}
    if value.dim() == 1:
        return [tuple(EDGES[:, key].tolist()) for key in value.nonzero().flatten()]
    if symmetric:
        value = value.triu()
    return {tuple(entry) for entry in value.nonzero().tolist()}


@every
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_edges_are_those_of_the_value(case, batch):
    dist = case(batch)
    trace = dist.sample_trace((4,), generator=seeded())
    if type(dist).edges_of.__func__ is Description.edges_of.__func__:
        with pytest.raises(NotImplementedError, match=f"{type(dist).__name__}: its keys are no edges"):
            trace.edges()
        return
    edges = trace.edges()
    assert edges.dtype == torch.long
    assert edges.shape[:-1] == (*trace.shape, 2)
    values = trace.value.flatten(0, len(batch))
    for one, value in zip(edges.flatten(0, len(batch)), values, strict=True):
        pairs, expected = listed(one), expected_edges(case, value, dist.symmetric)
        assert sorted(pairs) == sorted(expected)  # parallel edges and all


@pytest.mark.parametrize("case", FORESTS, ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_labels_are_the_components_that_networkx_finds(case, batch):
    dist = case(batch)
    trace = dist.sample_trace((4,), generator=seeded())
    labels, edges = (x.flatten(0, len(batch)) for x in (trace.labels(), trace.edges()))
    counts = dist.node_counts.expand(trace.shape).flatten().tolist()
    for row, ends, nodes in zip(labels.tolist(), edges, counts, strict=True):
        graph = networkx.Graph(listed(ends))
        graph.add_nodes_from(range(nodes))
        parts = sorted(networkx.connected_components(graph), key=min)
        assert row == [next(i for i, part in enumerate(parts) if v in part) for v in range(nodes)] + [-1] * (
            len(row) - nodes
        )
        assert max(row) + 1 == dist.components


@pytest.mark.parametrize("edges", ["path", "star", "comb", "random", "none"])
def test_labels_of_large_forests(edges):
    """Shapes in which few trees could join at once: paths in a bad order, stars of many leaves."""
    n, g = 1000, seeded(4)
    order = torch.randperm(n, generator=g)
    i = torch.arange(1, n)
    parent = {
        "path": i - 1,
        "star": torch.zeros_like(i),
        "comb": torch.where(i % 2 == 0, i - 2, i - 1),
        "random": (torch.rand(n - 1, generator=g) * i).long(),
        "none": i - 1,
    }[edges]
    ends = torch.stack([order[i], order[parent]])
    kept = torch.rand(n - 1, generator=g) < (0 if edges == "none" else 0.9)
    ends = torch.where(kept, ends, -1)
    graph = networkx.Graph([tuple(pair) for pair in ends.T.tolist() if pair[0] >= 0])
    graph.add_nodes_from(range(n))
    expected = [0] * n
    for label, part in enumerate(sorted(networkx.connected_components(graph), key=min)):
        for node in part:
            expected[node] = label
    assert component_labels(ends, n).tolist() == expected
    assert component_labels(ends.expand(2, 3, 2, n - 1), n)[1, 2].tolist() == expected


def test_labels_are_for_forests():
    with pytest.raises(NotImplementedError, match=r"Subset: it has no clusters; forests of SpanningTree\(components"):
        gt.Subset(torch.zeros(4), 2).sample_trace().labels()


def test_cluster_centres_in_one_call():
    """What clustering needs: labels to index with, of samples and batch at once."""
    points = torch.randn(8, 12, 3, generator=seeded())
    d = gt.SpanningTree(-torch.cdist(points, points), components=4)
    labels = d.sample_trace((5,)).labels()
    assert labels.shape == (5, 8, 12)
    sizes = torch.nn.functional.one_hot(labels, 4).sum(-2)
    assert (sizes >= 1).all()
    assert (sizes.sum(-1) == 12).all()


# networkx and PyG ---------------------------------------------------------------------------------------


def named_graph():
    graph = networkx.Graph()
    graph.add_weighted_edges_from([("a", "b", 0.5), ("b", "c", 9.0), ("c", "a", 1.0), ("c", "d", -2.0)])
    return graph


def test_networkx_in_and_out():
    graph = named_graph()
    d = gt.SpanningTree.from_networkx(graph, "weight")
    assert d.logits.tolist() == [0.5, 1.0, 9.0, -2.0]  # in the order of graph.edges
    logits = torch.randn(7, graph.number_of_edges())
    batch = gt.SpanningTree.from_networkx(graph, logits, components=2)
    for trace in (d.sample_trace(), batch.sample_trace()[3]):
        out = trace.to_networkx(list(graph))
        assert networkx.is_forest(out)
        assert set(out) == set("abcd")
        assert all(graph.has_edge(u, v) for u, v in out.edges)
        assert networkx.number_connected_components(out) == trace.layout.geometry.components


def test_multigraphs_keep_parallel_edges():
    graph = networkx.MultiGraph([(0, 1), (0, 1), (1, 2)])
    d = gt.SpanningTree.from_networkx(graph, torch.zeros(3))
    assert len(d.enumerate_traces()) == 4


def test_every_graph_goes_out():
    a = gt.Arborescence(torch.zeros(2, 4, 4), root=1, lengths=torch.tensor([4, 2])).sample_trace()
    assert networkx.is_arborescence(a[0].to_networkx())
    assert list(a[1].to_networkx().edges) == [(1, 0)]
    alone = gt.Arborescence(torch.zeros(1, 1)).sample_trace().to_networkx()
    assert list(alone) == [0]
    tree = gt.BinaryTree(torch.zeros(5), mask=torch.tensor([True, False, True, True, True])).sample_trace()
    assert networkx.is_arborescence(tree.to_networkx())
    assert set(tree.to_networkx(list("vwxyz"))) == set("vxyz")
    matching = gt.Matching(torch.tensor([[0.0, 90.0, 0.0], [50.0, 0.0, 0.0]])).sample_trace()
    assert set(matching.to_networkx().edges) == {(0, 3), (1, 2)}
    assert set(matching.to_networkx((["r", "s"], ["x", "y", "z"])).edges) == {("r", "y"), ("s", "x")}
    assert list(matching.to_networkx()) == [0, 1, 2, 3, 4]


def test_refusals():
    graph = named_graph()
    with pytest.raises(ValueError, match=r"SpanningTree: the edge \('a', 'b'\) of the graph has no attribute 'score'"):
        gt.SpanningTree.from_networkx(graph, "score")
    with pytest.raises(ValueError, match="the graph is directed"):
        gt.SpanningTree.from_networkx(graph.to_directed(), "weight")
    with pytest.raises(ValueError, match=r"to_networkx takes one trace, this is a batch of shape \(3,\)"):
        gt.SpanningTree(torch.zeros(3, 4, 4)).sample_trace().to_networkx()
    with pytest.raises(NotImplementedError, match="only trees, forests and matchings are graphs"):
        gt.Subset(torch.zeros(3), 1).sample_trace().to_networkx()


def test_an_edge_index_goes_in_and_out():
    """As PyG has it: both directions of each edge; one of them is a key."""
    both = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    once = both[:, both[0] < both[1]]
    trace = gt.SpanningTree.from_edges(torch.zeros(4, 3), once, 3).sample_trace()
    out = trace.edges()  # (4, 2, 2)
    assert out.shape == (4, 2, 2)
    allowed = {tuple(pair) for pair in once.T.tolist()}
    assert all(tuple(pair) in allowed for one in out for pair in one.T.tolist())


def test_several_graphs_in_a_batch():
    """Nodes are numbered within each graph; smaller graphs end in -1."""
    triangle, path = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    d = gt.SpanningTree.from_edges([torch.zeros(3), torch.zeros(4)], [triangle, path], [3, 5], components=2)
    trace = d.sample_trace((20,), generator=seeded())
    edges, labels = trace.edges(), trace.labels()
    assert edges.shape == (20, 2, 2, 3)
    assert labels.shape == (20, 2, 5)
    assert (labels[:, 0, 3:] == -1).all()
    assert (labels.amax(-1) == 1).all()
    for sample in range(20):
        for graph, (of_graph, nodes) in enumerate(((triangle, 3), (path, 5))):
            one = trace[sample, graph]
            allowed = {tuple(pair) for pair in of_graph.T.tolist()}
            assert set(listed(edges[sample, graph])) <= allowed
            assert len(one.to_networkx()) == nodes
            value = [tuple(of_graph[:, key].tolist()) for key in one.value[: of_graph.shape[1]].nonzero().flatten()]
            assert sorted(value) == sorted(listed(one.edges()))


def test_a_trace_takes_its_graph_with_it():
    """Else a trace on the CPU would hold memory of the GPU, and copy the edges whenever it is used."""
    d = gt.SpanningTree.from_edges(torch.zeros(EDGES.shape[1]), EDGES, int(EDGES.max()) + 1)
    trace = d.sample_trace((3,))
    moved = trace.to("meta").layout.geometry
    assert moved.edges.device.type == "meta"
    assert moved[:-1] == trace.layout.geometry[:-1]
    assert trace.layout.geometry.edges.device.type == "cpu"
    same = trace.to("cpu")
    assert same.layout == trace.layout
    assert torch.equal(d.trace_log_prob(same), d.trace_log_prob(trace))


def test_constraints_that_kernels_of_the_cpu_read_stay_there():
    linked = gt.SpanningTree(torch.zeros(3, 3)).constrained(cannot_link=torch.zeros(3, 3, dtype=torch.bool))
    assert linked.sample_trace().to("meta").layout.geometry.constraints.device.type == "cpu"


class Reads(TorchDispatchMode):
    """How often a number, or a part of a tensor, is taken."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.select.int}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("several", [False, True])
def test_words_read_the_edges_once(several):
    ring = torch.stack([torch.arange(50), torch.arange(1, 51) % 50])
    graph = ([torch.zeros(50)], [ring], [50]) if several else (torch.zeros(50), ring, 50)
    d = gt.SpanningTree.from_edges(*graph)
    trace = d.sample_trace()
    words = type(d).words(trace[0] if several else trace)
    with Reads() as reads:
        edges = words.edges()
        assert words.nodes == 50
    assert edges == {key: tuple(ends) for key, ends in enumerate(ring.T.tolist())}
    assert reads.count < 10
