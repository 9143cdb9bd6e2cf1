"""The figure of `gumtrace bench --figure`: time and memory against size, from records."""

from collections.abc import Iterable, Sequence

from gumtrace.benchmark.records import Record
from gumtrace.benchmark.scale import BASELINE, T_STEP, keys_of
from gumtrace.extras import require
from gumtrace.plotting.style import FAINT, INK, SERIES, SOFT


def draw(records: Sequence[Record]):
    """Two panels, time and memory of a step against the keys of an item; a line for each structure, dotted for torch's
    noise and sort. Returns the figure."""
    figure = require("matplotlib.figure", "plot").Figure(figsize=(9, 3.8), layout="constrained")
    time, memory = figure.subplots(1, 2, sharex=True)
    structures = list(dict.fromkeys(r.structure for r in records))
    for structure, color in zip(structures, SERIES, strict=False):
        for step, look in ((T_STEP, "o-"), (BASELINE, "o:")):
            shown = _by_size(r for r in records if (r.structure, r.step) == (structure, step))
            label = structure if step == T_STEP else None
            times = [_nanoseconds(r.best_ms, r) for r in shown]
            time.loglog([_keys(r) for r in shown], times, look, color=color, label=label, markersize=4)
        shown = _by_size(r for r in records if (r.structure, r.step) == (structure, T_STEP))
        shown = [r for r in shown if r.peak_bytes is not None]
        memory.semilogx([_keys(r) for r in shown], [r.extra_memory for r in shown], "o-", color=color, markersize=4)
    copies = [_nanoseconds(r.copy_ms, r) for r in records if r.copy_ms is not None]
    if copies:
        time.axhline(min(copies), color=SOFT, linewidth=1, label="copy of the logits")
    time.set_ylabel("nanoseconds a logit", color=INK)
    memory.set_ylabel("peak memory, in logits", color=INK)
    for ax in (time, memory):
        ax.set_xlabel("keys of an item", color=INK)
        ax.grid(color=FAINT, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=SOFT, labelsize=8.5)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def _by_size(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=_keys)


def _keys(record: Record) -> int:
    return keys_of(record.structure, record.size)


def _nanoseconds(ms: float, record: Record) -> float:
    return 1e6 * ms / (record.batch * _keys(record))
