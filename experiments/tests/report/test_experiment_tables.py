"""Tables of runs: statistics, the choice of settings, how it is printed."""

import json
import math
from dataclasses import replace

import few_runs as a_few
import pytest
from fake_runs import write_run
from few_runs import MARKDOWN, several

from gumtrace_experiments import find
from gumtrace_experiments.columns import Spread
from gumtrace_experiments.commands import main
from gumtrace_experiments.graph_layout.paper import GRADIENT_STD, RESULTS
from gumtrace_experiments.report.groups import choices, spread
from gumtrace_experiments.report.names import family, title
from gumtrace_experiments.report.records import collect
from gumtrace_experiments.report.rendering import markdown, plain
from gumtrace_experiments.report.tables import Table, build, number

few_runs = a_few.few_runs
REPORT = find("graph-layout").report()


def chosen(tmp_path):
    """What is shown of each estimator, with its test ELBOs."""
    return {c.estimator: c for c in choices(collect([tmp_path]), REPORT, "elbo")}


def elbo(choice) -> Spread:
    return choice.group.spread(REPORT.columns[0])


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
    assert " 2 runs were given up by a search, and not averaged.\n\n### T = 10, unrolled" in page


def test_a_curriculum_is_named(tmp_path):
    write_run(tmp_path / "a", curriculum="1:10", samples=8)
    (table,), _ = build(collect([tmp_path]), REPORT, "elbo")
    assert table.notes == ("T-REINFORCE+ (K = 8): seed 0; curriculum 1:10.",)
    write_run(tmp_path / "b", curriculum="1:20", valid=-2000.0, samples=8)
    (table,), _ = build(collect([tmp_path]), REPORT, "elbo")
    assert table.notes == ("T-REINFORCE+ (K = 8): seed 0; curriculum 1:10, of 2 settings.",)


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


def test_what_is_folded(few_runs):
    """Nothing but the gradients; and where an overview has the blocks, they are too."""
    result = next((few_runs / "d").rglob("result.json"))
    result.write_text(json.dumps({**json.loads(result.read_text()), "gradient_std": {"end": 2.0}}))
    tables, notes = build(collect([few_runs]), REPORT, "elbo")
    assert [table.folded for table in tables] == [False, True]
    page = markdown(tables, notes)
    assert page.startswith(notes[0])
    title = "Standard deviation of the gradient to a logit, T = 10, unrolled training (the paper's protocol)"
    assert f"\n\n<details><summary>{title}</summary>\n\n| estimator | by | beginning |" in page
    assert page.endswith(f"{tables[1].notes[0]}\n\n</details>\n")
    whole = replace(REPORT, overview=lambda shown: [Table("all", ("estimator", "by"), (), ())])
    assert [table.folded for table in build(collect([few_runs]), whole, "elbo")[0]] == [False, True, True]
    nothing = replace(REPORT, overview=lambda shown: [])
    assert [table.folded for table in build(collect([few_runs]), nothing, "elbo")[0]] == [False, True]


def test_plain_text_is_in_columns(few_runs):
    lines = plain(*build(collect([few_runs]), REPORT, "elbo")).splitlines()
    assert lines[0] == "T = 10, unrolled training (the paper's protocol)"
    assert len({len(line) for line in lines[1:7]}) == 1
    assert lines[6].startswith("T-REINFORCE+ (K = 8) †  ours ")
    assert lines[6].endswith("  3         2")


def test_the_papers_numbers():
    """As printed: tables nri1, nri2 and nri-var of the paper."""
    shown = {T: {row.estimator: row.spreads for row in rows} for T, rows in RESULTS.items()}
    assert shown == {
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
