"""All that a distribution draws and computes, to be compared number by number."""

import torch
from cases import generator


def everything(d, seed=0, to=None):
    """All that d draws and computes for one seed, and the gradients of it to the logits it was built from."""
    g = generator(seed)
    trace = d.sample_trace((2,), generator=g)
    noise, given = d.perturb((2,), generator=g), d.conditional(trace, generator=g)
    numbers = [noise, given, d.trace_log_prob(trace), d.noise_log_prob(noise), d.decision_log_totals(trace)]
    grads = [grad_of(y, to) for y in numbers] if to is not None else []
    return [trace.value, d.mode, *(y.detach() for y in numbers), *grads]


def grad_of(y, x):
    return torch.autograd.grad(y.where(y.isfinite(), 0.0).sum(), x, retain_graph=True)[0]


def built(case, x, seed=0):
    x = x.detach().requires_grad_()
    return everything(case.build(x), seed, x)


def assert_same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)
