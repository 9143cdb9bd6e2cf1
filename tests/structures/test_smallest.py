"""Structures over nothing, lengths of 0 in every integer type, and counts that half types cannot hold."""

import pytest
import reference_algorithms as reference
import torch

import gumtrace as gt
from gumtrace.relaxations import trees

EMPTY = {
    "subset": (gt.Subset(torch.zeros(0), 0), (0,)),
    "permutation": (gt.Permutation(torch.zeros(0)), (0,)),
    "permutation matrix": (gt.Permutation(torch.zeros(0), matrix=True), (0, 0)),
    "matching": (gt.Matching(torch.zeros(0, 0)), (0, 0)),
    "matching without rows": (gt.Matching(torch.zeros(0, 3)), (0, 3)),
    "arborescence": (gt.Arborescence(torch.zeros(0, 0)), (0, 0)),
    "binary tree": (gt.BinaryTree(torch.zeros(0)), (0,)),
}
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_is_a_structure(name):
    d, shape = EMPTY[name]
    trace = d.sample_trace((2,))
    assert trace.value.shape == (2, *shape)
    assert d.support.check(trace.value).all()
    assert d.racing.shape == d.key_shape
    assert (d.trace_log_prob(trace) == 0).all()
    assert d.conditional(trace).shape == (2, *d.key_shape)
    assert d.trace(d.perturb((2,))).equals(trace).all()
    assert (d.noise_log_prob(d.perturb((2,))) == 0).all()
    if name != "arborescence":  # has none
        assert (d.log_prob(trace.value) == 0).all()


@pytest.mark.parametrize("name", EMPTY)
def test_gradients_over_no_key(name):
    d, _ = EMPTY[name]
    x = d.logits.clone().expand(2, *d.key_shape).clone().requires_grad_()
    wide = d.with_log_rates(x)
    (to_noise,) = torch.autograd.grad(wide.perturb((3,)).sum(), x, retain_graph=True)
    (first,) = torch.autograd.grad(wide.trace_log_prob(wide.sample_trace((3,))).sum(), x, create_graph=True)
    assert to_noise.shape == first.shape == x.shape


def test_the_support_of_a_recursion_over_no_key():
    algorithm = reference.Subset(0, 0)
    assert gt.Custom(torch.zeros(0), algorithm).support.check(torch.zeros(0))
    assert gt.Custom(torch.zeros(0, 0), algorithm, event_dim=1).support.check(torch.zeros(0, 0)).shape == (0,)


def test_relaxed_trees_of_no_node():
    none = torch.zeros(2, 0, 0)
    assert trees.sweeps(none, torch.zeros(0, 2, 0, 0), torch.zeros(2).long(), 0).shape == none.shape


@pytest.mark.parametrize("d", [gt.Subset(torch.zeros(0), 0), gt.Arborescence(torch.zeros(0, 0))], ids=repr)
def test_surrogates_of_no_entry(d):
    estimator, logits = gt.estimators.SurrogateREINFORCE(samples=2, extra=4), d.logits.clone().requires_grad_()
    for _ in range(2):
        loss = estimator(d.with_log_rates(logits), lambda x: x.flatten(1).sum(-1) + 1)
    assert loss == 1


@pytest.mark.parametrize("estimator", [gt.estimators.NoiseREINFORCE, gt.estimators.TraceREINFORCE])
def test_estimators_take_it(estimator):
    logits = torch.zeros(3, 0, 0, requires_grad=True)
    loss = estimator(samples=2)(gt.Arborescence(logits), lambda x: x.sum((-1, -2)) + 1)
    loss.mean().backward()
    assert (loss == 1).all()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("structure", [gt.Arborescence, gt.Matching, gt.Permutation, gt.BinaryTree])
def test_lengths_of_any_integer_type(structure, dtype):
    """Of an unsigned 0, less one is 255."""
    dims = 2 if structure in (gt.Arborescence, gt.Matching) else 1
    d = structure(torch.zeros(3, *[4] * dims), lengths=torch.tensor([4, 0, 2], dtype=dtype))
    trace = d.sample_trace((2,))
    assert d.trace_log_prob(trace[0]).shape == (3,)
    assert (d.trace_log_prob(trace)[:, 1] == 0).all()
    assert d.support.check(trace.value).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_supports_count_exactly_in_half_types(dtype):
    """Neither type has the number 2,501: a sum of ones in it takes 2,500 of them for as many."""
    d = gt.Subset(torch.zeros(5000, dtype=dtype), k=2501)
    value = d.sample()
    assert d.support.check(value)
    value[int(value.argmax())] = 0
    assert not d.support.check(value)


def test_batches_of_nothing_with_constraints():
    apart = torch.ones(0, 4, 4, dtype=torch.bool).triu(1)
    assert gt.ConstrainedForest(torch.zeros(0, 4, 4), 2, cannot_link=apart).sample((3,)).shape == (3, 0, 4, 4)


@pytest.mark.parametrize("d", [gt.Subset(torch.zeros(0, 4), 2), gt.SpanningTree(torch.zeros(0, 3, 3))])
def test_different_values_of_nothing(d):
    assert d.distinct_values(2).value.shape == (2, 0, *d.event_shape)
