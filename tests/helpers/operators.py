"""What the tests of the operators share: every structure made from one square of logits, on every device at hand."""

import pytest
import torch
from cases import COMPILED
from common import seeded

import gumtrace as gt

DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else [])]
every_structure = pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
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
