"""Input that validate_args=False lets through, and tensors that are written into behind a distribution's back:
`python hostile.py` runs it in other processes and prints how it ended.

The answer may be anything, an error included; a crash, or a run without end, may not.
"""

import json
import os
import signal
import traceback
import warnings

import torch
from cases import CASES

import gumtrace as gt
from gumtrace.steps import steps

HUGE = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf, "1e38": 1e38, "-1e38": -1e38}


def _sample(case, value):
    return lambda: case.build(torch.full((3, *case.keys), value), validate_args=False).sample((2,))


def _given(case, value):
    def run():
        trace = case((3,)).sample_trace((2,))
        x = torch.full((3, *case.keys), value, requires_grad=True)
        d = case.build(x, validate_args=False)
        for y in (d.trace_log_prob(trace), d.conditional(trace)):
            torch.autograd.grad(y.sum(), x, retain_graph=True)

    return run


def _log_prob(case, value):
    def run():
        d = case.build(case.logits((3,)), validate_args=False)
        d.log_prob(torch.full((3, *case.event), value, dtype=d.sample().dtype))

    return run


def _trace(case, value):
    return lambda: case((3,)).trace(torch.full((3, *case.keys), value))


EDITS = range(10)
NUMBERS = (-(2**31), -1000, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 12, 100, 10**6, 2**31 - 1)


def _edited(case, seed, by_numpy):
    """A trace of its own that somebody writes into: with torch, which counts it, or through numpy, which does not."""

    def run():
        g = torch.Generator().manual_seed(seed)
        d = case.build(case.logits((3,)).requires_grad_(), validate_args=bool(seed % 2))
        trace = d.sample_trace((2,), generator=g)
        for x in (trace.choices, trace.links):
            for _ in range(1 + seed % 3):
                if x.numel() > 0:
                    where = int(torch.randint(x.numel(), (), generator=g))
                    number = NUMBERS[int(torch.randint(len(NUMBERS), (), generator=g))]
                    flat = x.view(-1).numpy() if by_numpy else x.view(-1)
                    flat[where] = number
        _use(d, trace)

    return run


def _use(d, trace):
    """Every way to hand a trace to a distribution. Each may refuse it."""
    uses = [
        lambda: torch.autograd.grad(d.trace_log_prob(trace).sum(), d.logits),
        lambda: torch.autograd.grad(d.conditional(trace).sum(), d.logits),
        lambda: d.decision_log_totals(trace),
        lambda: trace.value,
        lambda: trace.winners,
        lambda: trace.equals(trace),
        lambda: trace[0].value,
        lambda: steps(d.item((0,)), trace[0, 0]),
    ]
    refused = []
    for use in uses:
        try:
            use()
        except Exception as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _changed_later(make, argument, dtype):
    """An argument that is written into once the distribution is made."""

    def run():
        given = torch.tensor(argument, dtype=dtype)
        d = make(given)
        trace = d.sample_trace((2,))
        for number in (10**6, -5, 2**31 - 1):
            given.numpy().fill(number)
            d.sample((3,))
            _use(d, trace)
            _use(d, d.sample_trace((2,)))

    return run


def _with_k(k):
    return gt.Subset(torch.zeros(2, 4, requires_grad=True), k)


def _with_edges(edges, **more):
    return gt.SpanningTree.from_edges(torch.zeros(2, 4, requires_grad=True), edges, 4, **more)


def _with_lengths(structure):
    return lambda lengths: structure(torch.zeros(2, 4, 4, requires_grad=True), lengths=lengths)


GRAPH = [[0, 1, 2, 0], [1, 2, 3, 3]]
ARGUMENTS = {  # how one is made, and what its user owns
    "Subset: k": (_with_k, [1, 2]),
    "SpanningTree: lengths": (_with_lengths(gt.SpanningTree), [4, 2]),
    "Arborescence: lengths": (_with_lengths(gt.Arborescence), [4, 2]),
    "sparse tree: edges": (_with_edges, GRAPH),
    "sparse tree: lengths": (lambda n: _with_edges(torch.tensor(GRAPH), lengths=n), [4, 2]),
}


def _all():
    for case in CASES:
        for seed in EDITS:
            yield f"{case}: trace edited, {seed}", _edited(case, seed, by_numpy=False)
            yield f"{case}: trace edited through numpy, {seed}", _edited(case, seed, by_numpy=True)
    for name, (make, argument) in ARGUMENTS.items():
        for dtype in (torch.int32, torch.int64):
            yield f"{name}, {dtype}, written into later", _changed_later(make, argument, dtype)
    for case in CASES:
        for name, value in HUGE.items():
            yield f"{case}: sample from {name}", _sample(case, value)
            yield f"{case}: a good trace under {name}", _given(case, value)
            yield f"{case}: noise {name}", _trace(case, value)
        for value in (0, 1, -3, 10**9, -(10**9)):
            yield f"{case}: log_prob of {value}", _log_prob(case, value)
    for value in ([1, 2, 0], [0, 0, 0], [-1, -1, -1], [1, 0, -1], [2, 2, -1]):
        for structure in (gt.BinaryTree, gt.Permutation):
            d = structure(torch.zeros(3), validate_args=False)
            yield f"{structure.__name__}: log_prob of {value}", lambda d=d, v=value: d.log_prob(torch.tensor(v))


HOSTILE = dict(_all())


def run_all(names: list[str]) -> dict[str, str]:
    """What each said. A child runs them in turn; where it dies, the next child continues behind that place."""
    answered: dict[str, str] = {}
    while len(answered) < len(names):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            for name in names[len(answered) :]:
                signal.alarm(20)
                os.write(write, (json.dumps(_ending(HOSTILE[name])) + "\n").encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answers = [json.loads(line) for line in pipe]
        _, status = os.waitpid(child, 0)
        if status != 0:
            answers.append(f"crashed: {signal.Signals(os.WTERMSIG(status)).name}")
        answered |= zip(names[len(answered) :], answers, strict=False)
    return answered


def _ending(run) -> str:
    try:
        run()
    except Exception as error:
        return "".join(traceback.format_exception_only(error)).strip()
    return "returned"


def main() -> None:
    torch.set_num_threads(1)  # torch's own threads do not survive a fork
    warnings.simplefilter("ignore")
    for case in CASES:  # compile in the parent
        _given(case, 0.0)()
        _trace(case, 0.0)()
    print(json.dumps(run_all(list(HOSTILE))))


if __name__ == "__main__":
    main()
