"""`gumtrace table`: where it finds runs, what it prints, and what it refuses."""

import shlex
import sys
from pathlib import Path

import few_runs as a_few
import pytest
from fake_runs import MACHINE, write_run
from few_runs import MARKDOWN

from gumtrace_experiments import find
from gumtrace_experiments.commands import main
from gumtrace_experiments.commands.options import parse
from gumtrace_experiments.commands.table import again
from gumtrace_experiments.commands.train import Options
from gumtrace_experiments.report.records import collect, load

few_runs = a_few.few_runs
COMMANDS = """
<details><summary>Our rows again</summary>

```bash
gumtrace train graph-layout --estimator StochasticSoftmax --samples 1 --lr 0.001 --training unrolled --device cuda \
--graph --seeds 4
gumtrace train graph-layout --estimator TraceREINFORCE --samples 8 --lr 0.0003 --training unrolled --device cuda \
--graph --seeds 0-2
```

</details>
"""


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
    first, second = block.partition("\n```")[0].splitlines()
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
    for number, folder in ((333, Path("experiments/results")), (222, Path("results"))):  # of a checkout, and one's own
        write_run(folder / "graph-layout", test=-number)
        assert main(["table", "graph-layout"]) == 0
        assert f"−{number}.00" in capsys.readouterr().out


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
        output = "from results/graph-layout; runs/graph-layout has 1 run that is not shown: give it as PATH\n"
        assert capsys.readouterr().err == output
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
    assert "must end in .jsonl" in capsys.readouterr().err
    page = tmp_path / "page.md"
    assert main(["table", "graph-layout", str(folder), "--into", str(page)]) == 2
    assert f"gumtrace table: {page}: No such file" in capsys.readouterr().err
    page.write_text("no marks")
    assert main(["table", "graph-layout", str(folder), "--into", str(page)]) == 2
    assert "has no <!-- graph-layout -->" in capsys.readouterr().err
    (folder / "result.json").write_text("{")
    assert main(["table", "graph-layout", str(folder)]) == 2
    assert "result.json: damaged" in capsys.readouterr().err


DAMAGED = {"result.json": ("[]", "not a JSON object"), "metrics.jsonl": ("{\n{}\n", "line 1: damaged, or not JSON")}


@pytest.mark.parametrize("file", DAMAGED)
@pytest.mark.parametrize("command", ["table", "plot"])
def test_damaged_runs_do_not_hide_the_others(command, file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, why = DAMAGED[file]
    write_run(Path("good"), test=-111.0)
    (write_run(Path("bad"), seed=1) / file).write_text(text)
    assert main([command, "graph-layout", "good", "bad"]) == 1
    out, err = capsys.readouterr()
    assert ("−111.00" if command == "table" else "plots/graph-layout/elbo.png") in out
    assert err.startswith(f"gumtrace {command}: left out: bad/seed-1/{file}")
    assert why in err
    assert len(err.splitlines()) == 1
    assert main([command, "graph-layout", "bad"]) == 2
    assert capsys.readouterr().err.startswith(f"gumtrace {command}: bad/seed-1/{file}")


@pytest.mark.parametrize("command", ["table", "plot"])
def test_damaged_runs_of_other_experiments_are_no_part_of_it(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs"))
    other = write_run(Path("runs"), seed=1, experiment="listops")
    (other / "result.json").write_text("[]")
    options = ["--save", "all.jsonl"] if command == "table" else []
    assert main([command, "graph-layout", "runs", *options]) == 0
    assert "listops" not in capsys.readouterr().err
    (other / "config.json").write_text("{")  # whose it is cannot be told
    assert main([command, "graph-layout", "runs"]) == 1
    assert capsys.readouterr().err.startswith(f"gumtrace {command}: left out: {other / 'config.json'}")


@pytest.mark.parametrize("option", ["--save", "--into"])
def test_no_file_is_written_without_the_damaged_runs(option, tmp_path, capsys):
    write_run(tmp_path / "good")
    (write_run(tmp_path / "bad", seed=1) / "result.json").write_text("[]")
    (file := tmp_path / "file").write_text("<!-- graph-layout -->\nwhole\n<!-- /graph-layout -->\n")
    before = file.read_text()
    folders = [str(tmp_path / name) for name in ("good", "bad")]
    assert main(["table", "graph-layout", *folders, option, str(file)]) == 2
    assert "bad/seed-1/result.json" in capsys.readouterr().err
    assert file.read_text() == before


def test_pictures_in_a_file_are_refused(tmp_path, capsys):
    folder = write_run(tmp_path / "runs")
    assert main(["plot", "graph-layout", str(folder), "--out", str(folder / "config.json")]) == 2
    error = f"cannot write into {folder / 'config.json'}: it is a file; choose another --out\n"
    assert capsys.readouterr().err == f"gumtrace plot: {error}"
