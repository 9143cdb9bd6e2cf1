"""Checks of noise: what is drawn, its density, and noise given a trace, which must give the trace back."""

import warnings

import numpy as np
import torch

from gumtrace.fuzz import formula
from gumtrace.fuzz.checks import by_row, check_gradient, same_winners
from gumtrace.fuzz.subject import Subject, padded
from gumtrace.traces.trace import Trace

FEW = 4  # samples


def sampling(s: Subject) -> None:
    seeded = f"{s.case.samples}, generator=torch.Generator({s.case.device!r}).manual_seed({s.case.seed})"
    show = (f"noise = d.perturb({seeded})", f"trace = d.sample_trace({seeded})")
    noise = s.d.perturb(s.case.samples, generator=s.case.generator())
    pattern(s, "perturb", noise, (show[0], "print(noise)"))
    if noise.requires_grad:
        (grad,) = torch.autograd.grad(torch.where(noise.isneginf(), 0.0, noise).sum(), s.logits, retain_graph=True)
        each = s.case.racing * (s.case.items / max(s.case.rows, 1))
        check_gradient(s, "perturb gradient", grad, each, 1e-6 * each, (show[0], "noise.sum().backward()"))
    drawn = s.d.sample_trace(s.case.samples, generator=s.case.generator())
    both = (*show, "print(trace.winners, d.trace(noise).winners)")
    same = s.each(s.d.trace(noise.detach()).equals(drawn))
    s.holds("sample_trace", same > 0, "sample_trace is not trace of perturb with the same seed", both)
    same_winners(s, "sample_trace", drawn, s.oracle(noise, drawn).winners, both)
    given_trace(s, "conditional", drawn, (show[1],), certain=True)


def pattern(s: Subject, check: str, noise: torch.Tensor, show: tuple[str, ...]) -> np.ndarray:
    """Finite where a key races, -inf elsewhere."""
    g = s.rows(noise)
    s.holds(check, ~s.racing | np.isfinite(g), "noise is not finite at a key that races", show)
    s.holds(check, s.racing | (g == -np.inf), "noise is not -inf at a key that does not race", show)
    return g


def density(s: Subject) -> None:
    ours = s.each(s.d.noise_log_prob(s.noise))
    kind = np.float32 if s.dtype == torch.float32 else np.float64
    with np.errstate(over="ignore", invalid="ignore"):
        g = np.where(s.racing, s.rows(s.case.noise), 0.0).astype(kind)
        t = (np.where(s.racing, s.x, 0.0).astype(kind) - g).astype(np.float64)
        e = np.where(s.racing, np.exp(t), 0.0)
        expected = np.where(np.isinf(e).any(1), -np.inf, (np.where(s.racing, t, 0.0) - e).sum(1))
        size = np.where(np.isfinite(expected), (np.abs(t) * (1 + e) + e).sum(1), 0.0)
    show = (s.case.noise_line(), "print(d.noise_log_prob(noise))")
    s.compare("noise_log_prob", ours, expected, s.eps * (8 + s.keys) * size, show)


def given_any_trace(s: Subject) -> None:
    """The trace of noise that may be most improbable under these logits."""
    given_trace(s, "conditional of any trace", s.trace, s.shown, certain=False)


def given_trace(s: Subject, check: str, trace: Trace, show: tuple[str, ...], certain: bool) -> None:
    """G | T gives T back, by the oracle and by the library. An algorithm that subtracts may lose a trace that the dtype
    cannot tell from another, with a warning; one that was drawn under ordinary logits, never."""
    seeded = f"generator=torch.Generator({s.case.device!r}).manual_seed({s.case.seed + 1})"
    show = (*show, f"again = d.conditional(trace, {seeded})")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        again = s.d.conditional(trace, generator=s.case.generator(1))
    g = pattern(s, check, again, (*show, "print(again)"))
    show = (*show, "print(trace.winners, d.trace(again).winners)")
    kept = s.each(s.d.trace(again.detach()).equals(trace)) > 0
    lost = any(issubclass(w.category, RuntimeWarning) for w in warned)
    if not (lost and (not certain or s.spread.max(initial=0) > 15)):
        s.holds(check, kept, "the trace is lost", show)
    outcome = s.oracle(again, trace)
    ours, expected = padded(s.winners(trace), outcome.winners)
    if not s.case.kind.ordered:
        ours, expected = np.sort(ours, 1), np.sort(expected, 1)
    s.holds(check, (ours == expected).all(1) | ~kept, "the oracle finds another trace", show)
    if again.requires_grad and certain:
        _conditional_gradient(s, again, g, outcome, bool(kept.all()), show)


def _conditional_gradient(s: Subject, again, g: np.ndarray, outcome, kept: bool, show: tuple[str, ...]) -> None:
    weight = s.weights(s.case.items, s.keys)
    weight[FEW * s.case.rows :] = 0  # of many samples, some: errors add up
    scaled = torch.where(again.isneginf(), 0.0, again) * torch.from_numpy(weight).to(again).reshape(again.shape)
    (grad,) = torch.autograd.grad(scaled.sum(), s.logits, retain_graph=True)
    show = (*show, "again[again.isfinite()].sum().backward()  # the check weights keys", "print(logits.grad)")
    exact = kept and s.case.logits.dtype == s.dtype and s.size.max(initial=0) <= 12 and s.case.rows > 0
    expected = by_row(s, formula.conditional_gradient(s.x, outcome, g, weight)) if exact else None
    off = 1e-6 if s.dtype == torch.float64 else 5e-3  # the minima come from differences of E
    scale = off * (1 + np.abs(weight).sum(1).max(initial=0)) * min(s.case.items // max(s.case.rows, 1), FEW)
    check_gradient(s, "conditional gradient", grad, expected, scale, show)
    if exact and s.case.items <= 200:  # written with other kernels, which can be differentiated again
        (grad,) = torch.autograd.grad(scaled.sum(), s.logits, create_graph=True)
        check_gradient(s, "conditional gradient with a graph", grad, expected, scale, show)
