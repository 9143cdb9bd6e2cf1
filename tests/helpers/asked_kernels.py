"""The kernels that `gumtrace warm-up` asks for, and those that a user's program does: python asked_kernels.py NAME ...

Prints the names of both for each structure, as JSON lines. Each is asked in a process of its own: a child of this one,
which has loaded the library and asked for nothing.
"""

import json
import os
import sys
from collections.abc import Callable

import torch

from gumtrace.cli import warm_up
from gumtrace.estimators import ESTIMATORS
from gumtrace.kernels.cpu import cache, ops  # noqa: F401 - all modules of kernels


class Critic(torch.nn.Module):
    """Of noise of any shape."""

    def __init__(self, dims: int):
        super().__init__()
        self.scale, self.dims = torch.nn.Parameter(torch.ones(())), dims

    def forward(self, noise, context=None):
        return (self.scale * noise).square().flatten(-self.dims).sum(-1)


def use(name: str) -> None:
    """As the pages do: samples, log-probabilities, noise given the trace, and steps of estimators."""
    dist = warm_up.make(name, torch.float32)
    with torch.no_grad():
        dist.sample((3,))
        dist.conditional(dist.sample_trace())
    dist.trace_log_prob(dist.sample_trace((2,))).sum().backward(retain_graph=True)
    if dist.has_log_prob:
        dist.log_prob(dist.sample()).sum().backward(retain_graph=True)
    dims = len(dist.event_shape)
    for cls in ESTIMATORS.values():
        if not cls.supports(dist):
            continue
        estimator = cls.from_settings({}, critic=lambda: Critic(len(dist.key_shape)))
        loss = estimator(dist, lambda x: x.to(torch.float32).flatten(-dims).sum(-1))
        loss.sum().backward(retain_graph=True)


def asked_by(work: Callable, *args) -> list[str]:
    ours, theirs = os.pipe()
    if not os.fork():
        asked, load = set(), cache.KernelCache.load_overload

        def load_and_record(self, signature, context):
            asked.add(self.file_name(signature, context.codegen().magic_tuple()))
            return load(self, signature, context)

        cache.KernelCache.load_overload = load_and_record
        work(*args)
        os.write(theirs, json.dumps(sorted(asked)).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as answer:
        names = json.load(answer)
    os.wait()
    return names


if __name__ == "__main__":
    for name in sys.argv[1:]:
        ahead = asked_by(lambda name=name: warm_up.use(warm_up.make(name, torch.float32)))
        print(json.dumps([name, ahead, asked_by(use, name)]), flush=True)
