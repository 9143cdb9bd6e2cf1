"""`log_prob` as torch.distributions have it: values broadcast against the batch, mixtures, subclasses of Tensor."""

import pytest
import torch
from cases import CASES, DISTS, small
from common import name_only, seeded
from torch.distributions import Categorical, MixtureSameFamily, mixture_same_family

import gumtrace as gt
from gumtrace.diagnostics import enumerate_values

TRACTABLE = [case for case in CASES if case().has_log_prob]
# torch 2.5 compares a value with the supports of components without broadcasting, for its own distributions too
VALIDATE = hasattr(mixture_same_family, "MixtureSameFamilyConstraint")
SMALL = [(c.name, c.dist) for c in small() if c.dist.has_log_prob]


@pytest.mark.parametrize("case", TRACTABLE, ids=str)
@pytest.mark.parametrize(
    ("batch", "value"),
    [((4,), ()), ((3, 4), (4,)), ((3, 1), (4,)), ((1,), (4,)), ((3, 1), (5, 1, 4)), ((3, 4), (2, 3, 1)), ((), (2, 3))],
)
def test_values_broadcast_against_the_batch(case, batch, value):
    """As if both had been expanded by hand. A mask that differs from item to item would make some values impossible."""
    dist = case.build(case.logits(batch)) if "ragged" not in case.name and "by-item" not in case.name else case(())
    dist = dist.expand(batch) if not dist.batch_shape else dist
    item = dist.item((0,) * len(batch))
    values = item.sample(value, generator=seeded())
    shape = torch.broadcast_shapes(batch, value)
    got = dist.log_prob(values)
    assert got.shape == shape
    by_hand = dist.expand(shape).log_prob(values.expand(shape + item.event_shape))
    torch.testing.assert_close(got, by_hand, rtol=0, atol=0)


@pytest.mark.parametrize("case", TRACTABLE, ids=str)
def test_what_does_not_broadcast_is_refused(case):
    dist = case((4,))
    with pytest.raises(ValueError, match=r"values of batch shape \(3,\) do not broadcast with \(4,\)"):
        dist.log_prob(dist.sample()[:3])
    with pytest.raises(ValueError, match="does not end in"):
        dist.log_prob(torch.zeros(4, *[n + 1 for n in dist.event_shape]))


@pytest.mark.parametrize(("name", "dist"), SMALL, ids=name_only)
def test_mixtures_sum_to_one_and_are_those_of_their_components(name, dist):
    """Mixtures of Plackett-Luce, of subsets, trees and so on: against the enumeration of each component."""
    x = torch.stack([dist.log_rates, dist.log_rates.flip(-1).nan_to_num(neginf=0.0), 2 * dist.log_rates])
    components = dist.with_log_rates(x)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    mixture = MixtureSameFamily(Categorical(weights), components, validate_args=VALIDATE)
    law = enumerate_values(dist)
    log_prob = mixture.log_prob(law.outcomes)
    assert log_prob.exp().sum().item() == pytest.approx(1.0)
    of_each = torch.stack([enumerate_values(components.item((i,))).log_prob for i in range(3)])
    torch.testing.assert_close(log_prob.exp(), weights @ of_each.exp())
    batch = MixtureSameFamily(Categorical(weights.expand(4, 3)), components.expand((4, 3)), validate_args=VALIDATE)
    assert batch.log_prob(batch.sample((5,))).shape == (5, 4)


def test_a_mixture_of_plackett_luce_learns():
    """Two groups that rank in opposite orders: the mixture's likelihood is above that of the best single ranking."""
    orders = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]]).repeat(20, 1)
    logits = torch.tensor([[3.0, 1.0, -1.0, -3.0], [-3.0, -1.0, 1.0, 3.0]], requires_grad=True)
    mixture = MixtureSameFamily(Categorical(torch.ones(2)), gt.Permutation(logits), validate_args=VALIDATE)
    loss = -mixture.log_prob(orders).mean()
    loss.backward()
    assert logits.grad.isfinite().all()
    assert loss < -gt.Permutation(torch.zeros(4)).log_prob(orders).mean()


# Subclasses of Tensor -----------------------------------------------------------------------------------


class Marked(torch.Tensor):
    """Unwraps its arguments and marks whatever comes out: shapes come out as tuples, as those that Pyro tracks."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        def strip(x):
            if isinstance(x, Marked):
                return x.as_subclass(torch.Tensor)
            return type(x)(map(strip, x)) if type(x) in (list, tuple) else x

        def mark(x):
            if isinstance(x, torch.Tensor):
                return x.as_subclass(Marked)
            if not isinstance(x, tuple):
                return x
            parts = tuple(map(mark, x))
            return parts if type(x) in (tuple, torch.Size) else type(x)(parts)  # such as the result of `sort`

        with torch._C.DisableTorchFunctionSubclass():
            return mark(func(*map(strip, args), **{k: strip(v) for k, v in (kwargs or {}).items()}))


@pytest.mark.parametrize("name", DISTS)
def test_subclasses_of_tensor(name):
    """The same numbers, and the marks survive: of values, and of logits."""
    dist = DISTS[name]()
    assert isinstance(torch.zeros(2).as_subclass(Marked).shape, tuple)
    marked = dist.with_log_rates(dist.log_rates.as_subclass(Marked))
    trace = dist.sample_trace((3,), generator=seeded())
    found = [marked.trace_log_prob(trace)]
    torch.testing.assert_close(found[0].as_subclass(torch.Tensor), dist.trace_log_prob(trace))
    if dist.has_log_prob:
        expected = dist.log_prob(trace.value)
        for x in (dist.log_prob(trace.value.as_subclass(Marked)), marked.log_prob(trace.value)):
            torch.testing.assert_close(x.as_subclass(torch.Tensor), expected)
            found.append(x)
    assert all(isinstance(x, Marked) for x in found)
    torch.testing.assert_close(marked.sample((3,), generator=seeded()).as_subclass(torch.Tensor), trace.value)


@pytest.mark.parametrize("make", [gt.SpanningTree, gt.Matching, gt.Arborescence, lambda x: gt.Subset(x[0], 2)])
def test_structures_of_marked_logits(make):
    logits = torch.randn(4, 4, generator=seeded())
    made = make(logits.as_subclass(Marked))
    assert made.batch_shape == ()
    torch.testing.assert_close(made.mode.as_subclass(torch.Tensor), make(logits).mode)
