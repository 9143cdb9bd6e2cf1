"""What `relax` takes, and what it says to the rest; dtypes of soft values."""

import pytest
import torch
from common import seeded
from unbiased import SMOOTH

import gumtrace as gt
from gumtrace import estimators as E

DISTS = {  # shape of the logits, and what else
    gt.Subset: ((2, 5), {"k": 2}),
    gt.Permutation: ((2, 4), {"matrix": True}),
    gt.Matching: ((2, 3, 4), {}),
    gt.SpanningTree: ((2, 4, 4), {}),
    gt.Arborescence: ((2, 4, 4), {}),
}
EVERY = pytest.mark.parametrize(("structure", "kind"), [(s, kind) for s in DISTS for kind in s.relaxations])
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def make(structure, dtype=torch.float32):
    shape, settings = DISTS[structure]
    return structure(torch.randn(*shape, generator=seeded(4)).to(dtype).requires_grad_(), **settings)


@HALF
@EVERY
def test_noise_in_half_precision_is_computed_in_single(structure, kind, dtype):
    dist = make(structure)
    noise = dist.perturb((3,), generator=seeded(1)).to(dtype)
    soft = gt.relax(dist, noise, 0.5, kind)
    assert soft.dtype == dtype
    torch.testing.assert_close(soft, gt.relax(dist, noise.float(), 0.5, kind).to(dtype))


@HALF
@pytest.mark.parametrize("structure", DISTS)
@pytest.mark.parametrize("name", ["TraceREINFORCE", *SMOOTH])
def test_objectives_see_one_dtype(name, structure, dtype):
    """Hard and soft alike: an objective written for the logits' dtype works with every estimator."""
    dist = make(structure, dtype)
    if not E.ESTIMATORS[name].supports(dist):
        pytest.skip("it cannot estimate gradients for this structure")
    weights = torch.randn(dist.event_shape.numel(), generator=seeded(2)).to(dtype)
    estimator = E.ESTIMATORS[name].from_settings({"samples": 2, "draws": 3})
    loss = estimator(dist, lambda x: x.flatten(-len(dist.event_shape)) @ weights, generator=seeded(1))
    assert loss.dtype == torch.float32
    loss.mean().backward()
    assert dist.logits.grad.dtype == dtype
    assert dist.logits.grad.isfinite().all()


@pytest.mark.parametrize("structure", DISTS)
def test_a_temperature_for_each_item(structure):
    dist = make(structure)
    noise = dist.perturb((3,), generator=seeded(1))
    temperature = torch.tensor([0.3, 2.0], requires_grad=True)
    soft = gt.relax(dist, noise, temperature)
    for i in range(2):
        torch.testing.assert_close(soft[:, i], gt.relax(dist, noise, temperature[i].item())[:, i])
    soft.square().sum().backward()
    assert (temperature.grad != 0).all()


def test_one_temperature_may_come_in_any_shape():
    dist = make(gt.Subset)
    noise = dist.perturb()
    for temperature in (0.5, torch.tensor(0.5), torch.full((1,), 0.5), torch.full((1, 1), 0.5)):
        torch.testing.assert_close(gt.relax(dist, noise, temperature), gt.relax(dist, noise, 0.5))


@pytest.mark.parametrize(
    ("noise", "temperature", "error", "message"),
    [
        (torch.zeros(2, 4), 0.5, ValueError, "noise of shape"),
        (torch.zeros(5), 0.5, ValueError, "noise of shape"),
        (torch.zeros(3, 5), 0.5, ValueError, "noise of shape"),
        (torch.zeros(2, 5, dtype=torch.long), 0.5, TypeError, "int64 tensor"),
        ([[0.0] * 5] * 2, 0.5, TypeError, "got list"),
        (torch.zeros(2, 5), 0, ValueError, "temperature must be positive, got 0"),
        (torch.zeros(2, 5), float("nan"), ValueError, "temperature must be positive, got nan"),
        (torch.zeros(2, 5), torch.tensor(-0.5), ValueError, "temperature must be positive, got -0.5"),
        (torch.zeros(2, 5), torch.tensor([0.5, 0.0]), ValueError, "temperature must be positive, got 0"),
        (torch.zeros(2, 5), torch.ones(5), ValueError, "one for each item"),
        (torch.zeros(2, 5), torch.ones(2, 1), ValueError, "one for each item"),
    ],
)
def test_bad_use_is_told(noise, temperature, error, message):
    with pytest.raises(error, match=message):
        gt.relax(make(gt.Subset), noise, temperature)
