"""What every structure promises: shapes, and values of the right kind that its support knows."""

import pytest
import torch
from cases import CASES, every, generator
from contract import assert_same

import gumtrace as gt

batches = pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)], ids=str)
samples = pytest.mark.parametrize("sample", [(), (5,), (2, 2)], ids=str)

# Shapes -----------------------------------------------------------------------------------------------


@every
@batches
@samples
def test_shapes(case, batch, sample):
    d = case(batch)
    trace, noise = d.sample_trace(sample), d.perturb(sample)
    assert (d.batch_shape, d.event_shape) == (batch, case.event)
    assert trace.shape == sample + batch
    assert trace.winners.shape[:-1] == sample + batch
    assert trace.value.shape == d.sample(sample).shape == sample + batch + case.event
    assert noise.shape == d.conditional(trace).shape == sample + batch + case.keys
    assert d.trace(noise).value.shape == sample + batch + case.event
    assert d.trace_log_prob(trace).shape == d.noise_log_prob(noise).shape == sample + batch
    assert d.decision_log_totals(trace).shape == trace.winners.shape
    assert d.trace(noise).equals(trace).shape == sample + batch
    assert d.mode.shape == batch + case.event
    if d.has_log_prob:
        assert d.log_prob(trace.value).shape == sample + batch


@every
def test_gradients_of_an_empty_batch_are_empty(case):
    x = case.logits((0,)).requires_grad_()
    d = case.build(x)
    trace = d.sample_trace((2,))
    for y in (d.perturb((2,)), d.trace_log_prob(trace), d.conditional(trace)):
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        assert grad.shape == x.shape


@every
@pytest.mark.parametrize("shape", [(0,), (0, 2)], ids=str)
def test_no_samples(case, shape):
    d = case((3,))
    trace = d.sample_trace(shape)
    assert trace.value.shape == (*shape, 3, *case.event)
    assert d.conditional(trace).shape == (*shape, 3, *case.keys)
    assert d.trace_log_prob(trace).shape == (*shape, 3)


# Values -----------------------------------------------------------------------------------------------


@every
@batches
def test_sample_is_the_value_of_sample_trace(case, batch):
    d = case(batch)
    assert_same(d.sample((4,), generator=generator()), d.sample_trace((4,), generator=generator()).value)


@every
def test_sample_trace_is_the_trace_of_perturb(case):
    d = case((3,))
    assert d.trace(d.perturb((4,), generator=generator())).equals(d.sample_trace((4,), generator=generator())).all()


@every
def test_mode_is_the_noiseless_run(case):
    d = case((3,))
    assert_same(d.mode, d.trace(d.logits).value)


@every
def test_values_are_of_the_right_kind(case):
    value = case((3,)).sample((20,))
    if case.kind == "ones":
        assert value.dtype == torch.float32
        assert ((value == 0) | (value == 1)).all()
    else:
        assert value.dtype == torch.long


@pytest.mark.parametrize("case", [c for c in CASES if c.kind != "labels"], ids=str)
def test_support(case):
    d = case((3,))
    value = d.sample((50,), generator=generator())
    assert d.support.event_dim == len(case.event)
    assert d.support.is_discrete
    assert d.support.check(value).all()
    for place in range(value[0, 0].numel()):
        assert not d.support.check(corrupt(value, place, case)).any()


def corrupt(value, place, case):
    """One number changed so that nothing right remains."""
    value = value.clone()
    flat = value.view(*value.shape[:2], -1)
    if case.kind == "order":
        flat[..., place] += 1  # twice the same key
    elif case.kind == "parents":
        flat[..., place] = place  # its own parent
    elif case.name.startswith("custom"):
        flat[..., place] = 0.5
    else:
        flat[..., place] = 1 - flat[..., place]
    return value


PADDED = {
    "subset": (gt.Subset(torch.zeros(4), 2, lengths=3), [0, 0, 1, 1]),
    "permutation": (gt.Permutation(torch.zeros(3), lengths=2), [0, 2, 1]),
    "permutation-matrix": (gt.Permutation(torch.zeros(2), matrix=True, lengths=1), [[1, 0], [0, 1]]),
    "matching": (gt.Matching(torch.zeros(2, 2), lengths=1), [[1, 0], [0, 1]]),
    "matching-wide": (gt.Matching(torch.zeros(2, 3), lengths=1), [[0, 0, 1], [1, 0, 0]]),
    "spanning-tree": (gt.SpanningTree(torch.zeros(3, 3), lengths=2), [[0, 0, 1], [0, 0, 0], [1, 0, 0]]),
    "arborescence": (gt.Arborescence(torch.zeros(3, 3), lengths=2), [[0, 0, 0], [0, 0, 0], [0, 1, 0]]),
    "binary-tree": (gt.BinaryTree(torch.zeros(3), lengths=2), [-1, 0, 1]),
}


@pytest.mark.parametrize("name", PADDED)
def test_support_ends_at_the_padding(name):
    d, value = PADDED[name]
    assert not d.support.check(torch.tensor(value, dtype=d.sample().dtype))


@pytest.mark.parametrize(
    ("d", "certain"),
    [
        (gt.Subset(torch.randn(4), 0), [0, 0, 0, 0]),
        (gt.Subset(torch.randn(4), 4), [1, 1, 1, 1]),
        (gt.Subset(torch.zeros(0), 0), []),
        (gt.Permutation(torch.randn(1)), [0]),
        (gt.Permutation(torch.zeros(0)), []),
        (gt.Matching(torch.randn(1, 1)), [[1]]),
        (gt.SpanningTree(torch.randn(1, 1)), [[0]]),
        (gt.SpanningTree(torch.randn(2, 2)), [[0, 1], [1, 0]]),
        (gt.SpanningTree(torch.randn(3, 3), components=3), [[0] * 3] * 3),
        (gt.BinaryTree(torch.randn(1)), [-1]),
        (gt.BinaryTree(torch.zeros(0)), []),
    ],
    ids=repr,
)
def test_what_is_certain_has_probability_one(d, certain):
    value = d.sample()
    assert value.tolist() == certain
    torch.testing.assert_close(d.log_prob(value), torch.tensor(0.0))


@pytest.mark.parametrize("case", [c for c in CASES if c.certain], ids=str)
def test_a_single_trace_has_probability_one(case):
    d = case((3,))
    trace = d.sample_trace((4,))
    assert_same(d.trace_log_prob(trace), torch.zeros(4, 3))
    assert d.trace(d.conditional(trace)).equals(trace).all()
