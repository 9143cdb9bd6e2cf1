"""Steps and racing keys: what is listed of a trace is what the literal algorithm does."""

import math

import pytest
import torch
from races import Race

import gumtrace as gt
from gumtrace.recursions import CentreClustering, MaximalIndependentSet
from gumtrace.steps import steps
from gumtrace.structures.recursion import execute


def _logits(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def _ring(n):
    return torch.eye(n).roll(1, 0)


EDGES = torch.tensor(
    [[0, 1, 2, 3, 4, 0, 1, 2, 2], [1, 2, 3, 4, 0, 3, 4, 2, 1]]
)  # a loop and a parallel edge among them
HOLES = torch.tensor([True, True, False, True, True, False, True])
BUILT_IN = {
    "subset": gt.Subset(_logits(7), 3),
    "subset, mask": gt.Subset(_logits(7), 3, mask=HOLES),
    "subset of nothing": gt.Subset(_logits(4), 0),
    "permutation": gt.Permutation(_logits(6)),
    "permutation, mask": gt.Permutation(_logits(7), mask=HOLES),
    "matching": gt.Matching(_logits(4, 6)),
    "matching, lengths": gt.Matching(_logits(5, 5), lengths=torch.tensor(3)),
    "tree": gt.SpanningTree(_logits(7, 7)),
    "tree, lengths": gt.SpanningTree(_logits(7, 7), lengths=torch.tensor(4)),
    "forest": gt.SpanningTree(_logits(7, 7), components=3),
    "sparse tree": gt.SpanningTree.from_edges(_logits(9), EDGES, 5),
    "arborescence": gt.Arborescence(_logits(7, 7)),
    "arborescence, root": gt.Arborescence(_logits(6, 6), root=2),
    "arborescence, lengths": gt.Arborescence(_logits(7, 7), root=1, lengths=torch.tensor(5)),
    "binary tree": gt.BinaryTree(_logits(7)),
    "binary tree, mask": gt.BinaryTree(_logits(7), mask=HOLES),
}
CUSTOM = {
    "independent set": gt.Custom(_logits(8), MaximalIndependentSet(_ring(8))),
    "clustering": gt.Custom(_logits(9), CentreClustering(_ring(9))),
}
EVERY = BUILT_IN | CUSTOM


def _listed(dist):
    traces = dist.sample_trace((25,), generator=torch.Generator().manual_seed(1))
    return [(traces[i], steps(dist, traces[i])) for i in range(len(traces))]


@pytest.mark.parametrize("name", EVERY)
def test_probabilities_are_those_of_the_trace(name):
    dist = EVERY[name]
    for trace, listed in _listed(dist):
        assert sum(step.log_prob for step in listed) == pytest.approx(dist.trace_log_prob(trace).item())
        assert (listed[-1].running if listed else 0.0) == pytest.approx(dist.trace_log_prob(trace).item())
        assert sorted(step.winner for step in listed) == sorted(w for w in trace.winners.tolist() if w >= 0)


@pytest.mark.parametrize("name", EVERY)
def test_a_probability_is_the_winners_share_among_the_members(name):
    dist = EVERY[name]
    rates = dist.logits.flatten().exp()
    for _, listed in _listed(dist):
        for step in listed:
            assert step.probability == pytest.approx((rates[step.winner] / rates[list(step.racing)].sum()).item())


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_literal_run_meets_the_same_races(name):
    dist = BUILT_IN[name]
    for trace, listed in _listed(dist):
        races = {frozenset(step.racing): step.winner for step in listed}
        met = []

        def choose(keys, races=races, met=met):
            met.append(frozenset(keys))
            return races[met[-1]]  # a KeyError is a race that was not told

        winners, links = dist._run_with(choose)
        assert sorted(map(sorted, met)) == sorted(sorted(step.racing) for step in listed)
        if name.startswith("arborescence"):
            assert winners == trace.choices.tolist()
            assert links == trace.links.tolist()
        elif name.startswith("binary"):
            assert links == trace.links.tolist()
        else:
            assert met == [frozenset(step.racing) for step in listed]


@pytest.mark.parametrize("name", CUSTOM)
def test_races_of_a_recursion_are_the_parts_of_its_splits(name):
    dist = CUSTOM[name]
    for trace, listed in _listed(dist):
        replay = iter(w for w in trace.winners.tolist() if w >= 0)
        run = execute(dist.algorithm, set(range(dist.logits.numel())), lambda part, replay=replay: next(replay))
        parts = [part for K, R, _ in run.frames for part in dist.algorithm.split(K, R)]
        assert [set(step.racing) for step in listed] == [set(part) for part in parts]


def test_order():
    for trace, listed in _listed(BUILT_IN["binary tree"]):
        at = {step.winner: i for i, step in enumerate(listed)}
        assert all(at[parent] < at[i] for i, parent in enumerate(trace.value.tolist()) if parent >= 0)
        assert len(listed[0].racing) == 7
    for trace, listed in _listed(BUILT_IN["arborescence"]):
        at = {step.decision: i for i, step in enumerate(listed)}
        assert all(at[inner] < at[outer] for inner, outer in enumerate(trace.links.tolist()) if outer >= 0)


def test_words():
    def labels(dist, names=None):
        return [(step.race, step.label) for step in steps(dist, dist.trace(dist.logits), names)]

    assert labels(gt.Subset(torch.tensor([0.0, 2.0, 1.0]), 2)) == [("0 1 2", "1"), ("0 2", "2")]
    assert labels(gt.BinaryTree(torch.tensor([0.0, 1.0])), ["a", "b"]) == [("a b", "b"), ("a", "a")]
    weights = torch.tensor([[0.0, 1.0], [5.0, 0.0]])
    assert labels(gt.Matching(weights)) == [
        ("2 rows, 2 columns", "row 1, column 0"),
        ("1 row, 1 column", "row 0, column 1"),
    ]
    assert labels(gt.Matching(weights), ("xy", "uv")) == [("2 rows, 2 columns", "y, u"), ("1 row, 1 column", "x, v")]
    cycle = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 9.0], [0.0, 9.0, 0.0]])
    assert labels(gt.Arborescence(cycle)) == [
        ("edges into 1", "2 -> 1"),
        ("edges into 2", "1 -> 2"),
        ("edges into {1 2}", "0 -> 1"),
    ]
    sparse = gt.SpanningTree.from_edges(torch.tensor([0.0, 1.0]), torch.tensor([[0, 2], [1, 1]]), 3)
    assert labels(sparse) == [("edges between 3 parts", "2 - 1"), ("edges between 2 parts", "0 - 1")]

    best = Race(map=lambda K, R, winners: ([], None))
    dist = gt.Custom(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), best)
    assert labels(dist) == [("(0, 0), (0, 1), (1, 0), (1, 1)", "(1, 0)")]


def test_low_precision_logits_and_batches():
    dist = gt.Permutation(torch.tensor([0.0, 1.0, 2.0], dtype=torch.bfloat16))
    listed = steps(dist, dist.trace(dist.logits.float()))
    assert listed[0].probability == pytest.approx(math.exp(2) / (1 + math.e + math.exp(2)), rel=1e-6)
    traces = dist.sample_trace((2,))
    with pytest.raises(ValueError, match="the trace has shape"):
        steps(dist, traces)
