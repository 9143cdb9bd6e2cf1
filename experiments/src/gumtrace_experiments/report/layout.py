"""How an experiment is reported: what its tables and curves show, and what the paper found. Each experiment says so in
`REPORT` of its module `paper`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments.registry import find

_BIASED_FIRST = sorted(ESTIMATORS, key=lambda name: ESTIMATORS[name].unbiased)  # as in the paper's tables
_LIKELIHOODS = {"TraceLikelihood": "Trace likelihood", "MatrixTreeCRF": "Matrix-tree CRF"}  # in place of an estimator
_LABELS = {name: ESTIMATORS[name].label for name in _BIASED_FIRST} | _LIKELIHOODS
UNBIASED = "†"  # the mark


class Spread(NamedTuple):
    """Of a metric, over seeds. `std` is None for one seed alone."""

    mean: float
    std: float | None
    best: float


@dataclass(frozen=True)
class Column:
    """A metric, and how it is shown."""

    name: str
    metric: str
    scale: float = 1.0
    digits: int = 2
    paper_digits: int = 2
    larger: bool = True
    """Larger is better."""
    axis: Literal["share", "log of minus"] | None = None
    """How its curve is drawn: from 0 to 1 (times the scale), or numbers below zero of all sizes. None: it is not."""


@dataclass(frozen=True)
class PaperRow:
    """Of a table in the paper, in the units it is printed in; a spread for each column."""

    estimator: str
    spreads: tuple[Spread, ...]
    seeds: int | None
    """None: it does not say."""
    settings: int


@dataclass(frozen=True)
class Block:
    """A table, or a panel of a figure: the runs that can be compared with each other."""

    key: tuple
    """Equal for runs of one block; blocks are sorted by it."""
    title: str
    paper: tuple[PaperRow, ...] = ()
    """On test."""
    paper_train: tuple[PaperRow, ...] = ()
    """On the training set."""
    gradient_std: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Of the paper, by estimator: at the beginning of training, half-way, at the end."""
    source: str = "paper"
    """Where the paper's rows come from, if not from the same protocol."""


@dataclass(frozen=True)
class Report:
    columns: tuple[Column, ...]
    block: Callable[[dict[str, Any]], Block]
    """Of a config."""


def report(name: str) -> Report:
    """Of the experiment of that name."""
    return _part(name, "paper").REPORT


def pictures(name: str) -> Any:
    """The module that draws what a trained model of that experiment finds."""
    return _part(name, "pictures")


def _part(name: str, module: str) -> Any:
    return import_module(f"{find(name).__module__.rpartition('.')[0]}.{module}")


def family(estimator: str) -> str:
    """The name of an estimator, whatever its settings.

    >>> family("TraceREINFORCE"), family("StochasticSoftmax")
    ('T-REINFORCE+', 'SST')
    """
    return _LABELS.get(estimator, estimator)


def title(config: dict[str, Any]) -> str:
    """The name of an estimator with the number of its samples.

    >>> title({"estimator": "TraceREINFORCE", "samples": 8}), title({"estimator": "RELAX", "samples": 1})
    ('T-REINFORCE+ (K = 8) †', 'RELAX †')
    >>> title({"estimator": "TraceREINFORCE", "samples": 1}), title({"estimator": "StochasticSoftmax", "samples": 1})
    ('T-REINFORCE †', 'SST')
    """
    samples = config.get("samples", 1)
    name = family(config["estimator"])
    return marked(config["estimator"], f"{name} (K = {samples})" if samples > 1 else name.removesuffix("+"))


def marked(estimator: str, name: str) -> str:
    biased = estimator in ESTIMATORS and not ESTIMATORS[estimator].unbiased
    return name if biased else f"{name} {UNBIASED}"


def place(estimator: str) -> tuple[int, str]:
    """To sort by: those the paper knows come first."""
    return (list(_LABELS).index(estimator) if estimator in _LABELS else len(_LABELS)), estimator
