"""Inclusion probabilities of subsets against enumeration, the places of keys, samples and the formula in torch."""

import math

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace.diagnostics import enumerate_values
from gumtrace.structures import inclusion
from gumtrace.structures.ranks import place_probs

FLOAT32 = {"rtol": 0, "atol": 2e-7}
SIZES = [(4, 2), (9, 1), (9, 8), (40, 7), (33, 32), (70, 66), (150, 3)]  # some of more than one block of keys


def randn(*shape, scale=1.0, seed=2):
    return scale * torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def enumerated(x, k):
    law = enumerate_values(gt.Subset(x, k))
    return (law.log_prob.exp()[:, None] * law.outcomes).sum(0)


def in_torch(monkeypatch):
    """The formula that serves devices without a kernel."""
    monkeypatch.setattr(inclusion, "own_kernel", lambda name, device_type: None)


@pytest.fixture(params=["kernel", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        in_torch(monkeypatch)


# Values --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 3.0, 10.0, 50.0, 1e4])
@pytest.mark.parametrize(("d", "k"), [(2, 1), (5, 2), (7, 1), (7, 6), (8, 4)])
def test_they_are_those_of_all_subsets(d, k, scale):
    x = randn(d, scale=scale)
    torch.testing.assert_close(gt.Subset(x, k).mean, enumerated(x, k), rtol=0, atol=1e-13)
    torch.testing.assert_close(gt.Subset(x.float(), k).mean.double(), enumerated(x.float().double(), k), **FLOAT32)


def test_expanded_items_are_computed_once(monkeypatch):
    """With the gradients that copies of them have."""
    rows, real = [], inclusion._probs
    monkeypatch.setattr(inclusion, "_probs", lambda y, *args: rows.append(len(y)) or real(y, *args))
    x, v = randn(3, 1, 6), randn(3, 5, 6, seed=3)
    found = []
    for expanded in (lambda x: x.expand(3, 5, 6), lambda x: x.repeat(1, 5, 1)):
        leaf = x.clone().requires_grad_()
        mean = gt.Subset(expanded(leaf), 2).mean
        assert mean.shape == (3, 5, 6)
        found.append((mean, *torch.autograd.grad(mean, leaf, v)))
    torch.testing.assert_close(*found)
    assert rows == [3, 15]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("gap", [2.0, 5.0, 12.0, 25.0, 35.0, 45.0])
@pytest.mark.parametrize("fast", [1, 2, 3, 4, 5])
def test_keys_of_several_scales(fast, gap):
    """Of 3 chosen keys some are nearly certain and some nearly out: the interval of times has another shape each."""
    x = randn(8)
    x[:fast] += gap
    x[6:] -= gap
    torch.testing.assert_close(gt.Subset(x, 3).mean, enumerated(x, 3), rtol=0, atol=1e-13)


def test_small_probabilities_have_all_their_digits():
    x = torch.tensor([0.0, 0.0, 0.0, -30.0, -100.0, -600.0], dtype=torch.float64)
    torch.testing.assert_close(gt.Subset(x, 2).mean, enumerated(x, 2), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("d", "k"), SIZES)
@pytest.mark.slow
def test_they_are_sums_of_places(d, k):
    for scale in (0.0, 1.0, 6.0):
        x = randn(d, scale=scale)
        torch.testing.assert_close(gt.Subset(x, k).mean, place_probs("", x, k).sum(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("d", "k"), [(2000, 30), (1000, 990), (600, 300), (100_000, 10)])
@pytest.mark.slow
def test_large_ones_sum_to_k(d, k):
    x = randn(d, scale=1.5)
    mean = gt.Subset(x, k).mean
    assert abs(mean.sum().item() - k) < 1e-10
    assert ((mean >= 0) & (mean <= 1 + 1e-12)).all()
    torch.testing.assert_close(gt.Subset(x.float(), k).mean.double(), gt.Subset(x.float().double(), k).mean, **FLOAT32)
    uniform = gt.Subset(torch.zeros(d), k).mean
    torch.testing.assert_close(uniform, torch.full((d,), k / d), rtol=1e-6, atol=0)


@pytest.mark.slow
def test_they_are_the_frequencies_of_samples():
    d = gt.Subset(randn(16, scale=2.0).float(), 5)
    n = 10_000_000
    often = sum(d.sample((n // 50,), generator=seeded(seed)).double().mean(0) for seed in range(50)) / 50
    deviation = (d.variance.double() / n).sqrt()
    assert ((often - d.mean).abs() < 6 * deviation + 1e-7).all()  # 16 keys, one in 3 * 10^7


# Items ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_sizes_masks_and_lengths_of_items():
    x = randn(2, 3, 7)
    k = torch.tensor([[0, 2, 5], [7, 3, 1]])
    lengths = torch.tensor([[4, 6, 5], [7, 7, 2]])
    mask = torch.ones(7, dtype=torch.bool)
    mask[1] = False
    for settings in ({"lengths": lengths}, {"lengths": lengths, "mask": mask}):
        sizes = torch.minimum(k, lengths - int("mask" in settings))
        d = gt.Subset(x, sizes, **settings)
        for i in range(2):
            for j in range(3):
                keep = [key for key in range(int(lengths[i, j])) if key != 1 or "mask" not in settings]
                expected = torch.zeros(7, dtype=torch.float64)
                expected[keep] = enumerated(x[i, j, keep], int(sizes[i, j]))
                torch.testing.assert_close(d.mean[i, j], expected, rtol=0, atol=1e-13)


@pytest.mark.usefixtures("way")
def test_the_smallest():
    for shape, k in (((2, 0), 0), ((0, 3), 2), ((3,), 0), ((2,), 2)):
        x = torch.zeros(shape, requires_grad=True)
        assert torch.autograd.grad(gt.Subset(x, k).mean.sum(), x)[0].abs().sum() == 0
    assert gt.Subset(torch.zeros(2, 0), 0).mean.shape == (2, 0)
    assert gt.Subset(torch.zeros(0, 3), 2).mean.shape == (0, 3)
    assert gt.Subset(torch.zeros(3), 0).mean.tolist() == [0, 0, 0]
    assert gt.Subset(torch.tensor([0.0, 9.0, -math.inf]), 2).mean.tolist() == [1, 1, 0]
    assert gt.Subset(torch.zeros(1), 1).mean.tolist() == [1]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e30, 1e30])
def test_wide_logits_and_ties(offset):
    x = torch.tensor([0.0, 0.0, 0.0, 1e38, -1e38, -math.inf]) + offset
    x = x.clamp(max=3e38).requires_grad_()
    mean = gt.Subset(x, 2).mean
    expected = torch.tensor([1 / 3, 1 / 3, 1 / 3, 1.0, 0.0, 0.0])
    torch.testing.assert_close(mean, expected, **FLOAT32)
    (grad,) = torch.autograd.grad(mean[0], x)
    torch.testing.assert_close(grad, torch.tensor([2 / 9, -1 / 9, -1 / 9, 0, 0, 0]) * 1.0, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("way")
def test_what_is_no_number_stays_with_its_item():
    x = randn(3, 5)
    whole = gt.Subset(x, 2).mean
    x[1, 2] = math.nan
    mean = gt.Subset(x, 2, validate_args=False).mean
    torch.testing.assert_close(mean[[0, 2]], whole[[0, 2]])


# Derivatives ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_derivatives():
    x, k = randn(4, 6).requires_grad_(), torch.tensor([1, 3, 5, 2])
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[3, :2] = False
    assert torch.autograd.gradcheck(lambda x: gt.Subset(x, k, mask=mask).mean, x)
    assert torch.autograd.gradgradcheck(lambda x: gt.Subset(x[:2], k[:2]).mean, x)


@pytest.mark.parametrize(("d", "k"), SIZES)
def test_derivatives_are_those_of_the_formula_in_torch(d, k, monkeypatch):
    x, v = randn(3, d).requires_grad_(), randn(3, d, seed=5)
    mean = gt.Subset(x, k).mean
    (grad,) = torch.autograd.grad(mean, x, v)
    in_torch(monkeypatch)
    again = gt.Subset(x, k).mean
    torch.testing.assert_close(mean, again, rtol=0, atol=1e-13)
    torch.testing.assert_close(grad, *torch.autograd.grad(again, x, v), rtol=0, atol=1e-13)


def test_a_constant_in_the_direction_or_in_the_logits_changes_nothing():
    x = randn(200).requires_grad_()
    mean = gt.Subset(x, 20).mean
    one = torch.ones(200, dtype=torch.float64)
    assert torch.autograd.grad(mean, x, one, retain_graph=True)[0].abs().max() < 1e-14
    found, shifted = (torch.autograd.grad(gt.Subset(x + by, 20).mean[:7].sum(), x)[0] for by in (0, 100))
    torch.testing.assert_close(found, shifted, rtol=0, atol=1e-12)
    assert abs(found.sum().item()) < 1e-13


def test_a_large_constant_in_the_direction_is_no_error():
    """In float32, where fewer points are taken: 2^16 times what they leave would be a digit."""
    x = randn(2, 40).float().requires_grad_()
    v = (8 * randn(2, 40, seed=5)).round().float()
    mean = gt.Subset(x, 7).mean
    found, shifted = (torch.autograd.grad(mean, x, v + by, retain_graph=True)[0] for by in (0, 2**16))
    torch.testing.assert_close(found, shifted, rtol=0, atol=1e-6)


def test_parts_are_put_together(monkeypatch):
    """Rows that are computed again in the backward."""
    in_torch(monkeypatch)
    x = randn(5, 6).requires_grad_()
    whole = gt.Subset(x, 3).mean
    (wanted,) = torch.autograd.grad(whole[:, 0].sum(), x)
    monkeypatch.setattr(inclusion, "HELD", 2 * 6 * 96)
    parts = gt.Subset(x, 3).mean
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(*torch.autograd.grad(parts[:, 0].sum(), x), wanted)


def test_transforms_of_torch_func():
    x = randn(3, 5)
    mean = lambda x: gt.Subset(x, 2, validate_args=False).mean  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(mean)(x), gt.Subset(x, 2).mean)
    x = x[0].requires_grad_()
    expected = torch.autograd.functional.jacobian(lambda x: gt.Subset(x, 2).mean, x)
    torch.testing.assert_close(torch.func.jacrev(mean)(x), expected)


@pytest.mark.filterwarnings("ignore")  # what torch.compile says of torch's own code
@pytest.mark.slow
def test_it_compiles_as_one_graph():
    x, k = randn(3, 5).requires_grad_(), torch.tensor([1, 2, 4])
    compiled = torch.compile(
        lambda x: gt.Subset(x, k, most=4, validate_args=False).mean, fullgraph=True, backend="aot_eager"
    )
    expected = gt.Subset(x, k).mean
    torch.testing.assert_close(compiled(x), expected)
    grads = [torch.autograd.grad(mean[:, 0].sum(), x)[0] for mean in (compiled(x), expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    x = randn(5).to(dtype).requires_grad_()
    d = gt.Subset(x, 2)
    torch.testing.assert_close(d.mean.double(), enumerated(x.detach().double(), 2), **FLOAT32)
    d.mean[0].backward()
    assert x.grad.dtype == dtype


# On a GPU ------------------------------------------------------------------------------------------

NEEDS_CUDA = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; the formula in torch is compared with the kernel above"
)


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize(("d", "k"), SIZES)
def test_cuda_has_the_values_of_the_cpu(d, k):
    x, v = randn(3, d), randn(3, d, seed=5)
    results = []
    for device in ("cpu", "cuda"):
        y = x.to(device).requires_grad_()
        mean = gt.Subset(y, k).mean
        results.append((mean.cpu(), torch.autograd.grad(mean, y, v.to(device))[0].cpu()))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@pytest.mark.gpu
@NEEDS_CUDA
def test_cuda_graphs_record_it():
    x = randn(4, 30).float().cuda().requires_grad_()
    k, v = torch.tensor([3, 0, 30, 12]).cuda(), randn(4, 30, seed=5).float().cuda()

    def step(x):
        mean = gt.Subset(x, k, most=30, validate_args=False).mean
        return mean, *torch.autograd.grad(mean, x, v)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = step(x)
    with torch.no_grad():
        x.copy_(randn(4, 30, scale=2.0, seed=9))
    graph.replay()
    # With a leaf of its own: torch ties that of the graph to the stream on which it was recorded.
    torch.testing.assert_close(recorded, step(x.detach().clone().requires_grad_()))
