"""Tables of training_variance.py: the noise of every estimator at three points of training, and what surrogates
explain there."""

import json
import math
from pathlib import Path
from typing import Any

from gumtrace.estimators import ESTIMATORS

RESULTS = Path(__file__).parent / "results" / "training-variance.json"
PLAIN = "TraceREINFORCE"
POINTS = ("beginning", "half-way", "end")
LEARNT = "graph layout, with the surrogate"
METRICS = {"graph layout": ("elbo", "precision"), "ListOps": ("accuracy", "precision")}
KINDS = {"graph layout": {"SurrogateREINFORCE": "graph", "MLP": "MLP"}, "ListOps": {"SurrogateREINFORCE": "MLP"}}


def load() -> dict[str, Any]:
    return json.loads(RESULTS.read_text())


def label(model: str, estimator: str) -> str:
    """As in other tables; of surrogates with their kind."""
    kind = KINDS[model].get(estimator)
    return f"Surrogate, {kind}" if kind else ESTIMATORS[estimator].label


def is_unbiased(estimator: str) -> bool:
    return estimator not in ESTIMATORS or ESTIMATORS[estimator].unbiased


def ratios(results: dict[str, Any], model: str) -> dict[tuple[str, str], dict[str, float]]:
    """By estimator and point: the standard deviation relative to T-REINFORCE+'s at as many calls (`calls`, with the
    error `error`) and in the same time (`time`), and the bias in parts of the gradient (`bias`)."""
    records = [r for r in results["gradients"] if r["model"] == model]
    plain = {r["point"]: r for r in records if r["estimator"] == PLAIN}
    times = {r["estimator"]: r["ms"] for r in results["updates"] if r["model"] == model.partition(",")[0]}
    found = {}
    for r in records:
        base = plain[r["point"]]
        ratio = r["std"] / base["std"]
        calls = ratio * math.sqrt(r["calls"] / base["calls"])
        error = calls * math.hypot(r["std_error"] / r["std"], base["std_error"] / base["std"])
        bias = math.sqrt(max(0.0, r["bias"] ** 2 - r["chance"] ** 2)) / r["gradient"]
        longer = times[r["estimator"]] / times[PLAIN]
        found[r["estimator"], r["point"]] = {
            "calls": calls,
            "time": ratio * math.sqrt(longer),
            "error": error,
            "bias": bias,
        }
    return found


def best(results: dict[str, Any], model: str, point: str, at: str = "calls") -> tuple[str, float]:
    """The unbiased estimator of the least standard deviation at equal calls or time, and its ratio."""
    found = ratios(results, model)
    rows = [(e, r[at]) for (e, p), r in found.items() if p == point and is_unbiased(e)]
    return min(rows, key=lambda row: row[1])


def variance(results: dict[str, Any]) -> str:
    """A table of the models, and one for each experiment with a row for each estimator."""
    s, m = results["settings"], results["machine"]
    sizes = "; ".join(f"{model}: {items} items, {count} estimates" for model, (items, count) in s["measured"].items())
    parts = [
        f"By `experiments/benchmarks/training_variance.py` on one thread of {m['cpu']}, torch {m['torch']}, "
        f"{m['date']}. Standard deviations relative to T-REINFORCE+'s, root mean squares over the logits of "
        f"items of the validation set ({sizes}), each of {s['calls']} objective calls for an item (REBAR: 9); behind "
        "±, the standard error of a ratio. In brackets the bias in percent of the gradient, as far as it is more than "
        f"chance. What learns has done so on {s['fit']} batches of the training set, with the model frozen. *Equal "
        "time* is the same number if the time of a whole update went into more calls.",
        models(results),
    ]
    for model in KINDS:
        found = ratios(results, model)
        times = {r["estimator"]: r["ms"] for r in results["updates"] if r["model"] == model}
        points = [f"{at}, {point}" for at in ("equal calls", "equal time") for point in POINTS]
        lines = [f"| {model} | {' | '.join(points)} | ms an update |", "|---|" + "---:|" * (len(points) + 1)]
        for estimator in times:
            cells = [_cell(results, model, found, estimator, point, at) for at in ("calls", "time") for point in POINTS]
            lines.append(f"| {label(model, estimator)} | {' | '.join(cells)} | {times[estimator]:.0f} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _cell(results: dict, model: str, found: dict, estimator: str, point: str, at: str) -> str:
    row = found[estimator, point]
    number = f"{row[at]:.2f}"
    if (estimator, row[at]) == best(results, model, point, at):
        number = f"**{number}**"
    if at == "time":
        return number
    number += f" ± {row['error']:.2f}" if estimator != PLAIN else ""
    return number if is_unbiased(estimator) else f"{number} ({100 * row['bias']:.0f})"


def models(results: dict[str, Any]) -> str:
    """How far training was at each point."""
    lines = [
        "| | | updates | on validation | entropy, nats | T-REINFORCE+'s standard deviation, in gradients |",
        "|---|---|---:|---|---:|---:|",
    ]
    for model, metrics in METRICS.items():
        for point in POINTS:
            about = {"model": model, "point": point}
            at, nats = (_only(results[part], about) for part in ("training", "within"))
            plain = _only(results["gradients"], {**about, "estimator": PLAIN})
            shown = ", ".join(_metric(name, at) for name in metrics)
            cells = [model, point, f"{at['iteration']:,}", shown, f"{nats['nats']:.1f}"]
            lines.append(f"| {' | '.join(cells)} | {plain['std'] / plain['gradient']:.1f} |")
    return "\n".join(lines)


def _metric(name: str, at: dict[str, float]) -> str:
    if name == "elbo":
        return f"ELBO {at[name]:.0f}".replace("-", "−")
    precise = at[name] if not (name == "precision" and at.get("complement")) else 1 - at["recall"]
    return f"{'edge precision' if name == 'precision' else name} {100 * precise:.0f} %"


def _only(records: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    (found,) = [r for r in records if about.items() <= r.items()]
    return found


def surrogates(results: dict[str, Any]) -> str:
    """What share of the variance within fresh items a surrogate explains, and what that does to the gradient."""
    s = results["settings"]
    lines = [
        f"The share of the variance of losses that a surrogate explains: of {s['fresh']} fresh structures of each of "
        f"{s['probed']} items of the validation set, within items; in brackets for the half of the items with the "
        "narrower posteriors, and for the other half. *The best sum over edges* is fitted to "
        f"{s['regression']:,} structures of the item itself, and cannot be had in training: it says what there is to "
        "find.",
        "",
        f"| | {' | '.join(POINTS)} |",
        "|---|" + "---:|" * len(POINTS),
    ]
    rows = {(r["model"], r["estimator"]): {} for r in results["explained"]}
    for r in results["explained"]:
        rows[r["model"], r["estimator"]][r["point"]] = r
    for (model, estimator), by_point in rows.items():
        trained = model not in KINDS
        kind = label(model.partition(",")[0], estimator).partition(", ")[2]
        about = f"{model.partition(',')[0]}: {kind}, " + (
            "learnt in training" if trained else f"{s['fit']} batches, model frozen"
        )
        cells = [_explained(by_point[point]) for point in POINTS]
        lines.append(f"| {about} | {' | '.join(cells)} |")
    for model in KINDS:
        shares = [_only(results["within"], {"model": model, "point": point})["explained"] for point in POINTS]
        lines.append(f"| {model}: the best sum over edges | {' | '.join(map(_share, shares))} |")
    return "\n".join([*lines, "", learnt_in_training(results)]) + "\n"


def learnt_in_training(results: dict[str, Any]) -> str:
    """A sentence on the model that was trained with its surrogate."""
    found = ratios(results, LEARNT)
    own = {point: found["SurrogateREINFORCE", point] for point in POINTS[1:]}
    noise = " and ".join(
        f"{r['calls']:.2f} ± {r['error']:.2f} ({point}; at equal time {r['time']:.2f})" for point, r in own.items()
    )
    ends = [_only(results["training"], {"model": model, "point": "end"}) for model in ("graph layout", LEARNT)]
    plain, with_it = (f"{_metric('elbo', at)} and {_metric('precision', at)}" for at in ends)
    return (
        f"Learnt in training, {noise} of T-REINFORCE+'s standard deviation are left, at the same model and as many "
        f"calls. After {ends[0]['iteration']:,} updates from the same start, {with_it} with the surrogate, {plain} "
        "without: one run each."
    )


def _explained(r: dict[str, float]) -> str:
    return f"{_share(r['explained'])} ({_share(r['narrow'])}, {_share(r['wide'])})"


def _share(x: float) -> str:
    return f"{x:.2f}".replace("-0.00", "0.00").replace("-", "−")


def number(want: str) -> str:
    """One number, for a page: "model | estimator | point | calls" or "... | time" is a ratio, "... | explained" a
    share. "best" is the unbiased estimator of the least standard deviation."""
    results, (model, estimator, point, at) = load(), (part.strip() for part in want.split("|"))
    if at == "explained":
        return f"{_only(results['explained'], {'model': model, 'estimator': estimator, 'point': point})[at]:.2f}"
    if estimator == "best":
        return f"{best(results, model, point, at)[1]:.2f}"
    return f"{ratios(results, model)[estimator, point][at]:.2f}"


TABLES = {
    "training-variance": lambda: variance(load()),
    "training-surrogates": lambda: surrogates(load()),
}
