"""Curves of runs, and pictures of what they found."""

import json
import math
from pathlib import Path

import matplotlib
import pytest
import torch
from fake_runs import write_run
from matplotlib.figure import Figure

import gumtrace as gt
from gumtrace_experiments import find
from gumtrace_experiments.commands import main
from gumtrace_experiments.commands import plot as command
from gumtrace_experiments.graph_layout import pictures
from gumtrace_experiments.graph_layout.data import generate
from gumtrace_experiments.report import curves
from gumtrace_experiments.report.records import collect

matplotlib.use("Agg")
REPORT = find("graph-layout").report()


@pytest.fixture
def figures(monkeypatch):
    """Drawn, and kept from being written."""
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: (self.canvas.draw(), kept.append(self)))
    return kept


class Model(torch.nn.Module):
    """Knows the trees, and says so with some confidence."""

    name = "graph-layout"

    def __init__(self, confidence: float = 8.0):
        super().__init__()
        self.data, self.confidence, self.modes = generate(4, 5, (6, 6, 6), progress=False), confidence, []

    def posterior(self, positions):
        self.modes.append(self.training)
        return gt.SpanningTree(self.confidence * self.data.test.trees[: len(positions)].float())

    def draw(self, path, count, split):
        return pictures.draw(self, path, count=count, split=split)


def runs(folder):
    for training in ("unrolled", "teacher-forced"):
        for estimator in ("TraceREINFORCE", "StochasticSoftmax"):
            for seed in range(4):
                about = {"training": training, "estimator": estimator, "seed": seed, "valid": -1000.0 - seed}
                write_run(folder / training / estimator, **about, precision=0.5 + 0.1 * seed, finished=seed < 3)
    return folder


def test_files(tmp_path):
    out = tmp_path / "new" / "plots"
    files = curves.draw(collect([runs(tmp_path)]), REPORT, "elbo", out)
    assert [file.name for file in files] == ["elbo.png", "precision.png"]
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size > 20_000


def test_colours_and_the_legend_are_in_the_order_of_the_table(tmp_path, figures):
    """Whatever a panel lacks."""
    runs(tmp_path)
    shown = [
        r
        for r in collect([tmp_path])
        if (r.config["training"], r.config["estimator"]) != ("unrolled", "StochasticSoftmax")
    ]
    curves.draw(shown, REPORT, "elbo", tmp_path)
    for figure in figures:
        words = [text.get_text() for text in figure.legends[0].get_texts()]
        assert words == ["SST", "T-REINFORCE+", "best mean of the paper"]
        colours = [
            {line.get_label(): line.get_color() for line in ax.lines if not line.get_label().startswith("_")}
            for ax in figure.axes
        ]
        assert colours[0]["T-REINFORCE+"] == colours[1]["T-REINFORCE+"] != colours[1]["SST"]


def test_panels(tmp_path, figures):
    curves.draw(collect([runs(tmp_path)]), REPORT, "elbo", tmp_path)
    for figure in figures:
        assert [ax.get_title() for ax in figure.axes] == [
            "T = 10, unrolled training (the paper's protocol)",
            "T = 10, teacher-forced training (our protocol)",
        ]
        words = [text.get_text() for text in figure.legends[0].get_texts()]
        assert words == ["SST", "T-REINFORCE+", "best mean of the paper"]
        assert all("hollow: not finished" in ax.get_xlabel() for ax in figure.axes)
    elbo, precision = (figure.axes[0] for figure in figures)
    assert elbo.yaxis_inverted()
    for ax, height in ((elbo, 1582.72), (precision, 87)):
        (line,) = [line for line in ax.lines if line.get_label() == "best mean of the paper"]
        assert line.get_ydata()[0] == height
    for ax, middle in ((elbo, 1002), (precision, 60)):  # the worse one of the middle two
        (line,) = [line for line in ax.lines if line.get_label() == "SST"]
        assert line.get_ydata()[-1] == pytest.approx(middle)
        assert sum(line.get_linewidth() < 1 for line in ax.lines) == 8  # the seeds


def test_only_the_setting_that_the_table_shows(tmp_path, figures):
    write_run(tmp_path / "a", valid=-500.0, lr=0.1)
    write_run(tmp_path / "b", valid=-900.0, lr=0.2)
    curves.draw(collect([tmp_path]), REPORT, "elbo", tmp_path)
    (line,) = [line for line in figures[0].axes[0].lines if line.get_label() == "T-REINFORCE+"]
    assert line.get_ydata()[-1] == 500


def test_a_few_evaluations_that_are_far_off_do_not_set_the_axis(tmp_path, figures):
    file = write_run(tmp_path / "a", valid=-500.0, points=20) / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[-3]["elbo"] = -1e30
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    curves.draw(collect([tmp_path]), REPORT, "elbo", tmp_path)
    assert max(figures[0].axes[0].get_ylim()) < 1e4


def share_axis(folder, shares, figures, points=40):
    """The limits of the axis of a share, for runs that rise to these."""
    for seed, share in enumerate(shares):
        write_run(folder, seed=seed, precision=share, points=points)
    curves.draw(collect([folder]), REPORT, "elbo", folder)
    return figures[1].axes[0].get_ylim()


def test_the_axis_of_a_share_is_of_what_comes_late(tmp_path, figures):
    """They rise like the iterations: what comes before a tenth, and the worst tenth of the rest, need not be seen."""
    low, high = share_axis(tmp_path, [0.9, 0.8], figures)
    assert 7 < low < 14  # at 7 of 40 evaluations the poorer one has 14
    assert 90 < high < 100


def test_a_poor_run_is_in_the_picture(tmp_path, figures):
    """One run of five: no quantile over all of them may lose it. Its values do not change, so that all are late."""
    for seed in range(5):
        file = write_run(tmp_path, seed=seed, points=40, training="teacher-forced") / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row["precision"] = 0.22 if seed == 3 else 0.98
        rows[-1]["precision"] = 0.01  # a single evaluation
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    curves.draw(collect([tmp_path]), REPORT, "elbo", tmp_path)
    low, high = figures[1].axes[0].get_ylim()
    assert 10 < low < 22
    assert 98 < high <= 102


def test_small_differences_are_not_made_large(tmp_path, figures):
    for name, settings in (("sst", {"estimator": "StochasticSoftmax"}), ("trace", {})):
        file = write_run(tmp_path / name, points=40, nodes=9, **settings) / "metrics.jsonl"  # without a paper's line
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        level = 0.983 if settings else 0.984
        file.write_text("".join(json.dumps({**row, "precision": level, "elbo": -100.0}) + "\n" for row in rows))
    curves.draw(collect([tmp_path]), REPORT, "elbo", tmp_path)
    low, high = figures[1].axes[0].get_ylim()
    assert 5 < high - low < 8
    elbo = figures[0].axes[0].get_ylim()
    assert elbo[0] > 1.5 * elbo[1]


def test_unusual_calls_are_compared_with_the_best_of_the_usual(tmp_path, figures):
    """A panel of its own, that would have one line: the leader on validation, dashed, and the batch in the title."""
    write_run(tmp_path / "sst", valid=-300.0, estimator="StochasticSoftmax")
    write_run(tmp_path / "few", valid=-400.0)
    write_run(tmp_path / "many", valid=-310.0, calls=2048, samples=16)
    curves.draw(collect([tmp_path]), REPORT, "elbo", tmp_path)
    for figure in figures:
        usual, many = figure.axes
        lines = [{line.get_label(): line for line in ax.lines} for ax in (usual, many)]
        label = "SST, 128 × 1,\nfor comparison"
        assert label not in lines[0]
        assert lines[1][label].is_dashed()
        assert lines[1][label].get_color() == lines[0]["SST"].get_color()
        assert list(lines[1][label].get_ydata()) == list(lines[0]["SST"].get_ydata())
        assert label in [text.get_text() for text in figure.legends[0].get_texts()]
        assert "128 items × 16 structures" in many.get_title()
        assert "calls" not in usual.get_title() + many.get_title()


def test_titles_break_at_commas(tmp_path, figures):
    write_run(tmp_path / "many", calls=2048, samples=16, iterations=20_000)
    curves.draw(collect([tmp_path]), REPORT, "elbo", tmp_path)
    lines = figures[0].axes[0].get_title().splitlines()
    assert lines == [
        "T = 10, unrolled training (the paper's protocol),",
        "128 items × 16 structures, iterations = 20000",
    ]


def test_figures_say_what_their_lines_are(tmp_path, figures):
    curves.draw(collect([runs(tmp_path)]), REPORT, "elbo", tmp_path)
    words = figures[0].legends[0].get_title().get_text().splitlines()
    assert words == ["thick: median of the seeds", "thin: single seeds", "panels have axes of their own"]


def test_odd_runs_can_be_drawn(tmp_path, figures):
    write_run(tmp_path / "diverged", valid=math.nan)
    write_run(tmp_path / "infinite", valid=-math.inf, estimator="RELAX")
    write_run(tmp_path / "fresh", points=0, finished=False, estimator="REBAR")
    write_run(tmp_path / "alone", points=1, training="teacher-forced")
    for frames in (2, 3, 4):
        write_run(tmp_path / f"frames {frames}", frames=frames, points=0, finished=False)
    records = collect([tmp_path])
    curves.draw(records, REPORT, "elbo", tmp_path)
    curves.draw([record for record in records if record.config["frames"] == 2], REPORT, "elbo", tmp_path)
    assert len(figures[0].axes) == 6
    assert sum(ax.get_visible() for ax in figures[0].axes) == 5


def test_pictures(tmp_path, figures):
    model = Model().train()
    assert pictures.draw(model, tmp_path / "found.png", count=4) == tmp_path / "found.png"
    (figure,) = figures
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[::2] == [f"test item {i}: its tree" for i in range(4)]
    assert all(title.startswith("mode 4 of 4, precision ") for title in titles[1::2])
    for left, right in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        true, found = ([line for line in ax.lines if len(line.get_xdata()) == 2] for ax in (left, right))
        assert len(true) == 4
        bold = [line for line in found if line.get_alpha() == 1]
        assert {line.get_color() for line in bold} == {pictures.RIGHT}
        assert sorted(map(_ends, bold)) == sorted(map(_ends, true))
    assert model.modes == [False]  # batch normalisation by what was seen in training
    assert model.training


def test_wrong_edges_look_wrong(tmp_path, figures):
    pictures.draw(Model(-8.0), tmp_path / "found.png", count=1)
    left, right = figures[0].axes
    assert right.get_title().startswith(("mode 0 of 4", "mode 1 of 4"))  # one, where the others make no tree
    wrong = [line for line in right.lines if line.get_color() == pictures.WRONG]
    assert wrong
    assert all(line.get_linestyle() != "-" for line in wrong)
    assert not {line.get_color() for line in left.lines} & {pictures.RIGHT, pictures.WRONG}


def _ends(line):
    return tuple(line.get_xdata()), tuple(line.get_ydata())


def test_command(tmp_path, capsys):
    out = tmp_path / "plots"
    assert main(["plot", "graph-layout", str(runs(tmp_path)), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(out / "elbo.png"), str(out / "precision.png")]
    assert main(["plot", "graph-layout", str(out), "--out", str(out)]) == 2
    assert "gumtrace plot: no run of graph-layout in" in capsys.readouterr().err


def test_experiments_have_folders_of_their_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "graph-layout" / "a")
    write_run(tmp_path / "runs" / "listops" / "a", experiment="listops")
    drawn = []
    for name in ("graph-layout", "listops"):
        assert main(["plot", name, f"runs/{name}"]) == 0
        drawn.append(capsys.readouterr().out.splitlines())
    assert all(drawn)
    assert not {*drawn[0]} & {*drawn[1]}
    assert {str(Path(file).parent) for files in drawn for file in files} == {"plots/graph-layout", "plots/listops"}


def test_command_for_one_run(tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(command, "restore", lambda folder, **_: asked.append(folder) or Model())
    words = ["plot", "graph-layout", "--run", str(tmp_path / "seed-0"), "--out", str(tmp_path / "new"), "--count", "2"]
    assert main(words) == 0
    file = tmp_path / "new" / "found.png"
    assert capsys.readouterr().out == f"{file}\n"
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 20_000
    assert asked == [tmp_path / "seed-0"]
    assert main([*words[:2], str(tmp_path), *words[2:]]) == 2
    assert "one command each" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(words) == 2
    assert "is not a run" in capsys.readouterr().err
