"""What the paper reports of learning to explain, and how ours is shown beside it."""

import math
from typing import Any

from gumtrace_experiments.columns import Block, Column, PaperRow, Report, Spread
from gumtrace_experiments.l2x.overview import overview

SIZES = (5, 10, 15)  # the paper's k
# Other data, budgets and models are not comparable, and get a table of their own.
_USUAL = {"calls": 100, "iterations": 800, "longest": 350, "dropout": 0.1, "original": True}
# Ten epochs, as in the paper, are as many iterations as an aspect and K make them; other files have no originals.
_UNCOUNTED = {"beer": "iterations", "eraser": "original", "synthetic": "original"}
_NAMES = {"eraser": "movie reviews", "synthetic": "made-up reviews, no real language"}
MSE, PRECISION = (
    Column("MSE × 100", "mse", scale=100, larger=False, axis="linear"),
    Column("subset precision, %", "precision", scale=100, digits=1, paper_digits=1, axis="linear"),
)
_EXPLAINED = Column("variance explained, %", "explained", scale=100, digits=1, axis="linear")
_UNKNOWN = Spread(math.nan, None, math.nan)

# MSE × 100 and subset precision in percent, mean and std, for k = 5, 10 and 15, by aspect and model (Tables "l2x",
# "l2x-app", "l2x-taste" and "l2x-pal")
_Numbers = tuple[float, ...]
RESULTS: dict[tuple[str, str], dict[str, _Numbers]] = {
    ("aroma", "simple"): {
        "StochasticSoftmax": (3.6, 0.1, 28, 1.4, 3.21, 0.12, 29.5, 1.7, 2.77, 0.09, 28.1, 1.2),
        "NoiseREINFORCE": (3.89, 0.2, 25, 1.4, 3.77, 0.23, 26.7, 3.4, 3.16, 0.16, 25.3, 1.3),
        "TraceREINFORCE": (3.79, 0.13, 30.5, 2.2, 3.14, 0.16, 31, 2.9, 2.69, 0.11, 27.6, 0.9),
        "RELAX": (3.76, 0.11, 24, 1.9, 3.5, 0.13, 28.9, 1.9, 2.95, 0.15, 26.1, 1.9),
    },
    ("aroma", "complex"): {
        "StochasticSoftmax": (2.93, 0.09, 56, 2.1, 2.55, 0.08, 49.4, 3.1, 2.51, 0.05, 40.3, 0.9),
        "NoiseREINFORCE": (3.03, 0.2, 49.4, 3.3, 2.92, 0.12, 45, 2.3, 2.76, 0.22, 42, 2.2),
        "TraceREINFORCE": (2.75, 0.08, 55.8, 3.4, 2.48, 0.05, 48.6, 2.4, 2.4, 0.03, 44.2, 1.3),
        "RELAX": (2.8, 0.08, 54.4, 2.1, 2.58, 0.09, 47.6, 1.6, 2.46, 0.08, 42.1, 1.5),
    },
    ("appearance", "simple"): {
        "StochasticSoftmax": (3.44, 0.13, 43.3, 4.5, 3.09, 0.12, 45.7, 3.6, 2.67, 0.12, 42.1, 1.1),
        "NoiseREINFORCE": (3.74, 0.11, 38.8, 2.9, 3.46, 0.12, 33.2, 3.6, 3.24, 0.15, 31.2, 3.4),
        "TraceREINFORCE": (3.57, 0.11, 48.9, 2.5, 3.02, 0.11, 47, 4.1, 2.69, 0.06, 41.6, 2.2),
        "RELAX": (3.36, 0.1, 44.2, 3.2, 3.01, 0.08, 42.4, 2.7, 2.85, 0.09, 40.7, 1.8),
    },
    ("appearance", "complex"): {
        "StochasticSoftmax": (2.96, 1.1, 73.2, 5.3, 2.61, 0.09, 71.9, 3.3, 2.57, 0.08, 65.6, 2.9),
        "NoiseREINFORCE": (3.25, 0.11, 72.9, 6.1, 2.9, 0.19, 63.1, 1, 2.63, 0.13, 63.3, 0.5),
        "TraceREINFORCE": (2.65, 0.05, 82.9, 1.3, 2.48, 0.05, 74.5, 3.7, 2.41, 0.03, 68.3, 2),
        "RELAX": (2.67, 0.06, 81.3, 1.5, 2.54, 0.03, 74.8, 1.3, 2.51, 0.03, 67.1, 2.1),
    },
    ("taste", "simple"): {
        "StochasticSoftmax": (3.19, 0.16, 26.7, 2.5, 2.93, 0.12, 28, 0.9, 2.89, 0.04, 28.7, 1.3),
        "NoiseREINFORCE": (3.6, 0.4, 23.6, 2.6, 3.51, 0.36, 21.4, 2.2, 3.12, 0.16, 24.6, 3.2),
        "TraceREINFORCE": (3.24, 0.2, 28.5, 2.4, 3.07, 0.05, 28.5, 1.4, 2.9, 0.04, 29.2, 3.2),
        "RELAX": (3.26, 0.08, 24, 3.4, 3.13, 0.09, 25.8, 2.1, 2.95, 0.09, 24.4, 2.6),
    },
    ("taste", "complex"): {
        "StochasticSoftmax": (2.7, 0.21, 36.2, 3.1, 2.66, 0.19, 36, 5.1, 2.2, 0.02, 43.2, 1),
        "NoiseREINFORCE": (3.43, 0.52, 33.2, 4.8, 3.15, 0.33, 33, 4.3, 2.81, 0.16, 39.1, 3),
        "TraceREINFORCE": (2.62, 0.2, 40.2, 2.4, 2.45, 0.04, 40.6, 2.6, 2.43, 0.04, 40.3, 2.3),
        "RELAX": (2.78, 0.07, 34.7, 2.5, 2.99, 0.2, 32.1, 3.6, 2.64, 0.04, 33.9, 3.8),
    },
    ("palate", "simple"): {
        "StochasticSoftmax": (3.63, 0.17, 28.1, 2.7, 3.37, 0.08, 25, 1.2, 3.14, 0.09, 22.1, 1.3),
        "NoiseREINFORCE": (4.15, 0.22, 21.3, 6.3, 3.79, 0.23, 19.6, 3.1, 3.71, 0.22, 15.8, 2.1),
        "TraceREINFORCE": (3.81, 0.2, 26.7, 3.8, 3.33, 0.09, 26.9, 1.1, 3.14, 0.07, 21.6, 1.2),
        "RELAX": (3.79, 0.18, 26.8, 3.4, 3.45, 0.11, 23.6, 1.6, 3.32, 0.1, 22.3, 1.2),
    },
    ("palate", "complex"): {
        "StochasticSoftmax": (2.98, 0.09, 53.6, 1, 2.79, 0.01, 45, 1.2, 2.75, 0.03, 37.2, 1.3),
        "NoiseREINFORCE": (3.48, 0.22, 47.3, 5.3, 3.22, 0.2, 39.7, 3, 2.96, 0.06, 36.8, 3.2),
        "TraceREINFORCE": (2.92, 0.03, 56.3, 0.8, 2.87, 0.03, 47.5, 1.9, 2.82, 0.06, 40.4, 1.8),
        "RELAX": (3.05, 0.03, 52.6, 1.9, 3.03, 0.09, 42.6, 3.6, 2.86, 0.05, 36.6, 1.2),
    },
}
# MSE × 100 on the training set, for the aroma alone (Table "l2x-train")
TRAINING: dict[tuple[str, str], dict[str, _Numbers]] = {
    ("aroma", "simple"): {
        "StochasticSoftmax": (3.22, 0.17, 2.96, 0.14, 2.54, 0.13),
        "NoiseREINFORCE": (3.45, 0.19, 3.38, 0.23, 2.85, 0.21),
        "TraceREINFORCE": (3.38, 0.13, 2.93, 0.19, 2.43, 0.12),
        "RELAX": (3.36, 0.12, 3.13, 0.18, 2.78, 0.17),
    },
    ("aroma", "complex"): {
        "StochasticSoftmax": (2.69, 0.14, 2.24, 0.18, 2.18, 0.11),
        "NoiseREINFORCE": (2.85, 0.22, 2.56, 0.25, 2.44, 0.19),
        "TraceREINFORCE": (2.5, 0.16, 2.19, 0.15, 2.09, 0.1),
        "RELAX": (2.53, 0.15, 2.21, 0.17, 2.19, 0.14),
    },
}


def _rows(found: dict[str, _Numbers], size: int, per_size: int) -> tuple[PaperRow, ...]:
    """The paper's rows for one k: so many numbers, means and standard deviations in turn; the rest is not known."""
    rows = []
    for estimator, numbers in found.items():
        own = numbers[per_size * SIZES.index(size) :][:per_size]
        spreads = [Spread(mean, std, math.nan) for mean, std in zip(own[::2], own[1::2], strict=True)]
        spreads += [_UNKNOWN] * (len(REPORT.columns) - len(spreads))
        rows.append(PaperRow(estimator, tuple(spreads), seeds=16, settings=25))
    return tuple(rows)


def block(config: dict[str, Any]) -> Block:
    """One for each set of reviews, model and k."""
    source, aspect, model, size = (config[name] for name in ("reviews", "aspect", "model", "chosen"))
    beer = source == "beer"
    odd = {name: config[name] for name, usual in _USUAL.items() if config.get(name, usual) != usual}
    odd.pop(_UNCOUNTED.get(source, ""), None)
    changes = [f"{name} = {value}" for name, value in odd.items()]
    known = beer and size in SIZES and not odd
    where = (aspect, model)
    about = f"{aspect} of beers" if beer else _NAMES.get(str(source), str(source))
    return Block(
        key=(source, aspect if beer else "", model != "simple", model, tuple(sorted(odd.items())), size),
        title=", ".join([about, f"{model} model", f"k = {size}", *changes]),
        paper=_rows(RESULTS.get(where, {}), size, 4) if known else (),
        paper_train=_rows(TRAINING.get(where, {}), size, 2) if known else (),
    )


REPORT = Report((MSE, PRECISION, _EXPLAINED), block, overview)
