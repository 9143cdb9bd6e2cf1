"""How an experiment is reported: what its tables and curves show, and what a paper found. `Experiment.report` returns
it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple


class Spread(NamedTuple):
    """The spread of a metric over seeds. `std` is None for one seed alone."""

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
    larger: bool | None = True
    """Larger is better; None: neither is."""
    axis: Literal["linear", "share", "log of minus"] | None = None
    """How its curve is drawn: on a linear axis, one from 0 to 1 (times the scale), or one for numbers below zero of all
    sizes. None: it is not."""


@dataclass(frozen=True)
class PaperRow:
    """A row of a table in the paper, in the units it is printed in; a spread for each column."""

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
    """The paper's, by estimator: at the beginning of training, half-way, at the end."""
    source: str = "paper"
    """Where the paper's rows come from, if not from the same protocol."""


@dataclass(frozen=True)
class Report:
    columns: tuple[Column, ...]
    block: Callable[[dict[str, Any]], Block]
    """The block that a config belongs to."""
    overview: Callable[[list[Any]], list[Any]] | None = None
    """Tables of several blocks side by side, from what is shown in each (`report.groups.Choice`)."""
    rows: Callable[[dict[str, Any]], tuple[int, str]] | None = None
    """The place and the name of the row that a config belongs to, where the estimator alone does not say it."""
    figures: Callable[[list[Any], Path], list[Path]] | None = None
    """Saves figures of several blocks together in a folder, and returns their files."""
    timed: Callable[[dict[str, Any]], Block] | None = None
    """The block that a config belongs to where estimators are compared at equal time; None: the same."""
