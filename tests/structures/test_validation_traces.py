"""Traces of other distributions and values that cannot be are refused."""

import pytest
import reference_algorithms as reference
import torch
from cases import APART, EDGES
from refusals import CONSTRUCTORS, refuses, sparse

import gumtrace as gt

# Traces of others -------------------------------------------------------------------------------------

NINE = torch.tensor([[0, 1, 2] * 3, [1, 2, 0] * 3])
PAIRS = {  # a distribution, and one whose traces mean something else
    "structure": (gt.Subset(torch.zeros(4), 4), gt.Permutation(torch.zeros(4))),
    "matrix": (gt.SpanningTree(torch.zeros(4, 4)), gt.Arborescence(torch.zeros(4, 4))),
    "size": (gt.Permutation(torch.zeros(4)), gt.Permutation(torch.zeros(5))),
    "k": (gt.Subset(torch.zeros(4), 2), gt.Subset(torch.zeros(4), 3)),
    "k of an item": (gt.Subset(torch.zeros(2, 4), torch.tensor([1, 2])), gt.Subset(torch.zeros(2, 4), 2)),
    "shape": (gt.Matching(torch.zeros(2, 6)), gt.Matching(torch.zeros(3, 4))),
    "components": (gt.SpanningTree(torch.zeros(4, 4)), gt.SpanningTree(torch.zeros(4, 4), components=2)),
    "root": (gt.Arborescence(torch.zeros(4, 4)), gt.Arborescence(torch.zeros(4, 4), root=1)),
    "edges": (sparse(torch.zeros(8)), gt.SpanningTree.from_edges(torch.zeros(8), EDGES.flip(1), 5)),
    "sparse and dense": (gt.SpanningTree(torch.zeros(3, 3)), gt.SpanningTree.from_edges(torch.zeros(9), NINE, 3)),
    "custom size": (
        gt.Custom(torch.zeros(4), reference.Subset(4, 2)),
        gt.Custom(torch.zeros(5), reference.Subset(5, 2)),
    ),
    "custom and built-in": (gt.Custom(torch.zeros(4), reference.Subset(4, 2)), gt.Subset(torch.zeros(4), 2)),
    "batch": (gt.BinaryTree(torch.zeros(2, 4)), gt.BinaryTree(torch.zeros(3, 4))),
    "no batch": (gt.BinaryTree(torch.zeros(2, 4)), gt.BinaryTree(torch.zeros(4))),
    "transposed batch": (gt.BinaryTree(torch.zeros(2, 3, 4)), gt.BinaryTree(torch.zeros(3, 2, 4))),
    "custom batch": (
        gt.Custom(torch.zeros(2, 4), reference.Subset(4, 2), event_dim=1),
        gt.Custom(torch.zeros(3, 4), reference.Subset(4, 2), event_dim=1),
    ),
}


@pytest.mark.parametrize("method", ["trace_log_prob", "conditional", "decision_log_totals"])
@pytest.mark.parametrize("what", PAIRS)
def test_traces_of_others(what, method):
    ours, theirs = PAIRS[what]
    refuses(lambda: getattr(ours, method)(theirs.sample_trace()), type(ours).__name__, "trace")


@pytest.mark.parametrize("validate_args", [True, False])
@pytest.mark.parametrize("method", ["trace_log_prob", "conditional", "decision_log_totals", "decision_log_prob"])
@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_trace_on_another_device(name, method, validate_args):
    """A launched kernel is told addresses only: it would read from another device's."""
    dims, make = CONSTRUCTORS[name]
    d = make(torch.zeros(2, *[3] * dims), validate_args=validate_args)
    refuses(lambda: getattr(d, method)(d.sample_trace().to("meta")), name, "on meta", "on cpu", "trace.to")


@pytest.mark.parametrize("method", ["trace_log_prob", "conditional", "decision_log_totals"])
@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_value_is_no_trace(name, method):
    dims, make = CONSTRUCTORS[name]
    d = make(torch.zeros(2, *[3] * dims))
    refuses(lambda: getattr(d, method)(d.sample()), name, "trace", error=(TypeError, ValueError))


# Values -----------------------------------------------------------------------------------------------

VALUES = {
    "subset": (gt.Subset(torch.zeros(2, 3), 2), [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]),
    "half a subset": (gt.Subset(torch.zeros(3), 2), [1.0, 0.5, 0.5]),
    "permutation": (gt.Permutation(torch.zeros(2, 3)), [[0, 1, 2], [0, 0, 1]]),
    "permutation out of range": (gt.Permutation(torch.zeros(3)), [1, 2, 3]),
    "permutation matrix": (gt.Permutation(torch.zeros(2), matrix=True), [[1.0, 0.0], [1.0, 0.0]]),
    "matching": (gt.Matching(torch.zeros(2, 2)), [[1.0, 0.0], [1.0, 0.0]]),
    "matching that could go on": (gt.Matching(torch.zeros(2, 2)), [[1.0, 0.0], [0.0, 0.0]]),
    "tree not symmetric": (gt.SpanningTree(torch.zeros(2, 2)), [[0.0, 1.0], [0.0, 0.0]]),
    "no tree": (gt.SpanningTree(torch.zeros(2, 2)), [[0.0, 0.0], [0.0, 0.0]]),
    "cycle": (gt.SpanningTree(torch.zeros(4, 4)), [[0.0, 1, 1, 0], [1.0, 0, 1, 0], [1.0, 1, 0, 0], [0.0, 0, 0, 0]]),
    "binary tree of two roots": (gt.BinaryTree(torch.zeros(3)), [-1, -1, 1]),
    "binary tree out of order": (gt.BinaryTree(torch.zeros(4)), [-1, 3, 0, 2]),
    "binary tree with a cycle": (gt.BinaryTree(torch.zeros(3)), [1, 0, -1]),
    "binary tree out of range": (gt.BinaryTree(torch.zeros(3)), [3, -1, 1]),
    "another event": (gt.Subset(torch.zeros(3), 2), [1.0, 1.0, 0.0, 0.0]),
    "another batch": (gt.Subset(torch.zeros(2, 3), 2), [[1.0, 1.0, 0.0]] * 3),
}


@pytest.mark.parametrize("what", VALUES)
def test_values_that_cannot_be(what):
    d, value = VALUES[what]
    refuses(lambda: d.log_prob(torch.tensor(value)), "" if "another" in what else type(d).__name__)


@pytest.mark.parametrize(
    "d",
    [gt.Arborescence(torch.zeros(3, 3)), sparse(torch.zeros(8)), gt.Custom(torch.zeros(6), APART)],
    ids=repr,
)
def test_log_prob_that_is_out_of_reach(d):
    refuses(lambda: d.log_prob(d.sample()), type(d).__name__, "trace_log_prob", error=NotImplementedError)


def test_a_copy_of_a_trace_that_was_written_into():
    d = gt.Subset(torch.zeros(4), 2)
    trace = d.sample_trace()
    assert trace.clone().made_by(d._owner)
    trace.choices.fill_(99)
    refuses(lambda: d.trace_log_prob(trace.clone()), "holds numbers that are not keys or decisions")


@pytest.mark.parametrize("parents", [[10**7] * 3, [1, 2, 0], [0, -1, 1], [-3, 0, 1]])
def test_parents_that_are_no_tree(parents):
    d = gt.BinaryTree(torch.zeros(2, 3))
    trace = d.sample_trace((5,))
    trace.links[2, 1] = torch.tensor(parents)
    refuses(lambda: d.trace_log_prob(trace), "holds numbers that are not keys or decisions")
    torch.testing.assert_close(
        gt.BinaryTree(torch.ones(2, 3)).trace_log_prob(again := d.sample_trace((5,))), d.trace_log_prob(again)
    )


def test_a_trace_of_another_k():
    trace = gt.Subset(torch.zeros(2, 4), torch.tensor([2, 3])).sample_trace()
    unread = gt.Subset(torch.zeros(2, 4), torch.tensor([2, 3]), validate_args=False)
    unread.trace_log_prob(trace)
    refuses(
        lambda: gt.Subset(torch.zeros(2, 4), 2).trace_log_prob(trace), "or another k \\(of tensors k, give both the"
    )


@pytest.mark.parametrize("ask", ["log_prob", "trace", "noise_log_prob"])
def test_lists_are_no_tensors(ask):
    with pytest.raises(TypeError, match=r"Subset: (a value|noise) must be a tensor, got list"):
        getattr(gt.Subset(torch.zeros(2), 1), ask)([1.0, 0.0])
