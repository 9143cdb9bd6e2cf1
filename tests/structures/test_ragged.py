"""A padded batch is a loop over its items: in values, probabilities, noise and gradients, with nan in the padding."""

import pytest
import torch
from cases import RAGGED
from common import seeded

import gumtrace as gt

N = 6
LENGTHS = torch.tensor([6, 1, 4, 2, 5])


def padded(kind, dtype=torch.float64):
    """The batch with nan behind each item's end, and the items alone."""
    dims, build = RAGGED[kind]
    logits = torch.randn(len(LENGTHS), *[N] * dims, generator=seeded(), dtype=dtype)
    items = [
        row[(slice(0, n),) * dims].clone().requires_grad_() for row, n in zip(logits, LENGTHS.tolist(), strict=True)
    ]
    inside = torch.arange(N) < LENGTHS[:, None]
    if dims == 2:
        inside = inside[:, :, None] & inside[:, None, :]
    batch = torch.where(inside, logits, torch.nan).requires_grad_()
    return build, batch, items, inside, dims


def corner(x, n, dims):
    """The first n of each of the last dims."""
    return x[(..., *(slice(0, n),) * dims)]


@pytest.mark.parametrize("kind", RAGGED)
def test_traces_and_log_probs(kind):
    build, batch, items, inside, dims = padded(kind)
    dist = build(batch, lengths=LENGTHS)
    noise = dist.perturb((20,), generator=seeded(1))
    assert noise[:, ~inside].isneginf().all()
    trace = dist.trace(noise)
    log_prob = dist.trace_log_prob(trace)
    (grad,) = torch.autograd.grad(log_prob.sum(), batch)
    assert (grad[~inside] == 0).all()
    for i, (item, n) in enumerate(zip(items, LENGTHS.tolist(), strict=True)):
        alone = build(item)
        own = alone.trace(corner(noise[:, i], n, dims).detach())
        value_dims = len(alone.event_shape)
        assert corner(trace.value[:, i], n, value_dims).equal(own.value)
        torch.testing.assert_close(log_prob[:, i], alone.trace_log_prob(own))
        (own_grad,) = torch.autograd.grad(alone.trace_log_prob(own).sum(), item)
        torch.testing.assert_close(corner(grad[i], n, dims), own_grad)


@pytest.mark.parametrize("kind", RAGGED)
def test_padding_of_values(kind):
    build, batch, *_ = padded(kind)
    value = build(batch, lengths=LENGTHS).sample((20,), generator=seeded(2))
    position = torch.arange(N)
    padding = position >= LENGTHS[:, None]  # (items, N)
    if kind == "permutation":
        assert (value == position)[:, padding].all()
    elif kind == "binary":
        assert ((value == -2) == padding).all()
    elif value.dim() == 4:
        assert (value[:, padding[:, :, None] | padding[:, None, :]] == 0).all()
    else:
        assert (value[:, padding] == 0).all()


@pytest.mark.parametrize("kind", RAGGED)
def test_conditionals(kind):
    build, batch, _, inside, _ = padded(kind, torch.float32)
    dist = build(batch, lengths=LENGTHS)
    trace = dist.sample_trace((50,), generator=seeded(3))
    noise = dist.conditional(trace, generator=seeded(4))
    assert noise[:, ~inside].isneginf().all()
    assert dist.trace(noise).equals(trace).all()
    finite = torch.where(noise.isneginf(), 0.0, noise)
    (grad,) = torch.autograd.grad(finite.square().sum(), batch, create_graph=True)
    assert (grad[~inside] == 0).all()
    (second,) = torch.autograd.grad(torch.where(inside, grad, 0.0).square().sum(), batch)
    assert second.isfinite().all()
    assert (second[~inside] == 0).all()


@pytest.mark.parametrize("kind", RAGGED)
def test_lengths_are_masks_and_masks_are_minus_infinity(kind):
    build, batch, _, inside, _ = padded(kind)
    by_length = build(batch, lengths=LENGTHS)
    if kind not in ("tree", "arborescence"):  # a mask alone leaves graphs unconnected
        by_mask = build(batch, mask=inside)
        by_logit = build(torch.where(inside, batch, -torch.inf))
        for other in (by_mask, by_logit):
            assert by_length.sample((5,), generator=seeded(5)).equal(other.sample((5,), generator=seeded(5)))
    assert (by_length.noise_log_prob(by_length.perturb(generator=seeded(6)))).isfinite().all()


def test_rectangular_matching_counts_rows():
    dist = gt.Matching(torch.zeros(2, 3, 5), lengths=torch.tensor([2, 3]))
    assert dist.sample().sum((-1, -2)).tolist() == [2, 3]


def test_per_item_k():
    k = torch.tensor([0, 2, 4])
    logits = torch.randn(3, 4, generator=seeded(), dtype=torch.float64, requires_grad=True)
    dist = gt.Subset(logits, k)
    trace = dist.sample_trace((10,), generator=seeded(1))
    assert trace.value.sum(-1).equal(k.expand(10, 3).to(torch.float64))
    log_prob = dist.trace_log_prob(trace)
    for i in range(3):
        alone = gt.Subset(logits[i], int(k[i]))
        own = alone.trace(dist.conditional(trace, generator=seeded(2))[:, i].detach())
        torch.testing.assert_close(alone.trace_log_prob(own), log_prob[:, i])
        torch.testing.assert_close(dist.log_prob(trace.value)[:, i], alone.log_prob(own.value))


def test_length_zero_is_an_empty_item():
    lengths = torch.tensor([0, 3])
    for dist in (gt.Permutation(torch.zeros(2, 3), lengths=lengths), gt.BinaryTree(torch.zeros(2, 3), lengths=lengths)):
        assert dist.trace_log_prob(dist.sample_trace((4,)))[:, 0].eq(0).all()
