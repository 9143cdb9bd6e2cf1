"""What must hold of every item: which keys race, its trace, its value, its log-probability and the derivatives of that.

A tolerance is what rounding in the dtype, of relative size eps, may do to the terms of a sum.
"""

from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from gumtrace.fuzz import formula
from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.subject import Subject, U, Wrong, padded
from gumtrace.traces.trace import Trace

FAR = 60.0  # kernels take e^(x - top) in the dtype as long as that spreads no further, so it is off by as many eps


def refused(case: Case, tally: Counter) -> bool:
    """Whether the case is one to refuse; that it is, and how, is checked."""
    good = case.feasible & case.finite
    if good.all():
        return False
    tally["refusal"] += int((~good).sum())
    show = ("d.sample_trace()",)
    try:
        case.build()
    except ValueError:
        pass
    except Exception as error:
        raise Wrong("refusal", f"expected a ValueError, got {_told(error)}", None, show) from error
    else:
        item = int((~good).argmax())
        why = "a nan or +inf races" if not case.finite[item] else "it cannot be completed"
        raise Wrong("refusal", f"expected a ValueError: {why}", item, show)
    with suppress(Exception):  # without checks: any answer, or an error
        case.build(validate_args=False).sample_trace()
    return True


def racing(s: Subject) -> None:
    ours = s.d.racing.cpu().reshape(s.case.racing.shape).numpy()
    s.tally["racing"] += len(ours)
    if not np.array_equal(ours, s.case.racing):
        item = int((ours != s.case.racing).any(1).argmax())
        raise Wrong("racing", f"expected {s.case.racing[item]}, got {ours[item]}", item, ("print(d.racing)",))


def traces(s: Subject) -> None:
    show = (*s.shown, "print(trace.winners)", "print(trace.value)")
    same_winners(s, "trace", s.trace, s.outcome.winners, show)
    value = s.trace.value
    wanted = (*s.case.samples, *s.case.batch, *s.d.event_shape)
    if tuple(value.shape) != wanted:
        raise Wrong("value", f"expected shape {wanted}, got {tuple(value.shape)}", None, show)
    s.same("value", s.rows(value), s.outcome.value.astype(float).reshape(s.case.items, s.d.event_shape.numel()), show)
    s.tally["unsure"] += int(s.outcome.unsure.sum())


def same_winners(s: Subject, check: str, trace: Trace, expected: np.ndarray, show: tuple[str, ...]) -> None:
    """In order, or as sets where decisions have none."""
    ours, expected = padded(s.winners(trace), expected)
    if not s.case.kind.ordered:
        ours, expected = np.sort(ours, 1), np.sort(expected, 1)
    s.same(check, ours, expected, show)


def support(s: Subject) -> None:
    """The value is in it; with one entry changed it is not."""
    try:
        constraint: Any = s.d.support
    except NotImplementedError:  # values of a user's `combine`
        return
    value = s.trace.value
    show = (*s.shown, "print(d.support.check(trace.value))")
    s.holds("support", s.each(constraint.check(value)) > 0, "the value is not in the support", show)
    if not s.case.kind.tight_support or s.d.event_shape.numel() == 0:
        return
    other = value.clone().reshape(s.case.items, s.d.event_shape.numel())
    other[:, 0] = s.case.kind.changed(other[:, 0])
    show = ("# one entry of the value is changed", *show)
    outside = s.each(constraint.check(other.reshape(value.shape))) == 0
    s.holds("support", outside, "a value with a changed entry is in the support", show)


def log_prob(s: Subject) -> None:
    show = (*s.shown, "print(d.trace_log_prob(trace))")
    ours = s.d.trace_log_prob(s.trace)
    expected = formula.log_prob(s.held, s.outcome)
    totals = formula.log_totals(s.held, s.outcome)
    decisions = (s.outcome.winners >= 0).sum(1)
    off = s.eps * (4 + np.minimum(s.spread, FAR)) * decisions + (2 * s.eps + U * decisions) * np.abs(expected)
    tolerance = off + s.case.of_items(s.rounding) * decisions
    s.compare("trace_log_prob", s.each(ours), expected, tolerance, show)
    _totals(s, totals)
    _gradient(s, ours)


def _totals(s: Subject, expected: np.ndarray) -> None:
    ours = s.rows(s.d.decision_log_totals(s.trace))
    winners = s.winners(s.trace)
    if not s.case.kind.ordered:
        ours = np.take_along_axis(ours, winners.argsort(1), 1)
        expected = np.take_along_axis(expected, s.outcome.winners.argsort(1), 1)
        width = max(ours.shape[1], expected.shape[1])  # slots without a decision come first
        ours, expected = (np.pad(x, ((0, 0), (width - x.shape[1], 0))) for x in (ours, expected))
    ours, expected = padded(ours, expected, 0)
    tolerance = s.eps * (4 + np.minimum(s.spread, FAR)[:, None] + 2 * np.abs(expected)) + U * s.keys  # a sum of keys
    s.compare("decision_log_totals", ours, expected, tolerance, (*s.shown, "print(d.decision_log_totals(trace))"))


def _gradient(s: Subject, ours: torch.Tensor) -> None:
    show = (*s.shown, "d.trace_log_prob(trace).sum().backward()  # the check weights items", "print(logits.grad)")
    weight = s.weights(s.case.items)
    to_items = torch.from_numpy(weight).to(ours.device, ours.dtype).reshape(ours.shape)
    (grad,) = torch.autograd.grad((ours * to_items).sum(), s.logits, retain_graph=True)
    expected = by_row(s, formula.gradient(s.held, s.outcome, weight))
    terms = by_row(s, formula.gradient(s.held, s.outcome, np.abs(weight), added=True))
    relative = s.eps * (8 + FAR + s.outcome.winners.shape[1]) + 2 * s.rounding[:, None]
    if s.on_device:  # log-probabilities of decisions are kept in the dtype, for a trace that may be most improbable
        relative = relative + 2 * s.eps * by_row(s, np.abs(formula.log_prob(s.held, s.outcome))[:, None])
    check_gradient(s, "log-prob gradient", grad, expected, relative * terms + 1e-30, show)


def check_gradient(s: Subject, check: str, grad: torch.Tensor, expected, tolerance, show) -> None:
    """(*batch, *keys) against (rows, keys): 0 where no key races, finite, and right. A half type has its own eps."""
    ours = grad.detach().to("cpu", torch.float64).reshape(s.case.racing.shape).numpy()
    s.tally[check] += s.case.items
    for good, message in (
        ((ours == 0) | s.case.racing, "the gradient is not 0 at a key that does not race"),
        (np.isfinite(ours), "the gradient is not finite"),
    ):
        if not good.all():
            raise Wrong(check, message, int((~good).any(1).argmax()), show)
    if expected is not None:
        half = 2 * torch.finfo(s.case.logits.dtype).eps if s.case.logits.dtype != s.dtype else 0.0
        bad = ~(np.abs(ours - expected) <= tolerance + half * np.abs(expected) + (6e-8 if half else 0.0))
        if bad.any():
            row = int(bad.any(1).argmax())
            message = f"expected {expected[row].tolist()}, got {ours[row].tolist()}"
            raise Wrong(check, message, row, show)


def by_row(s: Subject, x: np.ndarray) -> np.ndarray:
    """Sums over samples: (items, ...) -> (rows, ...)."""
    return x.reshape(s.case.items // max(s.case.rows, 1), s.case.rows, *x.shape[1:]).sum(0)


def curvature(s: Subject) -> None:
    """A gradient with a graph, and the second derivative: written with other kernels than the first one."""
    if s.size.max(initial=0) > 50 or s.case.items == 0 or s.case.logits.dtype != s.dtype:
        return
    show = (*s.shown, "(g,) = torch.autograd.grad(d.trace_log_prob(trace).sum(), logits, create_graph=True)")
    (first,) = torch.autograd.grad(s.d.trace_log_prob(s.trace).sum(), s.logits, create_graph=True)
    expected = by_row(s, formula.gradient(s.x, s.outcome, np.ones(s.case.items)))
    scale = max(1e-11, 400 * s.eps) * (1 + s.outcome.winners.shape[1]) * (s.case.items / s.case.rows)
    check_gradient(s, "gradient with a graph", first, expected, scale, (*show, "print(g)"))
    along = s.weights(s.case.rows, s.keys)
    direction = torch.from_numpy(along).to(first.device, first.dtype).reshape(first.shape)
    if not first.requires_grad:
        return
    (second,) = torch.autograd.grad((first * direction).sum(), s.logits, retain_graph=True)
    expected = by_row(s, formula.curvature(s.x, s.outcome, s.case.of_items(along)))
    show = (*show, "print(torch.autograd.grad(g.sum(), logits))  # the check weights keys")
    check_gradient(s, "second derivative", second, expected, 8 * scale, show)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
