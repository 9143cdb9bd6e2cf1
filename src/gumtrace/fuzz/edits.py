"""Traces are public tensors, and anyone may write into them. After that an error or any answer will do; a crash of the
interpreter, or a run without end, will not: the driver finds those out."""

from collections import Counter
from contextlib import suppress

import numpy as np
import torch

from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.checks import refused
from gumtrace.steps import steps
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace

ROUNDS = 6


def edited(case: Case, tally: Counter) -> None:
    """Traces of the case, some of whose numbers are overwritten."""
    if refused(case, tally):
        return
    for seed in range(case.seed, case.seed + ROUNDS):
        edit_and_use(case.build(validate_args=seed % 2 == 0), case.samples, seed)
        tally["edited traces"] += case.items


def edit_and_use(d: Structure, samples: tuple[int, ...], seed: int) -> None:
    """Draws a trace, writes into its choices and links, and calls all that takes a trace."""
    rng = np.random.default_rng([seed, 11])
    device = d.logits.device
    trace, untouched = (d.sample_trace(samples, generator=torch.Generator(device).manual_seed(seed)) for _ in range(2))
    if rng.random() < 0.2:
        trace = trace.to(device)  # no longer the distribution's own
    for part in (trace.choices, trace.links):
        if part.numel() and rng.random() < 0.7:
            _write(rng, part, d.key_shape.numel())
    for use in _USES:
        with suppress(Exception):
            use(d, trace, untouched)
    if device.type == "cuda":
        torch.cuda.synchronize()  # a kernel that read or wrote where it must not fails here


def _write(rng: np.random.Generator, part: torch.Tensor, keys: int) -> None:
    flat = part.view(-1)
    near = int(rng.integers(-3, 2 * keys + part.shape[-1] + 3))
    for _ in range(int(rng.integers(1, 4))):
        number = rng.choice([near, int(rng.integers(-2, keys + 3)), 0, -1, -2, keys, 2**31 - 1, -(2**31)])
        flat[int(rng.integers(len(flat)))] = int(number)


def _gradients(d: Structure, trace: Trace, other: Trace) -> None:
    log_prob = d.trace_log_prob(trace)
    torch.autograd.grad(log_prob.sum(), d.logits, retain_graph=True)
    (first,) = torch.autograd.grad(log_prob.sum(), d.logits, create_graph=True)
    torch.autograd.grad(first.sum(), d.logits, retain_graph=True)


def _conditional_gradient(d: Structure, trace: Trace, other: Trace) -> None:
    torch.autograd.grad(d.conditional(trace).sum(), d.logits, retain_graph=True)


_USES = (
    lambda d, trace, other: trace.value,
    lambda d, trace, other: trace.winners,
    lambda d, trace, other: trace.equals(other),
    lambda d, trace, other: d.trace_log_prob(trace),
    lambda d, trace, other: d.decision_log_totals(trace),
    lambda d, trace, other: d.conditional(trace),
    lambda d, trace, other: d.log_prob(trace.value),
    lambda d, trace, other: d.item((0,) * len(d.batch_shape)).trace_log_prob(trace[(0,) * len(trace.shape)]),
    lambda d, trace, other: steps(d.item((0,) * len(d.batch_shape)), trace[(0,) * len(trace.shape)]),
    _gradients,
    _conditional_gradient,
)
