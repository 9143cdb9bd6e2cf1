"""Logits on the CPU work whatever the default device is: kernels, and what is made beside them, are where the logits
are. "meta" stands for a GPU: it has no numbers, so that whatever is made there is noticed."""

from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace import diagnostics as D
from gumtrace import divergences as V
from gumtrace import estimators as E
from gumtrace.recursions import MaximalIndependentSet

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
LINKS = torch.zeros(4, 4, dtype=torch.bool).index_put((torch.tensor([0]), torch.tensor([1])), torch.tensor(True))
SIZES = torch.tensor([4, 3])
PATH = torch.eye(4).roll(1, 0)


def logits(*shape):
    return torch.randn(*shape, generator=seeded(1), device="cpu")


MAKE = {
    "subset": lambda: gt.Subset(logits(2, 4), 2),
    "ragged": lambda: gt.Subset(logits(2, 4), SIZES - 2, lengths=SIZES),
    "permutation": lambda: gt.Permutation(logits(2, 4)),
    "matrix": lambda: gt.Permutation(logits(2, 4), matrix=True),
    "matching": lambda: gt.Matching(logits(2, 3, 3)),
    "tree": lambda: gt.SpanningTree(logits(2, 4, 4), lengths=SIZES),
    "forest": lambda: gt.SpanningTree(logits(2, 4, 4), components=2),
    "linked": lambda: gt.SpanningTree(logits(2, 4, 4)).constrained(must_link=LINKS, cannot_link=LINKS.roll(2, 0)),
    "arborescence": lambda: gt.Arborescence(logits(2, 4, 4)),
    "binary tree": lambda: gt.BinaryTree(logits(2, 4)),
    "sparse": lambda: gt.SpanningTree.from_edges(logits(2, 3), EDGES, 3),
    "graphs": lambda: gt.SpanningTree.from_edges([logits(3), logits(3)], [EDGES, EDGES], [3, 3]),
    "custom": lambda: gt.Custom(logits(2, 4), MaximalIndependentSet(PATH), event_dim=1),
}


@pytest.fixture(params=MAKE)
def dist(request):
    with torch.device("meta"):
        yield MAKE[request.param]()


def test_everything_but_the_structure_itself(dist):
    trace = dist.sample_trace((3,))
    assert dist.support.check(trace.value).all()
    results = [dist.conditional(trace), dist.perturb((3,)), dist.mode, dist.decision_log_prob(trace)]
    results += [dist.noise_log_prob(dist.perturb()), V.trace_kl(dist, dist), dist.expand((2, 2)).sample()]
    for ask in (
        lambda: dist.log_prob(trace.value),
        lambda: dist.mean,
        dist.entropy,
        lambda: dist.distinct_traces(2).value,
    ):
        with suppress(NotImplementedError):
            results.append(ask())
    item = dist.item((0,))
    results.append(item.trace_log_prob(item.enumerate_traces()))
    if gt.relaxations.has_relaxation(dist):
        results.append(gt.relax(dist, dist.perturb((3,)), 0.5))
    assert {x.device.type for x in results} == {"cpu"}
    assert not any(x.isnan().any() for x in results)


@pytest.mark.parametrize("name", E.ESTIMATORS)
def test_estimators(dist, name):
    kind = E.ESTIMATORS[name]
    if not kind.supports(dist):
        return
    with torch.device("cpu"):  # modules are made where the user wants them
        x = dist.log_rates
        modules = {
            "critic": lambda: E.VectorCritic(x.shape[-1]) if len(dist.key_shape) == 1 else E.MatrixCritic(),
            "surrogate": E.LinearSurrogate,
        }
        estimator = kind.from_settings({"samples": 2, "temperature": 0.5, "extra": 8}, **modules)
    loss = estimator(dist, lambda x: x.float().flatten(1 + len(dist.batch_shape)).sum(-1).square())
    assert loss.device.type == "cpu"
    assert loss.isfinite().all()


@pytest.mark.parametrize("k", [[1, 2], np.array([1, 2]), torch.tensor([1, 2]), np.int64(2)])
def test_kernels_read_k_beside_the_logits(k):
    with torch.device("meta"):
        there = torch.empty(2, 4)
    sizes = gt.Subset(there, k, validate_args=False)._row_sizes()
    assert sizes is None or sizes.device == there.device


@pytest.mark.parametrize("make", [partial(gt.SpanningTree, components=2), partial(gt.Arborescence, root=1)])
def test_settings_that_are_numbers_are_compared_without_synchronising(make):
    with torch.device("meta"):  # whose numbers cannot be read
        there = torch.empty(2, 4, 4)
    assert make(there, validate_args=False).mismatch(make(there, validate_args=False)) is None


def test_goodness_of_fit():
    with torch.device("meta"):
        assert D.goodness_of_fit(gt.Subset(logits(4), 2), 100).p_value > 1e-6
