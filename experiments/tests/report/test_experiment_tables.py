"""Tables of runs: statistics, the choice of settings, how it is printed."""

import json
import math
import shlex
import sys
from pathlib import Path

import pytest
from fake_runs import MACHINE, write_run

from gumtrace_experiments import find
from gumtrace_experiments.commands import main
from gumtrace_experiments.commands.options import parse
from gumtrace_experiments.commands.table import again
from gumtrace_experiments.commands.train import Options
from gumtrace_experiments.graph_layout.paper import GRADIENT_STD, RESULTS
from gumtrace_experiments.report.groups import choices, spread
from gumtrace_experiments.report.layout import Spread
from gumtrace_experiments.report.names import family, title
from gumtrace_experiments.report.records import collect, load
from gumtrace_experiments.report.rendering import markdown, plain
from gumtrace_experiments.report.tables import build, number

REPORT = find("graph-layout").report()
MARKDOWN = """\
**T = 10, unrolled training (the paper's protocol)**

| estimator | by | ELBO | best | edge precision, % | best | edge recall, % | best | seeds | settings |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
| SST | paper | −1860.79 ± 1116.83 | −1374.81 | **87 ± 21** | 95 | **93 ± 3** | 95 | 10 | 20 |
| T-REINFORCE+ † | paper | −1582.72 ± 571.18 | −1192.04 | 70 ± 31 | 91 | 86 ± 8 | 91 | 10 | 20 |
| RELAX † | paper | −2079.18 ± 569.49 | −1205.87 | 43 ± 31 | 90 | 81 ± 6 | 90 | 10 | 20 |
| SST | ours | −2000.00 | −2000.00 | 25.0 | 25.0 | 25.0 | 25.0 | 1 | 1 |
| T-REINFORCE+ (K = 8) † | ours | **−910.00 ± 10.00** | **−900.00** | 80.0 ± 20.0 | **100.0** | 80.0 ± 20.0 \
| **100.0** | 3 | 2 |

SST: seed 4. T-REINFORCE+ (K = 8): seeds 0–2; lr 0.0003, of 2 settings. T-REINFORCE+: 1 run is not finished, and not \
averaged.

† unbiased gradients. Mean ± standard deviation over seeds, and the best seed, on test. Checkpoints are chosen by ELBO \
on validation, and so is the setting that is shown: the best mean of those that were run with at least half as many \
seeds as any other. Settings: ours that are among these runs, the paper's of its search. Ours: \
NVIDIA H200, torch 2.13.0, 2026-11-16.
"""
COMMANDS = """
Our rows again:

```bash
gumtrace train graph-layout --estimator StochasticSoftmax --samples 1 --lr 0.001 --training unrolled --device cuda \
--graph --seeds 4
gumtrace train graph-layout --estimator TraceREINFORCE --samples 8 --lr 0.0003 --training unrolled --device cuda \
--graph --seeds 0-2
```
"""


def several(folder, valid, test, **config):
    """Runs with seeds 0, 1, ..."""
    for seed, (v, t) in enumerate(zip(valid, test, strict=True)):
        write_run(folder, seed=seed, valid=v, test=t, **config)


def chosen(tmp_path):
    """What is shown of each estimator, with its test ELBOs."""
    return {c.estimator: c for c in choices(collect([tmp_path]), REPORT, "elbo")}


def elbo(choice) -> Spread:
    return choice.group.spread(REPORT.columns[0])


@pytest.fixture
def few_runs(tmp_path):
    for seed, (test, precision) in enumerate([(-900.0, 0.8), (-910.0, 0.6), (-920.0, 1.0)]):
        write_run(tmp_path / "a", seed=seed, test=test, valid=test, precision=precision, samples=8, lr=0.0003)
    several(tmp_path / "b", [-2000.0] * 2, [-2000.0] * 2, samples=8, lr=0.001)
    write_run(tmp_path / "c", seed=0, samples=8, lr=0.0003, finished=False, points=1)  # the same run as one of a
    write_run(tmp_path / "c", seed=9, samples=8, lr=0.0003, finished=False, valid=-1.0)
    write_run(tmp_path / "d", seed=4, estimator="StochasticSoftmax", test=-2000.0, valid=-2000.0, precision=0.25)
    return tmp_path


def test_statistics_by_hand():
    assert spread([-900.0, -910.0, -920.0]) == (-910.0, 10.0, -900.0)
    found = spread([1.0, 2.0, 3.0, 4.0], larger=False)
    assert found == pytest.approx((2.5, math.sqrt(5 / 3), 1.0))  # 2.25 + 0.25 + 0.25 + 2.25 over 3
    assert spread([7.0]) == (7.0, None, 7.0)
    diverged = spread([1.0, math.nan])
    assert diverged.best == 1.0
    assert math.isnan(diverged.mean)


def test_the_setting_is_chosen_on_validation_and_not_on_test(tmp_path):
    several(tmp_path / "a", [-500.0, -700.0], [-1500.0, -1700.0], lr=0.1)  # best on validation
    several(tmp_path / "b", [-800.0, -400.1], [-10.0, -10.0], lr=0.2)  # best on test, best single seed on validation
    choice = chosen(tmp_path)["TraceREINFORCE"]
    assert choice.group.setting["lr"] == 0.1
    assert elbo(choice).mean == -1600.0
    assert choice.tuned() == {"lr": 0.1}
    assert len(choice.tried) == 2


def test_a_lucky_seed_of_a_search_does_not_beat_the_mean_of_many(tmp_path):
    several(tmp_path / "a", [-500.0, -700.0, -900.0], [0.0] * 3, lr=0.1)
    several(tmp_path / "b", [-400.0], [0.0], lr=0.2)
    assert chosen(tmp_path)["TraceREINFORCE"].group.setting["lr"] == 0.1
    write_run(tmp_path / "b", seed=1, valid=-400.0, lr=0.2)  # two seeds are enough to compete with three
    assert chosen(tmp_path)["TraceREINFORCE"].group.setting["lr"] == 0.2


def test_a_setting_that_diverged_is_the_worst(tmp_path):
    several(tmp_path / "a", [-9000.0, -9000.0], [-9000.0, -9000.0], lr=0.1)
    several(tmp_path / "b", [-1.0, math.nan], [-1.0, math.nan], lr=0.2)
    assert chosen(tmp_path)["TraceREINFORCE"].group.setting["lr"] == 0.1


def test_runs_that_are_not_finished_are_counted_and_not_averaged(few_runs):
    choice = chosen(few_runs)["TraceREINFORCE"]
    assert len(choice.group.records) == 4
    assert elbo(choice) == (-910.0, 10.0, -900.0)
    assert choice.unfinished == 1
    (table,), _ = build(collect([few_runs]), REPORT, "elbo")
    assert table.notes[-1] == "T-REINFORCE+: 1 run is not finished, and not averaged."


def test_runs_that_a_search_gave_up_are_no_unfinished_ones(few_runs, capsys):
    for lr in (0.01, 0.1):
        folder = write_run(few_runs / str(lr), samples=8, lr=lr, finished=False, valid=-1.0)
        (folder / "pruned.json").write_text("{}")
    choice = chosen(few_runs)["TraceREINFORCE"]
    assert (choice.unfinished, len(choice.tried)) == (1, 4), "but they are settings that were tried"
    file = few_runs / "h200.jsonl"
    assert main(["table", "graph-layout", str(few_runs), "--save", str(file)]) == 0
    assert main(["table", "graph-layout", str(file), "--format", "markdown"]) == 0
    page = capsys.readouterr().out
    assert "1 run is not finished, and not averaged." in page
    assert " 2 runs were given up by a search, and not averaged.\n\nOur rows again:" in page


def test_where_nothing_is_finished_there_is_no_row_but_a_note(tmp_path):
    for seed in range(2):
        write_run(tmp_path, seed=seed, finished=False)
    (table,), notes = build(collect([tmp_path]), REPORT, "elbo")
    assert {row[1].text for row in table.rows} == {"paper"}
    assert table.notes == ("T-REINFORCE+: 2 runs are not finished, and not averaged.",)
    assert not any("Ours" in note for note in notes)


def test_blocks(tmp_path):
    for frames in (20, 10):
        for training in ("teacher-forced", "unrolled"):
            write_run(tmp_path / f"{frames}{training}", frames=frames, training=training)
    write_run(tmp_path / "small", nodes=5)  # other data: nothing to compare with
    write_run(tmp_path / "short", iterations=100)
    tables, _ = build(collect([tmp_path]), REPORT, "elbo")
    assert [table.title for table in tables] == [
        "T = 10, unrolled training (the paper's protocol)",
        "T = 10, unrolled training (the paper's protocol), iterations = 100",
        "T = 10, unrolled training (the paper's protocol), nodes = 5",
        "T = 10, teacher-forced training (our protocol)",
        "T = 20, unrolled training (the paper's protocol)",
        "T = 20, teacher-forced training (our protocol)",
    ]
    sources = [[row[1].text for row in table.rows] for table in tables]
    assert sources[0] == ["paper"] * 3 + ["ours"]
    assert sources[1] == sources[2] == ["ours"]
    assert sources[3] == ["paper, unrolled"] * 3 + ["ours"]
    assert tables[4].rows[0][2].text == "−2039.42 ± 1079.56"


def test_rows_are_in_the_papers_order(tmp_path):
    names = ["StochasticSoftmax", "GumbelRao", "TraceREINFORCE", "RELAX", "Homemade"]
    for name in reversed(names):
        write_run(tmp_path / name, estimator=name)
    assert list(chosen(tmp_path)) == names


def test_names():
    assert family("StructureREINFORCE") == "X-REINFORCE+"
    assert title({"estimator": "NoiseREINFORCE", "samples": 2}) == "E-REINFORCE+ (K = 2) †"
    assert title({"estimator": "SurrogateREINFORCE", "samples": 4}) == "Surrogate (K = 4) †"
    assert title({"estimator": "GumbelRao", "samples": 1}) == "Gumbel-Rao"
    assert number(-0.5, 1) == "−0.5"


def test_standard_deviations_of_gradients(tmp_path):
    """Of RELAX there would be none: whatever has no noise estimates nothing."""
    for seed, stds in ((0, (3.0, 1.0, 0.5)), (1, (5.0,)), (2, (0.0, 0.0, 0.0))):
        folder = write_run(tmp_path, seed=seed, estimator="RELAX" if seed == 2 else "TraceREINFORCE")
        result = json.loads((folder / "result.json").read_text())
        found = dict(zip(("beginning", "half-way", "end"), stds, strict=False))
        (folder / "result.json").write_text(json.dumps({**result, "gradient_std": found}))
    (_, table), _ = build(collect([tmp_path]), REPORT, "elbo")
    assert [row[0].text for row in table.rows if row[1].text == "ours"] == ["T-REINFORCE †"]
    cells = {row[1].text: [cell.text for cell in row[2:]] for row in table.rows if row[0].text.startswith("T-REINF")}
    assert cells == {"paper": ["1.632", "1.441", "0.9924"], "ours": ["4", "1", "0.5"]}


def test_machines(tmp_path):
    for seed, day in enumerate(("16", "19", "17")):
        machine = {"device": "cpu", "cpu": "an EPYC", "torch": "2.13.0", "date": f"2026-11-{day}"}
        write_run(tmp_path, seed=seed, machine=machine)
    write_run(tmp_path, seed=3, machine={"odd": 1})
    notes = build(collect([tmp_path]), REPORT, "elbo")[1]
    assert notes[2:] == [
        "Ours: an EPYC, torch 2.13.0, 2026-11-16 to 2026-11-19.",
        "Ours: unknown device, torch unknown.",
    ]


def test_markdown(few_runs):
    assert markdown(*build(collect([few_runs]), REPORT, "elbo")) == MARKDOWN


def test_plain_text_is_in_columns(few_runs):
    lines = plain(*build(collect([few_runs]), REPORT, "elbo")).splitlines()
    assert lines[0] == "T = 10, unrolled training (the paper's protocol)"
    assert len({len(line) for line in lines[1:7]}) == 1
    assert lines[6].startswith("T-REINFORCE+ (K = 8) †  ours ")
    assert lines[6].endswith("  3         2")


def test_the_papers_numbers():
    """As printed: tables nri1, nri2 and nri-var of the paper."""
    told = {T: {row.estimator: row.spreads for row in rows} for T, rows in RESULTS.items()}
    assert told == {
        10: {
            "StochasticSoftmax": ((-1860.79, 1116.83, -1374.81), (87, 21, 95), (93, 3, 95)),
            "TraceREINFORCE": ((-1582.72, 571.18, -1192.04), (70, 31, 91), (86, 8, 91)),
            "RELAX": ((-2079.18, 569.49, -1205.87), (43, 31, 90), (81, 6, 90)),
        },
        20: {
            "StochasticSoftmax": ((-2039.42, 1079.56, -1483.31), (83, 30, 98), (93, 9, 98)),
            "TraceREINFORCE": ((-1976.16, 980.12, -1458.81), (83, 30, 98), (94, 8, 98)),
            "RELAX": ((-3129.51, 1464.88, -1594.85), (60, 37, 98), (90, 8, 98)),
        },
    }
    assert {(row.seeds, row.settings) for rows in RESULTS.values() for row in rows} == {(10, 20)}
    assert GRADIENT_STD == {
        "StochasticSoftmax": (0.1674, 0.0343, 0.0379),
        "TraceREINFORCE": (1.6320, 1.4409, 0.9924),
        "RELAX": (3.0592, 1.0292, 0.8874),
    }


@pytest.mark.parametrize("rich", [True, False])
def test_command(few_runs, capsys, monkeypatch, rich):
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
        monkeypatch.setitem(sys.modules, "rich.console", None)
    write_run(few_runs / "other", experiment="listops")
    file = few_runs / "new" / "h200.jsonl"
    assert main(["table", "graph-layout", str(few_runs), "--save", str(file)]) == 0
    out, err = capsys.readouterr()
    for words in (
        "−1582.72 ± 571.18",
        "−910.00 ± 10.00",
        "T-REINFORCE+ (K = 8) †",
        "† unbiased",
        "not averaged",
        "Our rows again",
    ):
        assert words in out
    assert err == f"7 runs in {file}\n"
    assert {record.experiment for record in load(file)} == {"graph-layout"}
    assert main(["table", "graph-layout", str(file), "--format", "markdown"]) == 0
    assert capsys.readouterr().out == MARKDOWN + COMMANDS


def test_the_commands_train_what_the_table_shows(tmp_path, capsys):
    """Read again, they are its configs and its seeds; runs of a CPU are not sent to a GPU."""
    about = {"samples": 2, "lr": 0.0003, "training": "teacher-forced", "clip": 0.5, "decoder_lr": 0.0}
    for seed in (0, 1, 3):
        write_run(tmp_path, seed=seed, estimator="RELAX", machine={**MACHINE, "device": "cpu"}, **about)
    (line,) = again(collect([tmp_path]), find("graph-layout"))
    program, verb, name, *words = shlex.split(line)
    assert (program, verb, name) == ("gumtrace", "train", "graph-layout")
    config, options = parse(find(name), words, Options, "train")
    assert config == find(name).config_type(estimator="RELAX", **about)
    assert (options.seeds, options.device, options.graph) == ("0-1,3", "cpu", False)


def test_records_of_another_version_have_no_command(tmp_path, capsys):
    """But they are shown, and the others have theirs."""
    write_run(tmp_path / "a", estimator="RELAX", no_such_setting=1)
    write_run(tmp_path / "b", estimator="GumbelRao", samples=1)
    assert main(["table", "graph-layout", str(tmp_path), "--format", "markdown"]) == 0
    *_, block = capsys.readouterr().out.split("```bash\n")
    first, second, _ = block.splitlines()
    assert first.startswith("gumtrace train graph-layout --estimator GumbelRao ")
    assert second.startswith("# RELAX: not a config of this version: ")
    assert "no_such_setting" in second


def test_command_finds_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["table", "graph-layout"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("gumtrace table: no run of graph-layout in runs/graph-layout; to train some: gumtrace train ")
    write_run(tmp_path / "runs" / "graph-layout", test=-111.0)
    assert main(["table", "graph-layout"]) == 0
    assert "−111.00" in capsys.readouterr().out
    write_run(tmp_path / "results" / "graph-layout", test=-222.0)
    assert main(["table", "graph-layout"]) == 0
    assert "−222.00" in capsys.readouterr().out


def test_command_says_which_runs_it_leaves_out(tmp_path, capsys, monkeypatch):
    """One of the same config with other results is another, and one that was recorded is not."""
    monkeypatch.chdir(tmp_path)
    own, recorded = Path("runs/graph-layout"), Path("results/graph-layout")
    write_run(own, test=-111.0)
    assert main(["table", "graph-layout", "--save", str(recorded / "own.jsonl")]) == 0
    capsys.readouterr()
    assert main(["table", "graph-layout"]) == 0
    assert capsys.readouterr().err == ""
    (recorded / "own.jsonl").unlink()
    write_run(recorded, test=-222.0)
    write_run(own / "other", experiment="listops")
    for command in (["table"], ["plot", "--out", "plots"]):
        assert main([*command, "graph-layout"]) == 0
        said = "from results/graph-layout; runs/graph-layout has 1 run that is not shown: give it as PATH\n"
        assert capsys.readouterr().err == said
    write_run(own, seed=1)
    assert main(["table", "graph-layout"]) == 0
    assert "has 2 runs that are not shown" in capsys.readouterr().err
    assert main(["table", "graph-layout", str(own)]) == 0
    assert capsys.readouterr().err == ""
    (own / "seed-1" / "result.json").write_text("{")
    assert main(["table", "graph-layout"]) == 0
    assert "runs/graph-layout is not shown, and cannot be read: " in capsys.readouterr().err


def test_command_refuses(tmp_path, capsys):
    assert main(["table", "graph-layout", str(tmp_path / "nowhere")]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err
    folder = write_run(tmp_path / "runs")
    assert main(["table", "graph-layout", str(folder), "--save", str(tmp_path / "r.txt")]) == 2
    assert "has to end in .jsonl" in capsys.readouterr().err
    page = tmp_path / "page.md"
    assert main(["table", "graph-layout", str(folder), "--into", str(page)]) == 2
    assert f"gumtrace table: {page}: No such file" in capsys.readouterr().err
    page.write_text("no marks")
    assert main(["table", "graph-layout", str(folder), "--into", str(page)]) == 2
    assert "has no <!-- graph-layout -->" in capsys.readouterr().err
    (folder / "result.json").write_text("{")
    assert main(["table", "graph-layout", str(folder)]) == 2
    assert "result.json: damaged" in capsys.readouterr().err
