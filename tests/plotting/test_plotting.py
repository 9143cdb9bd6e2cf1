"""Pictures: every structure can be drawn, and what is drawn is what the trace says."""

import subprocess
import sys

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

import gumtrace as gt
from gumtrace import plotting
from gumtrace.recursions import MaximalIndependentSet
from gumtrace.toy import Curve

matplotlib.use("Agg")

EDGES = torch.tensor([[0, 1, 2, 0], [1, 2, 3, 3]])
MAKE = {
    "subset": lambda x: gt.Subset(x(8), 3),
    "subset of nothing": lambda x: gt.Subset(x(3), 0),
    "long subset": lambda x: gt.Subset(x(60), 9),
    "permutation": lambda x: gt.Permutation(x(7)),
    "masked permutation": lambda x: gt.Permutation(x(4), mask=torch.tensor([True, False, True, True])),
    "matching": lambda x: gt.Matching(x(5, 6)),
    "padded matching": lambda x: gt.Matching(x(5, 5), lengths=torch.tensor(3)),
    "tree": lambda x: gt.SpanningTree(x(7, 7)),
    "forest": lambda x: gt.SpanningTree(x(7, 7), components=3),
    "large tree": lambda x: gt.SpanningTree(x(40, 40)),
    "sparse tree": lambda x: gt.SpanningTree.from_edges(x(4), EDGES, 4),
    "arborescence": lambda x: gt.Arborescence(x(7, 7)),
    "one node": lambda x: gt.Arborescence(x(1, 1)),
    "binary tree": lambda x: gt.BinaryTree(x(7)),
    "no token": lambda x: gt.BinaryTree(x(0)),
    "custom": lambda x: gt.Custom(x(6), MaximalIndependentSet(torch.eye(6).roll(1, 0))),
}


def _case(name, seed=0):
    generator = torch.Generator().manual_seed(seed)
    dist = MAKE[name](lambda *shape: torch.randn(shape, generator=generator))
    return dist, dist.sample_trace(generator=generator)


def _axes():
    return Figure().subplots()


def _words(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("name", MAKE)
def test_everything_can_be_drawn(name):
    dist, trace = _case(name)
    for logits in (None, dist.logits):
        ax = _axes()
        assert plotting.structure(trace, ax=ax, logits=logits, title=name) is ax
        assert ax.get_title() == name
        ax.figure.canvas.draw()
    plotting.decisions(trace, ax=_axes())


@pytest.mark.parametrize("seed", range(5))
def test_an_arborescence_shows_every_winning_edge_once(seed):
    _, trace = _case("arborescence", seed)
    ax = plotting.structure(trace, ax=_axes())
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    assert sum(arrow.get_linestyle() == "solid" for arrow in arrows) == 6
    assert len(arrows) == (trace.winners >= 0).sum()


def test_numbers_and_names():
    _, trace = _case("tree")
    words = _words(plotting.structure(trace, ax=_axes(), labels="abcdefg"))
    assert sorted(words[:13]) == [*"123456", *"abcdefg"]
    _, trace = _case("subset")
    words = _words(plotting.structure(trace, ax=_axes(), labels="abcdefgh"))
    for step, key in enumerate(trace.winners.tolist()):
        assert words[words.index("abcdefgh"[key]) + 1] == str(step + 1)
    _, trace = _case("matching")
    words = _words(plotting.structure(trace, ax=_axes(), labels=("abcde", "uvwxyz")))
    assert set("abcdeuvwxyz") < set(words)


def test_weights_show():
    _, trace = _case("subset")
    logits = torch.arange(8.0)
    logits[0] = -torch.inf
    heights = [bar.get_height() for bar in plotting.structure(trace, ax=_axes(), logits=logits).patches]
    assert heights == sorted(heights)
    assert heights[-1] > 10 * heights[0]
    with pytest.raises(ValueError, match="do not fit a trace over 8 keys"):
        plotting.structure(trace, ax=_axes(), logits=torch.zeros(7))


def test_gallery(tmp_path):
    traces = {name: _case(name)[1] for name in ("subset", "tree", "arborescence", "binary tree")}
    path = plotting.gallery(traces, tmp_path / "all.png", labels={"tree": "abcdefg"})
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


def test_a_new_figure_where_none_is_given():
    from matplotlib import pyplot

    ax = plotting.structure(_case("subset")[1])
    assert ax.figure.number in pyplot.get_fignums()
    pyplot.close(ax.figure)


def test_plotting_and_steps_are_attributes_that_are_imported_when_asked_for():
    """And matplotlib later still: when something is drawn. Pyro, an extra, is not among what `dir` lists."""
    script = """
import sys
import gumtrace as gt
assert not {"gumtrace.plotting", "gumtrace.steps"} & sys.modules.keys()
assert {"plotting", "steps", "Subset", "__version__"} < set(dir(gt)) and "pyro" not in dir(gt)
assert callable(gt.steps.steps)
assert callable(gt.plotting.variance) and callable(gt.plotting.optimisation)
assert "matplotlib" not in sys.modules
assert not hasattr(gt, "painting")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_gradient_noise_as_bars():
    dist, f = gt.Subset(torch.zeros(4), 2), lambda x: x[..., 0]
    builds = {
        "one": gt.estimators.TraceREINFORCE(samples=1, leave_one_out=False),
        "many": gt.estimators.TraceREINFORCE(samples=8),
    }
    ax = plotting.variance(gt.diagnostics.gradient_statistics(builds, dist, f, 50), _axes())
    assert [bar.get_width() for bar in ax.patches] == sorted((bar.get_width() for bar in ax.patches), reverse=True)


def test_every_curve_has_its_own_line(monkeypatch, tmp_path):
    """Dashed where the colours run out."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: figures.append(self))
    curves = [Curve(f"estimator {i}", 0, [0, 1], [2.0, 1.0], [0.2, 0.1]) for i in range(20)]
    plotting.optimisation(curves, tmp_path / "curves.png")
    for ax in figures[0].axes:
        looks = [(line.get_color(), line.get_linestyle()) for line in ax.lines]
        assert len(set(looks)) == 20
        assert {style for _, style in looks[:9]} == {"-"}


def test_errors(monkeypatch, tmp_path):
    traces = _case("subset")[0].sample_trace((2,))
    with pytest.raises(ValueError, match="index it first"):
        plotting.structure(traces, ax=_axes())
    dist = _case("subset")[0]
    for draw in (plotting.structure, plotting.decisions, lambda x: plotting.gallery({"a": x}, tmp_path / "a.png")):
        for given in (dist, dist.sample()):
            name = type(given).__name__
            with pytest.raises(
                TypeError, match=rf"a picture shows a trace, got {name}: draw one, dist.sample_trace\(\)"
            ):
                draw(given)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (lambda: plotting.structure(traces[0]), lambda: plotting.gallery({"a": traces[0]}, tmp_path / "a.png")):
        with pytest.raises(ImportError, match=r'pip install matplotlib, or "\.\[plot\]"'):
            draw()
