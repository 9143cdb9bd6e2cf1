"""What must hold before anything is timed: a fast wrong answer has no speed."""

import torch
from torch import Tensor

from gumtrace.benchmark.cases import BATCH, Case, Instance, prepare
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace


class CheckFailed(AssertionError):
    """A correctness check of a case failed, so it is not timed."""


def check_case(
    case: Case, *, batch: int = BATCH, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> None:
    """The checks of one case; raises CheckFailed with what failed."""
    check(prepare(case, batch, device, dtype))


def check(instance: Instance) -> None:
    """Values lie in the support, traces survive `conditional`, log-probabilities are possible ones, traces are small,
    and the probabilities of all traces of a tiny instance sum to one."""
    case, logits = instance.case, instance.logits
    generator = torch.Generator(device=logits.device).manual_seed(1)
    d = instance.make(logits)
    trace = d.trace(d.perturb(generator=generator))
    _require(case, _in_support(d, trace.value), "values outside the support")
    again = d.trace(d.conditional(trace, generator=generator))
    _require(case, trace.equals(again), "traces that `trace(conditional(trace))` does not give back")
    log_prob = d.trace_log_prob(trace)
    rounding = torch.finfo(logits.dtype).eps * trace.layout.geometry.decisions
    _require(case, log_prob.isfinite() & (log_prob <= rounding), "trace_log_prob that is not finite and at most 0")
    if trace_bytes(trace) > logits.nbytes:
        raise CheckFailed(
            f"{case.name}: a trace takes {trace_bytes(trace)} bytes, more than the logits' {logits.nbytes}"
        )
    _check_enumeration(case.tiny, logits)


def _check_enumeration(tiny: Case, like: Tensor) -> None:
    instance = prepare(tiny, None, like.device, like.dtype)
    d = instance.make(instance.logits)
    total = d.trace_log_prob(d.enumerate_traces()).double().exp().sum().item()
    if not abs(total - 1) < 1e-4:
        raise CheckFailed(f"{tiny.name}: the probabilities of all traces sum to {total:.6f}, not to 1")


def _require(case: Case, good: Tensor, what: str) -> None:
    if not good.all():
        raise CheckFailed(f"{case.name}: {int((~good).sum())} of {good.numel()} items have {what}")


def _in_support(d: Structure, value: Tensor) -> Tensor:
    support = d.support
    assert support is not None  # torch types it as optional
    return support.check(value)


def trace_bytes(trace: Trace) -> int:
    """What a trace keeps."""
    return trace.choices.nbytes + trace.links.nbytes
