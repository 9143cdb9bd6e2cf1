"""Runs of one setting, and which setting is shown. Settings are compared on validation alone: test metrics are only
ever reported."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gumtrace_experiments.columns import Block, Column, Report, Spread
from gumtrace_experiments.report.names import UNBIASED, family, kind, place, title
from gumtrace_experiments.report.records import Record


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    setting: dict[str, Any]
    records: tuple[Record, ...]

    @property
    def finished(self) -> list[Record]:
        return self.evaluated("test")

    @property
    def unfinished(self) -> int:
        return sum(record.result is None and not record.pruned for record in self.records)

    def evaluated(self, split: str) -> list[Record]:
        """Those with a result on a split; not all experiments report the training set."""
        done = [record for record in self.records if record.result is not None and split in record.result]
        return [record for record in done if not record.pruned]

    def score(self, metric: str) -> float:
        """The mean over seeds, on validation, of the metric that decides. A seed that diverged makes it the worst."""
        mean = spread(self._values("valid", metric)).mean
        return -math.inf if math.isnan(mean) else mean

    def spread(self, column: Column, split: str = "test") -> Spread:
        """The spread of a metric over seeds, in the units of the column."""
        values = self._values(split, column.metric)
        return spread([column.scale * x for x in values], larger=column.larger)

    def _values(self, split: str, metric: str) -> list[float]:
        return [record.result[split].get(metric, math.nan) for record in self.evaluated(split) if record.result]


@dataclass(frozen=True)
class Choice:
    """The setting of an estimator that is shown in a block, with all that were tried."""

    block: Block
    estimator: str
    group: Group
    tried: tuple[Group, ...]
    row: tuple[int, str] | None = None
    """Its place and name, where the report gives rows names of their own."""

    @property
    def place(self) -> tuple:
        """To sort by."""
        return self.row or place(self.estimator)

    @property
    def family(self) -> str:
        """The name of the row, or of the estimator, whatever its settings."""
        return self.row[1].removesuffix(UNBIASED).rstrip() if self.row else self._estimator

    @property
    def name(self) -> str:
        """Of the estimator, with its relaxation if that has a row of its own."""
        return self.family if self.row else ", ".join([self._estimator, *kind(self.group.setting)])

    @property
    def is_of_estimator(self) -> bool:
        """Whether the row is about its estimator, as all are that the report gives no name without one."""
        return self.row is None or self._estimator.removesuffix("+") in self.row[1]

    @property
    def title(self) -> str:
        """The name with the number of samples."""
        return self.row[1] if self.row else title(self.group.setting, self._experiment)

    @property
    def unfinished(self) -> int:
        return sum(group.unfinished for group in self.tried)

    @property
    def _estimator(self) -> str:
        return family(self.estimator, self._experiment)

    @property
    def _experiment(self) -> str:
        return self.group.records[0].experiment

    def tuned(self) -> dict[str, Any]:
        """What the shown setting has and others that were tried have not."""
        return {
            name: value
            for name, value in self.group.setting.items()
            if any(group.setting.get(name) != value for group in self.tried)
        }


def choices(records: Iterable[Record], report: Report, metric: str) -> list[Choice]:
    """One for each estimator (and relaxation), or for each row that the report names, in each block, in the order they
    are shown."""
    blocks: dict[tuple, Block] = {}
    groups: dict[tuple, dict[str, list[Record]]] = {}
    for record in records:
        block, row = report.block(record.config), report.rows(record.config) if report.rows else None
        blocks[block.key] = block
        where = (row, ()) if row else (place(record.config["estimator"]), kind(record.config))
        settings = groups.setdefault((block.key, *where), {})
        settings.setdefault(record.key[1], []).append(record)
    found = []
    for where in sorted(groups):
        tried = tuple(Group(same[0].setting, tuple(same)) for same in groups[where].values())
        shown = choose(tried, metric)
        found.append(
            Choice(blocks[where[0]], shown.setting["estimator"], shown, tried, where[1] if report.rows else None)
        )
    return found


def choose(groups: Sequence[Group], metric: str) -> Group:
    """The best on validation, of those with at least half as many finished seeds as the group with most.

    A search tries many settings with one seed each, and the luckiest of these beats the mean of ten seeds of any. Where
    nothing is finished, there is nothing to compare: the group with most runs.
    """
    most = max(len(group.finished) for group in groups)
    if not most:
        return max(groups, key=lambda group: len(group.records))
    return max((g for g in groups if 2 * len(g.finished) >= most), key=lambda group: group.score(metric))


def given_up(records: Iterable[Record]) -> list[str]:
    """A note on the runs that a search did not finish, if there are any: they are settings that were tried."""
    count = sum(record.pruned for record in records)
    runs = "1 run was" if count == 1 else f"{count} runs were"
    return [f"{runs} given up by a search, and not averaged."] if count else []


def spread(values: Sequence[float], *, larger: bool | None = True) -> Spread:
    """Mean, sample standard deviation, best; where neither the larger nor the smaller is better, there is no best.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, std=1.4142135623730951, best=3.0)
    >>> spread([4.0], larger=False)
    Spread(mean=4.0, std=None, best=4.0)
    """
    mean = sum(values) / len(values)
    known = [x for x in values if not math.isnan(x) and larger is not None]
    best = (max if larger else min)(known, default=math.nan)
    if len(values) == 1:
        return Spread(mean, None, best)
    return Spread(mean, math.sqrt(sum((x - mean) * (x - mean) for x in values) / (len(values) - 1)), best)
