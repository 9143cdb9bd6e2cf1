"""Checks of the structure itself: log P(X) against the sum over all traces, and soft structures."""

import math

import numpy as np
import torch

import gumtrace as gt
from gumtrace.fuzz import formula
from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.oracles import Outcome
from gumtrace.fuzz.recursions import every_run
from gumtrace.fuzz.structures import written_out
from gumtrace.fuzz.subject import Subject, Wrong, flat
from gumtrace.relaxations import has_relaxation

MOST_TRACES = 200  # of an item whose traces are all written down
HELD = 2.0**990  # log-rates this far below the largest count as this far in sums over traces


def every_outcome(case: Case, row: int, most: int = MOST_TRACES) -> Outcome | None:
    """All runs of one item; None if there are more than `most`."""
    runs = list(every_run(case.kind.play(case, row), most + 1))
    if len(runs) > most:
        return None
    winners, members = written_out(runs, case.racing.shape[1])
    return Outcome(winners, members, case.kind.values(case, row, winners, runs), np.zeros(len(runs), bool))


def by_value(outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """Which run is the first of each value, and which value each run has."""
    _, first, which = np.unique(flat(outcome.value, len(outcome.value)), axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def log_prob_of_value(s: Subject) -> None:
    """On one item of the batch, if all its traces can be written down."""
    if s.case.rows == 0 or s.keys > 20:
        return
    row = s.case.seed % s.case.rows
    outcome = every_outcome(s.case, row)
    if outcome is None:
        return
    index = tuple(int(i) for i in np.unravel_index(row, s.case.batch)) if s.case.batch else ()
    item = s.d.item(index)
    first, which = by_value(outcome) if s.d.event_shape.numel() else (np.zeros(1, np.int64), np.zeros(1, np.int64))
    dtype = s.trace.value.dtype
    value = torch.from_numpy(outcome.value[first]).to(s.case.device, dtype)
    show = (
        f"item = d.item({index})",
        f"value = torch.tensor({value.tolist()}, dtype={dtype})",
        "print(item.log_prob(value))",
    )
    if not s.case.kind.tractable:
        try:
            item.log_prob(value)
        except NotImplementedError:
            return
        raise Wrong("log_prob", "expected a NotImplementedError", row, show)
    x = np.repeat(s.case.x[row : row + 1], len(outcome.winners), 0)
    if s.case.kind.one_to_one:  # whose log-probability is that of a trace
        x = np.where(np.isfinite(x), np.clip(x, -s.largest, s.largest), x)
    each = formula.log_prob(x, outcome)
    expected = np.array([_log_sum(each[which == v]) for v in range(len(first))])
    ours = item.log_prob(value)
    with np.errstate(invalid="ignore", over="ignore"):
        off = s.eps * (32 + 4 * np.where(np.isfinite(expected), np.abs(expected), 0.0))
        off = off + 4 * s.rounding[row] * outcome.winners.shape[1]
        off = np.where((expected < -HELD) & (ours.detach().cpu().double().numpy() < -HELD / 2), np.inf, off)
    s.compare("log_prob", ours.detach().cpu().double().numpy(), expected, off, show)
    if s.case.logits.dtype == s.dtype and s.size[row] < 30:
        _gradient(s, item, ours, outcome, x, each, which, expected, row, show)


def _log_sum(x: np.ndarray) -> float:
    top = x.max()
    return float(top + np.log(np.exp(x - top).sum())) if np.isfinite(top) else float(top)


def _gradient(s: Subject, item, ours, outcome, x, each, which, expected, row: int, show) -> None:
    """Σ over values of weight · log P(X): the mean of ∇ log P(T) over the traces of each value."""
    weight = s.weights(len(expected), seed=1)
    by_trace = weight[which] * np.exp(each - expected[which])
    wanted = formula.gradient(x, outcome, by_trace).sum(0)
    if not ours.requires_grad:
        return
    (grad,) = torch.autograd.grad((ours * torch.from_numpy(weight).to(ours)).sum(), s.logits, retain_graph=True)
    got = grad.detach().cpu().double().reshape(s.case.racing.shape).numpy()[row]
    s.tally["log_prob gradient"] += 1
    scale = max(1e-9, 400 * s.eps) * np.abs(weight).sum() * (1 + outcome.winners.shape[1])
    if not np.abs(got - wanted).max(initial=0) <= scale:
        raise Wrong("log_prob gradient", f"expected {wanted.tolist()}, got {got.tolist()}", row, show)


# Soft structures -----------------------------------------------------------------------------------


def relaxed(s: Subject) -> None:
    """In the polytope, with finite gradients, whatever noise and temperature are; an error where scores overflow."""
    if not has_relaxation(s.d) or s.case.items == 0 or s.keys > 300:
        return
    rng = np.random.default_rng([s.case.seed, 7])
    kind = str(rng.choice(s.d.relaxations))
    ordinary = rng.random() < 0.6
    temperature = 10.0 ** rng.uniform(-2, 1) if ordinary else rng.choice([1e-42, 1e-38, 1e-30, 1e-5, 1e30])
    rows = np.unique(rng.integers(0, s.case.rows, 6))
    few = s.case.take(rows.tolist(), [0])
    few = few.change(noise=few.noise[0])
    try:
        _soft(Subject(few, s.tally), float(temperature), kind, ordinary)
    except Wrong as wrong:
        item = None if wrong.item is None else int(rows[wrong.item])
        raise Wrong(wrong.check, wrong.message, item, wrong.show, few) from wrong


def _soft(s: Subject, temperature: float, kind: str, ordinary: bool) -> None:
    noise = s.noise.detach().requires_grad_()
    show = (s.case.noise_line(), f"print(gt.relax(d, noise, {temperature!r}, {kind!r}))")
    largest = np.abs(np.where(s.racing, s.rows(s.case.noise), 0.0)).max(initial=0.0)
    s.tally["relax"] += s.case.rows
    try:
        soft = gt.relax(s.d, noise, temperature, kind)
    except ValueError as error:
        if largest / temperature > torch.finfo(s.dtype).max * 1e-4:
            return
        raise Wrong("relax", f"ValueError: {error}", None, show) from error
    x = soft.detach().cpu().double().reshape(s.case.rows, *s.d.event_shape).numpy()
    _inside(s, x, show)
    if ordinary and largest < 1e4:
        (grad,) = torch.autograd.grad((soft * soft.detach().cos()).sum(), noise, allow_unused=True)
        if grad is not None and not grad[torch.from_numpy(s.case.racing).reshape(noise.shape)].isfinite().all():
            raise Wrong("relax", "the gradient to the noise is not finite", None, show)
        with torch.no_grad():  # twice the noise at twice the temperature are the same scores
            again = gt.relax(s.d, 2 * s.noise, 2 * temperature, kind)
        if not torch.allclose(again, soft, rtol=0.0, atol=64 * s.eps * max(s.keys, 1)):
            raise Wrong("relax", f"another one for twice the noise at {2 * temperature!r}", None, show)


def _inside(s: Subject, x: np.ndarray, show: tuple[str, ...]) -> None:
    off = 1e-4 * math.sqrt(max(s.keys, 1)) if s.dtype == torch.float32 else 1e-8 * max(s.keys, 1)
    within = flat((x >= -off) & (x <= 1 + off), len(x)).all(1)  # nan is neither
    if not within.all():
        row = int((~within).argmax())
        raise Wrong("relax", f"not between 0 and 1: {x[row].tolist()}", row, show)
    for name, ours, wanted, exact in s.case.kind.sums(s.case, x):
        far = (np.abs(ours - wanted) if exact else ours - wanted) > off * 8
        if far.any():
            row = int(flat(far, len(far)).any(1).argmax())
            raise Wrong("relax", f"{name}: expected {wanted[row].tolist()}, got {ours[row].tolist()}", row, show)
