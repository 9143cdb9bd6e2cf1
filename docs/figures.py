"""Pictures of the pages on structures and estimators.

`python docs/figures.py OUT` writes them into OUT/figures, and the tables of `page_tables` into OUT/tables.

A picture of a run shows the run of its page: the page's own examples are executed, and their `d` and `trace` are drawn.
"""

import contextlib
import doctest
import io
import itertools
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import scale  # benchmarks/scale.py
import torch
import training_tables  # experiments/benchmarks/training_tables.py
from clustering import means  # benchmarks/clustering.py
from matplotlib.figure import Figure
from page_tables import ROWS, tables
from recordings import load  # benchmarks/recordings.py
from variance import OBJECTIVES, described  # benchmarks/variance.py

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace import plotting
from gumtrace.cli.demo import examples
from gumtrace.diagnostics import exact_gradient, gradient_statistics
from gumtrace.plotting.style import ACCENT, CHOSEN, FAINT, INK, SOFT
from gumtrace.toy import Curve, applicable, optimise, problem

HERE = Path(__file__).parent
STYLE = {"svg.hashsalt": "gumtrace", "axes.edgecolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT}

COLUMNS = (4, 5, 3)  # panels in a row, whichever leaves the last row fuller
__all__ = ["draw", "tables"]


def draw(out: Path) -> None:
    """Every picture of the pages on structures and estimators, as OUT/NAME.svg."""
    out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for page in sorted((HERE / "structures").glob("*.md")):
            if page.stem != "index":
                _save(steps_of(page), out / f"steps-{page.stem}.svg")
        _save(gallery(), out / "structures.svg")
        _save(variance(), out / "variance.svg")
        _save(training(), out / "training.svg")
        _save(clusterings(), out / "clustering.svg")
        _save(temperature(), out / "temperature.svg")
        _save(scale.draw(load(scale.FILE)), out / "scale.svg")
        plotting.optimisation(whole_runs(), out / "toy.svg")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})  # so that the same picture is the same file


def steps_of(page: Path) -> Figure:
    """The run that a page's examples end with, step by step."""
    found = run_examples(page)
    panels = 1 + int((found["trace"].winners >= 0).sum())
    columns = min(panels, max(COLUMNS, key=lambda c: -(-panels % c)))
    figure = Figure(figsize=(1.85 * columns, 2.15 * -(-panels // columns)), layout="constrained")
    return plotting.steps(found["d"], found["trace"], labels=found.get("labels"), columns=columns, figure=figure)


def run_examples(page: Path) -> dict[str, Any]:
    """The names that a page's examples leave behind."""
    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(page.read_text(encoding="utf-8")):
        if example.exc_msg is None:  # the others show an error
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(example.source, page.name, "single"), names)
    return names


def gallery() -> Figure:
    """One of each structure."""
    generator = torch.Generator().manual_seed(0)
    shown = examples(generator)
    rows = -(-len(shown) // 3)
    figure = Figure(figsize=(11, 3.8 * rows), layout="constrained")
    for place, example in enumerate(shown, 1):
        ax, trace = figure.add_subplot(rows, 3, place), example.dist.sample_trace(generator=generator)
        plotting.structure(trace, ax=ax, logits=example.dist.logits, labels=example.names, title=example.title)
    return figure


def variance() -> Figure:
    """The recorded standard deviations, one dot per structure."""
    records = load("variance.json")["records"]
    names = [name for rows in ROWS.values() for name in rows]
    marks = dict(zip(dict.fromkeys(r["structure"] for r in records), "osD^", strict=True))
    panels = {f"{objective} objective": [r for r in records if r["objective"] == objective] for objective in OBJECTIVES}
    return _ratios(
        {
            title: [(r["estimator"], r["ratio"], marks[r["structure"]], described(r["estimator"]).unbiased) for r in of]
            for title, of in panels.items()
        },
        names,
        marks,
        [0.1, 0.3, 1, 3],
    )


def training() -> Figure:
    """The recorded standard deviations in real training, one dot per point of it."""
    results, marks = training_tables.load(), dict(zip(training_tables.POINTS, "osD", strict=True))
    panels, names = {}, []
    for model in training_tables.KINDS:
        found = training_tables.ratios(results, model)
        panels[model] = [
            (training_tables.label(model, e), r["calls"], marks[point], training_tables.is_unbiased(e))
            for (e, point), r in found.items()
        ]
        names += [name for name, *_ in panels[model] if name not in names]
    return _ratios(panels, names, marks, [0.1, 1, 10])


def _ratios(panels: dict[str, list], names: list[str], marks: dict[str, str], ticks: list[float]) -> Figure:
    """Panels of dots (name, ratio to T-REINFORCE+, mark, unbiased or not), a row for each name."""
    figure = Figure(figsize=(8.6, 1.3 + 0.22 * len(names)), layout="constrained")
    for ax, (title, dots) in zip(
        figure.subplots(1, len(panels), sharex=True, sharey=True), panels.items(), strict=True
    ):
        ax.axvline(1, color=FAINT, linewidth=6, zorder=0)
        for name, ratio, mark, unbiased in dots:
            ax.plot(ratio, names.index(name), mark, color=CHOSEN if unbiased else ACCENT, alpha=0.75)
        ax.set(xscale="log", xticks=ticks, xticklabels=[f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set_yticks(range(len(names)), names, color=INK)
        ax.set_title(title, fontsize=10, color=INK)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", color=FAINT, linewidth=0.6)
    figure.axes[0].invert_yaxis()
    figure.supxlabel("standard deviation of the gradient, T-REINFORCE+ = 1", fontsize=9, color=SOFT)
    handles = [figure.axes[0].plot([], [], mark, color=SOFT, label=name)[0] for name, mark in marks.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=4, frameon=False, fontsize=9)
    return figure


def clusterings() -> Figure:
    """The recorded adjusted Rand indices, a panel for each data set."""
    found = means(load("clustering.json")["records"])
    methods, data = (list(dict.fromkeys(part)) for part in zip(*found, strict=True))
    figure = Figure(figsize=(8.6, 1.0 + 0.22 * len(methods)), layout="constrained")
    for ax, name in zip(figure.subplots(1, len(data), sharex=True, sharey=True), data, strict=True):
        for place, method in enumerate(methods):
            mean, error = found[method, name]
            color = CHOSEN if method.startswith("forest") else SOFT
            ax.errorbar(mean, place, xerr=2 * error, fmt="o", color=color, markersize=5)
        ax.set_title(name, fontsize=10, color=INK)
        ax.set(xlim=(-0.05, 1.05), xticks=[0, 0.5, 1])
        ax.set_yticks(range(len(methods)), methods, color=INK)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", color=FAINT, linewidth=0.6)
    figure.axes[0].invert_yaxis()
    figure.supxlabel("adjusted Rand index", fontsize=9, color=SOFT)
    return figure


def temperature() -> Figure:
    """Bias and standard deviation of the relaxed estimators against the temperature: 3 of 6 keys, 8 calls."""
    generator = torch.Generator().manual_seed(0)
    p = problem("subset", size=6, seed=1)
    dist = gt.Subset(p.logits, 3)

    def objective(x: torch.Tensor) -> torch.Tensor:
        return p.objective(x).log1p()

    exact = exact_gradient(dist, objective)[1]
    size = exact.square().mean().sqrt().item()

    def measure(estimator: E.Estimator) -> tuple[float, float]:
        (row,) = gradient_statistics({"": estimator}, dist, objective, 1000, target=exact, generator=generator)
        return 100 * (row.bias or 0.0) / size, row.std / size

    temperatures = (0.1, 0.2, 0.4, 0.8, 1.6)
    biased = [cls for cls in E.ESTIMATORS.values() if not cls.unbiased and "temperature" in cls.settings()]
    figure = Figure(figsize=(8.6, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for cls, color in zip(biased, itertools.cycle((ACCENT, SOFT, CHOSEN)), strict=False):
        points = [measure(cls.from_settings({"temperature": t, "samples": 8, "draws": 8})) for t in temperatures]
        name = f"{cls.label}, 8 draws" if "draws" in cls.settings() else cls.label
        for ax, values in zip((left, right), zip(*points, strict=True), strict=True):
            ax.plot(temperatures, values, "o-", color=color, label=name, markersize=4)
    right.axhline(measure(E.TraceREINFORCE(samples=8))[1], color=INK, linestyle="--", linewidth=1, label="T-REINFORCE+")
    left.set_title("bias, % of the gradient", fontsize=10, color=INK)
    right.set_title("standard deviation, in gradients", fontsize=10, color=INK)
    for ax in (left, right):
        ax.set(xscale="log", xticks=temperatures, xticklabels=map(str, temperatures), ylim=(0, None))
        ax.minorticks_off()
        ax.set_xlabel("temperature", color=SOFT)
        ax.spines[["top", "right"]].set_visible(False)
    figure.legend(*right.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    return figure


def whole_runs() -> list[Curve]:
    """What `gumtrace toy spanning-tree` draws, with one seed."""
    p = problem("spanning-tree")
    return [optimise(p, name, build) for name, build in applicable(p, 8).items()]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    draw(target / "figures")
    tables(target / "tables")
