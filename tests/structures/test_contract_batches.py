"""What every structure promises of batches: they expand, and how they lie in memory makes no difference."""

import pytest
import torch
from cases import every, generator, lengths
from contract import assert_same, built, everything

import gumtrace as gt


@every
@pytest.mark.parametrize(
    ("batch", "new"), [((), (2, 3)), ((3,), (2, 3)), ((1,), (3,)), ((3,), (3,)), ((), ())], ids=str
)
def test_expand(case, batch, new):
    d = case(batch)
    wide = d.expand(torch.Size(new))
    assert type(wide) is type(d)
    assert (wide.batch_shape, d.batch_shape, wide.event_shape) == (new, batch, case.event)
    assert wide.logits.shape == new + case.keys
    assert wide.logits.data_ptr() == d.logits.data_ptr()
    if batch == new or batch == (3,):  # the cases give k and lengths by position in the last batch dimension
        written_out = case.build(d.logits.expand(new + case.keys).contiguous())
        assert_same(everything(wide), everything(written_out))
    value = wide.sample((2,))
    assert value.shape == (2, *new, *case.event)
    if case.kind != "labels":
        assert wide.support.check(value).all()


def test_expand_keeps_what_is_given_by_item():
    by_item = torch.tensor([[1], [3], [2]])
    subset = gt.Subset(torch.zeros(3, 1, 4), by_item).expand((3, 2))
    assert (subset.k == by_item).all()
    assert (subset.sample((9,)).sum(-1) == by_item).all()
    tree = gt.SpanningTree(torch.zeros(3, 1, 4, 4), lengths=by_item).expand((3, 2))
    assert (tree.sample((9,)).sum((-1, -2)) == 2 * (by_item - 1)).all()
    assert tree.support.check(tree.sample((9,))).all()


@every
def test_gradients_flow_through_expand(case):
    x = case.logits((3,)).requires_grad_()
    wide = case.build(x).expand((2, 3))
    noise = wide.perturb()
    (grad,) = torch.autograd.grad(noise.where(noise.isfinite(), 0.0).sum(), x)
    assert_same(grad, 2.0 * case.racing((3,)))


def _strided(x):
    return torch.stack([x, torch.full_like(x, 7.0)], -1)[..., 0]


def _transposed(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def _backwards(x):
    return x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))


@every
@pytest.mark.parametrize("arrange", [_strided, _transposed, _backwards], ids=lambda f: f.__name__)
def test_strides_do_not_matter(case, arrange):
    x = case.logits((2, 3))
    odd = arrange(x)
    assert_same(odd, x)
    assert x.numel() <= 6 or not odd.is_contiguous()
    torch.testing.assert_close(built(case, odd), built(case, x))  # torch may sum in another order
    d, noise = case.build(x), case.build(x).perturb((2,), generator=generator())
    assert d.trace(arrange(noise)).equals(d.trace(noise)).all()


@every
def test_stride_zero(case):
    x = case.logits(())
    for a, b in zip(
        everything(case.build(x.expand(3, *case.keys))),
        everything(case.build(x.repeat(3, *[1] * x.dim()))),
        strict=True,
    ):
        assert_same(a, b)


@every
def test_noise_may_be_expanded(case):
    d = case((3,))
    noise = d.perturb(generator=generator())
    traces = d.trace(noise.expand(4, *noise.shape))
    assert traces.shape == (4, 3)
    assert traces.equals(d.trace(noise)).all()


def test_lengths_of_the_cases_differ():
    assert lengths((3,), 5).tolist() == [5, 4, 5]  # else the ragged cases would test nothing
