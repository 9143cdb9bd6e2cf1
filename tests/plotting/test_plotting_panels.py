"""A run in panels: what is drawn of every decision is what `gumtrace.steps` says of it."""

import math
import re
import sys

import matplotlib
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

import gumtrace as gt
from gumtrace import plotting
from gumtrace.recursions import MaximalIndependentSet
from gumtrace.steps import steps

matplotlib.use("Agg")

EDGES = torch.tensor([[0, 1, 2, 0, 1], [1, 2, 3, 3, 1]])  # the last is a loop: it never races


class Everything:
    """All keys race once: the winner is a category."""

    def __init__(self, keys):
        self.keys = keys

    def start(self):
        return range(self.keys), None

    def stop(self, K, R):
        return not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        return [], None


MAKE = {
    "subset": lambda x: gt.Subset(x(6), 3),
    "subset of nothing": lambda x: gt.Subset(x(3), 0),
    "long subset": lambda x: gt.Subset(x(60), 3),
    "permutation": lambda x: gt.Permutation(x(5)),
    "masked permutation": lambda x: gt.Permutation(x(4), mask=torch.tensor([True, False, True, True])),
    "matching": lambda x: gt.Matching(x(3, 4)),
    "padded matching": lambda x: gt.Matching(x(4, 4), lengths=torch.tensor(2)),
    "tree": lambda x: gt.SpanningTree(x(5, 5)),
    "padded tree": lambda x: gt.SpanningTree(x(6, 6), lengths=torch.tensor(4)),
    "forest": lambda x: gt.SpanningTree(x(5, 5), components=2),
    "large forest": lambda x: gt.SpanningTree(x(26, 26), components=23),
    "sparse tree": lambda x: gt.SpanningTree.from_edges(x(5), EDGES, 4),
    "arborescence": lambda x: gt.Arborescence(x(5, 5)),
    "one node": lambda x: gt.Arborescence(x(1, 1)),
    "binary tree": lambda x: gt.BinaryTree(x(6)),
    "no token": lambda x: gt.BinaryTree(x(0)),
    "custom": lambda x: gt.Custom(x(6), MaximalIndependentSet(torch.eye(6).roll(1, 0))),
    "custom matrix": lambda x: gt.Custom(x(2, 3), Everything(6)),
}


def drawn(name, seed=0, **settings):
    """The distribution, the steps of a trace, and the panels of its picture."""
    generator = torch.Generator().manual_seed(seed)
    dist = MAKE[name](lambda *shape: torch.randn(shape, generator=generator))
    trace = dist.sample_trace(generator=generator)
    figure = plotting.steps(dist, trace, figure=Figure(), **settings)
    return dist, trace, steps(dist, trace), [ax for ax in figure.axes if ax.texts]


def caption(ax):
    return ax.texts[-1].get_text()


def bars(ax):
    """Heights, by place."""
    found = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in found}


def lines(ax):
    return len(ax.lines)


def arrows(ax):
    return sum(isinstance(patch, FancyArrowPatch) for patch in ax.patches)


@pytest.mark.parametrize("name", MAKE)
def test_a_panel_for_each_decision_and_one_for_the_structure(name):
    dist, trace, listed, panels = drawn(name)
    assert len(panels) == len(listed) + 1
    for number, (ax, step) in enumerate(zip(panels, listed, strict=False), 1):
        assert ax.get_title().startswith(f"{number}. ")
        assert caption(ax).endswith(f" wins, P = {step.probability:.2f}")
    assert panels[-1].get_title() == "the structure"
    total = float(re.fullmatch(r"P\(trace\) = (\S+)", caption(panels[-1]))[1])
    assert total == pytest.approx(math.exp(dist.trace_log_prob(trace).item()), rel=0.06)
    panels[0].figure.canvas.draw()


@pytest.mark.parametrize("name", ["subset", "permutation", "masked permutation", "custom"])
def test_bars_are_the_chances_of_those_who_race(name):
    _, trace, listed, panels = drawn(name)
    for ax, step in zip(panels, listed, strict=False):
        heights = bars(ax)
        assert {k for k, height in heights.items() if height > 0} == set(step.racing)
        assert sum(heights.values()) == pytest.approx(1)
        assert heights[step.winner] == pytest.approx(step.probability)
    if name == "permutation":
        names = sorted((text.get_position()[0], text.get_text()) for text in panels[-1].texts[:10:2])
        assert [name for _, name in names] == [str(k) for k in trace.value.tolist()]  # from left to right


@pytest.mark.parametrize("name", ["tree", "padded tree", "forest", "large forest", "sparse tree"])
def test_edges_that_race_and_edges_that_won(name):
    _, _, listed, panels = drawn(name)
    for before, (ax, step) in enumerate(zip(panels, listed, strict=False)):
        assert lines(ax) == len(step.racing) + before
    assert lines(panels[-1]) == len(listed)


@pytest.mark.parametrize("seed", range(6))
def test_arrows_that_race_and_arrows_that_won(seed):
    _, trace, listed, panels = drawn("arborescence", seed)
    for before, (ax, step) in enumerate(zip(panels, listed, strict=False)):
        assert arrows(ax) == len(step.racing) + before
    assert arrows(panels[-1]) == 4 == trace.value.sum()


def test_tokens_that_race_and_tokens_that_won():
    _, _, listed, panels = drawn("binary tree")
    for before, (ax, step) in enumerate(zip(panels, listed, strict=False)):
        dots = [c for c in ax.collections if isinstance(c, PathCollection)]
        assert len(dots) == len(step.racing) + before


def test_names():
    _, trace, _, panels = drawn("matching", labels=("abc", "wxyz"))
    row, column = divmod(trace.winners[0].item(), 4)
    assert caption(panels[0]).startswith(f"{'abc'[row]}, {'wxyz'[column]} wins")
    assert set("abcwxyz") < {text.get_text() for text in panels[0].texts}
    _, trace, _, panels = drawn("tree", labels="abcde")
    assert set("abcde") < {text.get_text() for text in panels[0].texts}
    assert drawn("matching")[3][0].get_title() == "1. 3 rows, 4 columns"


def test_rows_of_panels():
    _, _, _, panels = drawn("permutation", columns=2)
    places = [ax.get_subplotspec().get_geometry()[:2] for ax in panels]
    assert places == [(3, 2)] * 6
    _, _, _, panels = drawn("permutation", columns=20)
    assert panels[0].get_subplotspec().get_geometry()[:2] == (1, 6)


def test_a_new_figure_grows_with_the_run():
    from matplotlib import pyplot

    short, long = gt.Subset(torch.zeros(6), 1), gt.Subset(torch.zeros(6), 6)
    sizes = []
    for dist in (short, long):
        figure = plotting.steps(dist, dist.sample_trace())
        assert figure.number in pyplot.get_fignums()
        sizes.append(figure.get_size_inches())
        pyplot.close(figure)
    assert (sizes[1] > sizes[0]).all()


def test_errors(monkeypatch):
    dist = gt.Subset(torch.zeros(4), 2)
    with pytest.raises(ValueError, match="index them first"):
        plotting.steps(dist, dist.sample_trace((2,)), figure=Figure())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install matplotlib, or "\.\[plot\]"'):
        plotting.steps(dist, dist.sample_trace())
