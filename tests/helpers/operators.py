"""What the tests of the operators share: every structure made from one square of logits, on every device at hand."""

import pytest
import torch
from common import seeded

import gumtrace as gt

EDGES = torch.tensor([[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 2, 3]])  # four nodes
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def lengths(x):
    """n and n - 1 in turn."""
    return x.shape[-1] - torch.arange(x.shape[-3], device=x.device) % 2


def counts(x):
    return torch.arange(x.shape[-3], device=x.device) % 3


def sparse(x):
    return gt.SpanningTree.from_edges(x.flatten(-2)[..., : EDGES.shape[1]], EDGES.to(x.device), 4, validate_args=False)


MAKE = {
    "subset": lambda x: gt.Subset(x[..., 0, :], 2, validate_args=False),
    "subset-by-item": lambda x: gt.Subset(x[..., 0, :], counts(x), most=2, validate_args=False),
    "permutation": lambda x: gt.Permutation(x[..., 0, :], validate_args=False),
    "permutation-matrix": lambda x: gt.Permutation(x[..., 0, :], matrix=True, validate_args=False),
    "matching": lambda x: gt.Matching(x, validate_args=False),
    "tree": lambda x: gt.SpanningTree(x, validate_args=False),
    "tree-ragged": lambda x: gt.SpanningTree(x, lengths=lengths(x), validate_args=False),
    "tree-sparse": sparse,
    "arborescence": lambda x: gt.Arborescence(x, validate_args=False),
    "arborescence-ragged": lambda x: gt.Arborescence(x, lengths=lengths(x), validate_args=False),
    "binary": lambda x: gt.BinaryTree(x[..., 0, :], validate_args=False),
}
every_structure = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
every_device = pytest.mark.parametrize("device", DEVICES)


def logits(*batch, device="cpu", n=4):
    return torch.randn(*batch, n, n, generator=seeded(1), dtype=torch.float64).to(device)


def finite(g):
    """The sum of noise, without the keys that do not race."""
    return torch.where(g.isneginf(), 0.0, g).sum()


def step(make, x):
    """All that training asks of a structure."""
    d = make(x)
    trace = d.sample_trace((2,))
    loss = gt.estimators.TraceREINFORCE(samples=2)(d, lambda value: value.to(x.dtype).flatten(2).square().sum(-1))
    return d.trace_log_prob(trace).sum() + finite(d.conditional(trace)) + loss.sum(), trace.value
