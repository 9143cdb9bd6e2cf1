"""What cannot be completed is refused: at once, or without validation when it is run."""

import pytest
import torch
from refusals import BATCH, HERE, INF, ITEM, one_bad, refuses, sparse

import gumtrace as gt

ISLAND = [(0, 3), (1, 3), (2, 3)]  # without these, node 3 of four is alone
SOURCES = [(u, 3) for u in range(4)]


def without(n, keys):
    x = torch.zeros(*BATCH, n, n)
    for key in keys:
        x[(*ITEM, *key)] = -INF
    return x


STUCK = {  # each makes item ITEM of a batch, or the graph that all items share, impossible
    "graph": ("SpanningTree", lambda **o: gt.SpanningTree(without(4, ISLAND), **o)),
    "masked graph": (
        "SpanningTree",
        lambda **o: gt.SpanningTree(torch.zeros(*BATCH, 4, 4), mask=without(4, ISLAND) == 0, **o),
    ),
    "three parts for two": (
        "SpanningTree",
        lambda **o: gt.SpanningTree(without(4, [*ISLAND, (0, 2), (1, 2)]), components=2, **o),
    ),
    "sparse graph": ("SpanningTree", lambda **o: sparse(one_bad((8,), [slice(0, 5, 4)], -INF), **o)),
    "masked sparse graph": (
        "SpanningTree",
        lambda **o: sparse(torch.zeros(*BATCH, 8), mask=one_bad((8,), [slice(0, 5, 4)], -INF) == 0, **o),
    ),
    "sparse graph without enough edges": ("SpanningTree", lambda **o: sparse(torch.zeros(*BATCH, 8), nodes=6, **o)),
    "more parts than nodes": ("SpanningTree", lambda **o: gt.SpanningTree(torch.zeros(2, 2), components=3, **o)),
    "more parts than nodes of an item": (
        "SpanningTree",
        lambda **o: gt.SpanningTree(
            torch.zeros(*BATCH, 3, 3), components=2, lengths=one_bad((), [], 1, good=3).long(), **o
        ),
    ),
    "no nodes": ("SpanningTree", lambda **o: gt.SpanningTree(torch.zeros(0, 0), **o)),
    "unreachable": ("Arborescence", lambda **o: gt.Arborescence(without(4, SOURCES), **o)),
    "masked unreachable": (
        "Arborescence",
        lambda **o: gt.Arborescence(torch.zeros(*BATCH, 4, 4), mask=without(4, SOURCES) == 0, **o),
    ),
    "nobody leaves the root": (
        "Arborescence",
        lambda **o: gt.Arborescence(without(4, [(2, v) for v in range(4)]), root=2, **o),
    ),
    "unreachable pair": (
        "Arborescence",
        lambda **o: gt.Arborescence(without(4, [(0, 2), (0, 3), (1, 2), (1, 3)]), **o),
    ),
    "fewer keys than k": ("Subset", lambda **o: gt.Subset(one_bad((4,), [slice(0, 2)], -INF), 3, **o)),
    "fewer keys than k of the item": (
        "Subset",
        lambda **o: gt.Subset(torch.tensor([0.0, 0, -INF]).expand(*BATCH, 3), one_bad((), [], 3, good=2).long(), **o),
    ),
    "shorter than k": (
        "Subset",
        lambda **o: gt.Subset(torch.zeros(*BATCH, 4), 3, lengths=one_bad((), [], 2, good=4).long(), **o),
    ),
    "masked to nothing": ("Subset", lambda **o: gt.Subset(torch.zeros(3), 1, mask=torch.zeros(3) > 0, **o)),
}
SHARED = {"sparse graph without enough edges", "more parts than nodes", "no nodes", "masked to nothing"}  # by all items


@pytest.mark.parametrize("what", STUCK)
def test_what_cannot_be_completed_is_refused_at_once(what):
    name, make = STUCK[what]
    refuses(make, name, *([] if what in SHARED else [HERE]))


@pytest.mark.parametrize("what", STUCK)
def test_without_validation_it_is_refused_when_it_is_run(what):
    name, make = STUCK[what]
    d = make(validate_args=False)
    words = [name] if what in SHARED else [name, HERE]
    refuses(d.sample, *words)
    refuses(lambda: d.sample_trace((3, 2)), *words)
    refuses(lambda: d.trace(d.perturb((2,))), *words)
    refuses(lambda: d.mode, *words)


def test_matchings_may_be_partial():
    d = gt.Matching(torch.zeros(2, 2), mask=torch.tensor([[True, False], [True, False]]))
    assert (d.sample((100,)).sum((-1, -2)) == 1).all()
    assert (gt.Matching(torch.full((2, 2), -INF)).sample() == 0).all()
    assert gt.Permutation(torch.full((3,), -INF)).sample().tolist() == [0, 1, 2]
    assert gt.BinaryTree(torch.full((3,), -INF)).sample().tolist() == [-2, -2, -2]
