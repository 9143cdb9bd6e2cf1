"""Gradient estimators with random objectives, against the exact gradient by enumeration.

Means of many estimates are compared in standard errors. FAR of them happen by chance once in 10^14. Where rare traces
count for much, the error is not normal and is itself underestimated: so it is taken to be at least that of
T-REINFORCE, which is known exactly, and Bernstein's inequality adds FAR²/3 times the largest estimate over the number
of them.
"""

import copy
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gumtrace import estimators as E
from gumtrace.fuzz import formula
from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.numbers import literal
from gumtrace.fuzz.oracles import Outcome
from gumtrace.fuzz.subject import Wrong
from gumtrace.fuzz.values import every_outcome

FAR = 8.0
ESTIMATES, SLOW_ESTIMATES = 3000, 150

Objective = Callable[[Tensor], Tensor]


LINEAR = ", linear"  # after the name of an estimator: with a linear surrogate in place of the default
NAMES = [*E.ESTIMATORS, *(name + LINEAR for name, cls in E.ESTIMATORS.items() if "surrogate" in cls.settings())]


def described(name: str) -> type[E.Estimator]:
    return E.ESTIMATORS[name.removesuffix(LINEAR)]


def serves(name: str, case: Case) -> bool:
    return described(name).supports(case.build())


def estimates(case: Case, tally: Counter) -> None:
    """The estimator that the case names, on an unbatched item."""
    name = case.extra
    outcome = every_outcome(case, 0, 500)
    if outcome is None or not serves(name, case):
        return
    rng = np.random.default_rng([case.seed, 3])
    estimator, objective, show = _made(case, name, rng)
    tally[f"estimator {name}"] += 1
    try:
        _measured(case, name, estimator, objective, outcome, (*show, *_many(case)))
        _refuses(case, name, estimator, show)
    except Wrong:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise Wrong(f"{name} ({type(error).__name__})", message, None, (*show, *_many(case))) from error


def _measured(case: Case, name: str, estimator: E.Estimator, objective: Objective, outcome: Outcome, show) -> None:
    """The means of many losses and gradients."""
    with torch.no_grad():
        every = torch.from_numpy(outcome.value.copy()).to(case.device, case.build().sample().dtype)
        losses = objective(every.unsqueeze(1))[:, 0].cpu().double().numpy()
    x = np.repeat(case.x, len(outcome.winners), 0)
    chances = np.exp(formula.log_prob(x, outcome))
    exact = formula.gradient(x, outcome, chances * losses).sum(0)
    count = SLOW_ESTIMATES if case.kind.slow else ESTIMATES
    for _ in range(3):  # what learns has learned something
        _estimate(case, estimator, objective, 64)
    loss, grads = _estimate(case, estimator, objective, count)
    for what, ours in (("loss", loss), ("gradient", grads)):
        if not np.isfinite(ours).all():
            raise Wrong(f"{name}: {what}", f"the {what} is not finite", None, show)
    draws = count * estimator.samples
    rounding = 64 * torch.finfo(case.logits.dtype).eps * (1 + np.abs(losses).max()) * (1 + outcome.winners.shape[1])
    if described(name) is not E.StochasticSoftmax:  # whose value is that of relaxed structures
        spread = (losses - chances @ losses)[:, None]
        _compare(f"{name}: loss", loss[:, None], np.array([chances @ losses]), spread, chances, draws, rounding, show)
    if described(name).unbiased:
        level = chances @ losses if estimator.samples > 1 else 0.0
        spread = formula.gradient(x, outcome, losses - level)
        _compare(f"{name}: gradient", grads, exact, spread, chances, draws, rounding, show)


def _made(case: Case, name: str, rng: np.random.Generator) -> tuple[E.Estimator, Objective, tuple[str, ...]]:
    """Estimator and objective, from code that is shown if they fail."""
    cls = described(name)
    code = _code(case, name, samples=int(rng.choice([1, 2, 4])))
    source = _objective(case, rng, in_place=not cls.differentiates and rng.random() < 0.4)
    names = {"E": E, "torch": torch}
    torch.manual_seed(case.seed)  # for a critic's weights
    exec(source, names)  # our own code, as it is printed
    show = ("from gumtrace import estimators as E", *source.splitlines(), f"estimator = {code}")
    return eval(code, names).to(case.device), names["objective"], show  # type: ignore[return-value]


def _code(case: Case, name: str, samples: int) -> str:
    """That makes the estimator."""
    cls = described(name)
    size = case.key_shape if len(case.key_shape) == 2 else case.racing.shape[1]
    critic = "MatrixCritic" if len(case.key_shape) == 2 else "VectorCritic"
    settings = {
        "critic": f"E.{critic}(size={size}, hidden=8).double()",
        "samples": samples,
        "leave_one_out": samples > 1,
        "extra": 16,
        "draws": 3,
    }
    if name.endswith(LINEAR):
        settings["surrogate"] = "E.LinearSurrogate()"
    taken = ", ".join(f"{key}={value}" for key, value in settings.items() if key in cls.settings())
    return f"E.{cls.__name__}({taken})"


def _many(case: Case) -> tuple[str, ...]:
    """Code for the mean of many estimates."""
    return (
        f"logits = logits.expand({ESTIMATES}, *logits.shape).clone().requires_grad_()",
        *[f"loss = estimator({case.kind.call(case.settings, case)}, objective)"] * 2,
        "print(loss.mean(), torch.autograd.grad(loss.sum(), logits)[0].mean(0))",
    )


def _estimate(case: Case, estimator: E.Estimator, objective: Objective, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses (count,) and gradients (count, keys), each an estimate of its own: an item of a batch."""
    logits = case.logits.to(case.device).expand(count, *case.logits.shape).clone().requires_grad_()
    generator = case.generator(count)
    loss = estimator(case.build(logits), objective, generator=generator)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach().cpu().double().numpy(), grad.cpu().double().reshape(count, case.racing.shape[1]).numpy()


def _compare(
    check: str, ours, exact: np.ndarray, spread: np.ndarray, chances, draws: int, rounding: float, show
) -> None:
    """Estimates (count, keys) against the exact mean; `spread` (traces, keys) is what a trace adds to T-REINFORCE."""
    known = np.sqrt((chances @ spread**2) / draws)
    error = np.maximum(ours.std(0, ddof=1) / np.sqrt(len(ours)), known)
    allowed = FAR * error + FAR**2 / 3 * np.abs(spread).max(0) / draws + rounding
    bad = ~(np.abs(ours.mean(0) - exact) <= allowed)
    if bad.any():
        k = int(bad.argmax())
        message = f"expected {exact[k]:.6g} at key {k}, got {ours.mean(0)[k]:.6g} ± {error[k]:.2g}"
        raise Wrong(check, message, None, show)


def _objective(case: Case, rng: np.random.Generator, in_place: bool) -> str:
    """Linear, quadratic, or a table by a wild function; a constant may be added; it may write into its argument."""
    shape = case.build().event_shape
    weight = torch.from_numpy(np.asarray(np.round(rng.normal(size=tuple(shape)), 3)))
    moved = "" if case.device == "cpu" else f".to({case.device!r})"
    way = str(rng.choice(["score", "score + score.square()", "torch.sin(7 * score)"]))
    offset = float(rng.choice([0.0, 0.0, 3.0, -50.0]))
    return "\n".join(
        [
            f"weight = {literal(weight)}{moved}",
            "def objective(x):",
            "    x = x.mul_(2).sub_(1)" if in_place else "    x = 2 * x - 1",
            f"    score = (x.double() * weight){f'.flatten(x.dim() - {len(shape)}).sum(-1)' if shape else ''}",
            f"    return {way} + {offset}",
        ]
    )


# Losses that are none ------------------------------------------------------------------------------


def _refuses(case: Case, name: str, estimator: E.Estimator, show: tuple[str, ...]) -> None:
    """A loss that is not finite, or not real, is an error, and the estimator stays as it was."""
    dims = len(case.build().event_shape)
    before = copy.deepcopy(estimator.state_dict())
    for bad in (torch.nan, torch.inf, -torch.inf, 1j):
        built = case.kind.call(case.settings, case)
        script = (*show, "logits = logits.expand(3, *logits.shape).clone().requires_grad_()")
        script = (*script, f"print(estimator({built}, lambda x: objective(x) + {bad}))")

        def objective(x: Tensor, bad=bad) -> Tensor:
            score = x.double().flatten(x.dim() - dims).sum(-1) if dims else x.double() + 0
            return score + torch.where(torch.arange(score.shape[-1], device=x.device) == 1, bad, 0.0)

        try:
            _estimate(case, estimator, objective, 3)
        except (ValueError, TypeError):
            pass
        else:
            raise Wrong(f"{name}: a loss of {bad}", "expected an error", None, script)
        after = estimator.state_dict()
        if not all(torch.equal(before[key], after[key]) for key in before):
            raise Wrong(f"{name}: a loss of {bad}", "the estimator remembers it", None, script)


def empty(case: Case, tally: Counter) -> None:
    """Every estimator on a batch without items, and on items without keys where there are such."""
    for name in NAMES:
        if not serves(name, case):
            continue
        estimator, _, show = _made(case, name, np.random.default_rng([case.seed, 5]))
        dims = len(case.build().event_shape)
        logits = case.leaf()
        summed = f".flatten(x.dim() - {dims}).sum(-1)" if dims else ""
        show = (*show, f"loss = estimator(d, lambda x: x.double(){summed})", "torch.autograd.grad(loss.sum(), logits)")
        tally["estimators of nothing"] += 1

        def objective(x: Tensor, dims=dims) -> Tensor:
            return x.double().flatten(x.dim() - dims).sum(-1) if dims else x.double()

        try:
            loss = estimator(case.build(logits), objective)
            torch.autograd.grad(loss.sum(), logits, allow_unused=True)
        except Exception as error:
            raise Wrong(f"{name} of nothing", f"got {type(error).__name__}: {error}", None, show) from error
        if tuple(loss.shape) != case.batch or not loss.isfinite().all():
            raise Wrong(f"{name} of nothing", f"expected losses of shape {case.batch}, got {loss}", None, show)
