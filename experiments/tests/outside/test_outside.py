"""Anybody's experiment: a class outside of this repository, by module:Class and by an entry point; every command."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import one_file
import pytest

from gumtrace.estimators import ESTIMATORS, TraceREINFORCE
from gumtrace_experiments import Config, Experiment, evaluate, find, names, register, registry, restore, train
from gumtrace_experiments.commands import main
from gumtrace_experiments.loop import side_by_side
from gumtrace_experiments.report.records import collect
from gumtrace_experiments.store.errors import RunFolderError

pytestmark = pytest.mark.usefixtures("one_thread")
MINE = "one_file:Mine"
SHORT = ["--calls", "32", "--iterations", "12", "--evaluate-every", "4", "--lr", "0.1"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """In a folder of its own, and in a process that has not met the class yet."""
    monkeypatch.setattr(registry, "_registered", {})
    registry._installed.cache_clear()
    monkeypatch.chdir(tmp_path)
    yield
    registry._installed.cache_clear()


@pytest.fixture
def installed(monkeypatch):
    """installed(name=value): distributions with these entry points are installed."""

    def install(**entries):
        points = [EntryPoint(name, value, registry.GROUP) for name, value in entries.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: points)

    return install


def printed(capsys):
    return capsys.readouterr().out


@pytest.mark.parametrize("door", ["module:Class", "entry point"])
def test_every_command(door, installed, capsys):
    if door == "entry point":
        installed(mine=MINE)
    name = "mine" if door == "entry point" else MINE
    assert main(["train", name, *SHORT, "--seeds", "0-1"]) == 0
    runs = Path("runs/mine/TraceREINFORCE,calls=32,iterations=12,evaluate_every=4,lr=0.1")
    assert f"runs in {runs}" in printed(capsys)
    result = json.loads((runs / "seed-0" / "result.json").read_text())
    assert result["gradient_std"] == {}
    assert main(["evaluate", name]) == 0
    rows = [json.loads(line) for line in printed(capsys).splitlines()]
    assert rows[0] == {"run": str(runs / "seed-0"), "split": "test", **result["test"]}
    assert len(rows) == 2
    assert main(["table", name]) == 0
    table = printed(capsys)
    assert "worth" in table
    assert "seeds 0–1." in table
    assert f"gumtrace train {name} --estimator TraceREINFORCE --calls 32 " in table
    assert main(["plot", name, "--out", "plots"]) == 0
    assert Path("plots/worth.png").stat().st_size > 10_000
    assert main(["sweep", name, *SHORT[:6], "--trials", "2", "--seed-sampler", "0"]) == 0
    assert f"gumtrace train {name} " in printed(capsys)
    assert len(collect(["runs/sweep-mine"])) == 2


def test_smoke_has_a_default(capsys):
    assert main(["train", MINE, "--smoke", "--out", "short"]) == 0
    assert json.loads(Path("short/seed-0/config.json").read_text())["config"]["iterations"] == 60


def test_a_run_that_was_cut_off_resumes(monkeypatch):
    main(["train", MINE, *SHORT, "--out", "whole"])
    advance = side_by_side.Run.advance

    def cut(run):
        if run.iteration == 6:
            raise KeyboardInterrupt
        return advance(run)

    with monkeypatch.context() as patch:
        patch.setattr(side_by_side.Run, "advance", cut)
        assert main(["train", MINE, *SHORT, "--out", "parts"]) == 130
    assert main(["train", MINE, *SHORT, "--out", "parts"]) == 0
    whole, parts = (Path(folder, "seed-0", "metrics.jsonl").read_text() for folder in ("whole", "parts"))
    assert whole == parts


@pytest.mark.slow
def test_as_a_console_script_the_working_folder_is_searched(tmp_path):
    """In a process whose path does not have it."""
    shutil.copy(one_file.__file__, tmp_path / "module_of_my_own.py")
    code = (
        "import sys; sys.path.remove(''); from gumtrace_experiments.commands import main; sys.exit(main(sys.argv[1:]))"
    )
    path = [entry for entry in sys.path if entry and Path(entry) != Path(one_file.__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", code, "train", "module_of_my_own:Mine", *SHORT, "--out", "out"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out/seed-0/config.json").read_text())["class"] == "module_of_my_own:Mine"


def test_a_run_of_an_experiment_that_is_not_known(capsys):
    """It is a good run: the message says how to read it, and does not advise to delete it."""
    train(one_file.Mine, Config(calls=32, iterations=4, evaluate_every=4), Path("runs/mine"), progress=False)
    assert main(["evaluate", "runs"]) == 2
    output = capsys.readouterr().err
    assert "runs/mine/seed-0 is a run of 'mine' (one_file:Mine), which is not known here" in output
    assert "gumtrace evaluate one_file:Mine runs/mine/seed-0" in output
    assert "delete" not in output
    assert len(collect(["runs"])) == 1  # its record can be read
    assert main(["evaluate", MINE, "runs/mine/seed-0"]) == 0
    assert main(["evaluate", "runs"]) == 0  # it is known now
    assert "mine" in names()


def test_the_class_that_a_file_names_is_not_imported(capsys):
    train(one_file.Mine, Config(calls=32, iterations=4, evaluate_every=4), Path("runs"), progress=False)
    file = Path("runs/seed-0/config.json")
    about = json.loads(file.read_text())
    Path("imported.py").write_text("raise RuntimeError('code from a file')")
    for where in ("imported:Mine", "not a class; rm -rf", 3):
        file.write_text(json.dumps({**about, "class": where}))
        with pytest.raises(RunFolderError, match="is a run of 'mine'"):
            restore(Path("runs/seed-0"))


def test_from_python():
    config = Config(calls=32, iterations=4, evaluate_every=4)
    (result,) = train(one_file.Mine, config, Path("runs"), progress=False)
    folder = Path("runs/seed-0")
    assert evaluate(folder, experiment=one_file.Mine) == result["test"]
    assert not restore(folder, experiment=one_file.Mine).training
    with pytest.raises(RunFolderError, match="is a run of mine, not of listops"):
        restore(folder, experiment=find("listops"))
    assert register(one_file.Mine) is one_file.Mine
    assert find("mine") is one_file.Mine
    assert evaluate(folder) == result["test"]


def test_pictures_and_files_are_optional(capsys):
    train(one_file.Mine, Config(calls=32, iterations=4, evaluate_every=4), Path("runs"), progress=False)
    assert main(["plot", MINE, "--run", "runs/seed-0"]) == 2
    assert capsys.readouterr().err == "gumtrace plot: mine draws no pictures\n"
    assert main(["evaluate", MINE, "runs", "--file", "some.tsv"]) == 2
    assert "mine cannot read a file" in capsys.readouterr().err
    assert main(["plot", "listops", "--run", "runs/seed-0"]) == 2
    assert "is a run of mine, not of listops" in capsys.readouterr().err


class Mean(TraceREINFORCE):
    """Somebody's own estimator."""

    label = "Of means"
    unbiased = False


@dataclass(frozen=True)
class OwnEstimator(Config):
    estimators: ClassVar = {**ESTIMATORS, "Mean": Mean}
    estimator: str = "Mean"


class WithEstimator(one_file.Mine):
    name = "with-estimator"
    config_type = OwnEstimator


def test_an_estimator_of_ones_own(capsys):
    """By its name on the command line, beside those of the library; tables do not call it unbiased."""
    mine = f"{__name__}:WithEstimator"
    assert main(["train", mine, *SHORT]) == 0
    assert main(["train", mine, *SHORT, "--estimator", "StochasticSoftmax"]) == 0
    assert type(restore(next(Path("runs").glob("*/Mean*/seed-0")), experiment=WithEstimator).estimator) is Mean
    capsys.readouterr()
    assert main(["table", mine]) == 0
    table = printed(capsys)
    assert "SST" in table
    assert "Of means (K = 4)" in table
    assert "Of means (K = 4) †" not in table
    with pytest.raises(SystemExit):
        main(["train", mine, "--estimator", "Median"])
    assert "unknown estimator 'Median': choose from" in capsys.readouterr().err


@dataclass(frozen=True)
class OneMore(Config):
    """Its default is the library's, as its field is."""

    estimators: ClassVar = {**ESTIMATORS, "Mean": Mean, "Unlabelled": type("Unlabelled", (TraceREINFORCE,), {})}


def test_the_first_of_other_estimators_is_the_default():
    @dataclass(frozen=True)
    class Others(Config):
        estimators: ClassVar = {"Mean": Mean, "RELAX": ESTIMATORS["RELAX"]}

    assert (Others().estimator, OneMore().estimator) == ("Mean", "TraceREINFORCE")


class WithOneMore(one_file.Mine):
    name = "with-one-more"
    config_type = OneMore


def test_the_choices_of_the_command_line_are_those_of_the_config(capsys):
    mine = f"{__name__}:WithOneMore"
    for estimator in ("TraceREINFORCE", "Mean", "Unlabelled"):
        assert main(["train", mine, *SHORT, "--estimator", estimator]) == 0
    capsys.readouterr()
    assert main(["table", mine]) == 0
    table = printed(capsys)
    assert all(f"{name} (K = 4)" in table for name in ("T-REINFORCE+", "Of means", "Unlabelled"))
    with pytest.raises(SystemExit):
        main(["train", mine, "--estimator", "Median"])
    assert "'Mean', 'Unlabelled'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--estimator", "RELAX"], "or give it one by build_estimator(config, critic=...)"),
        (["--curriculum", "3:10"], "mine does not say how difficult an item is"),
    ],
)
def test_an_experiment_that_cannot_be_built_leaves_no_run(argv, problem, capsys):
    assert main(["train", MINE, *SHORT, *argv, "--seeds", "0-1"]) == 2
    assert problem in capsys.readouterr().err
    assert not list(Path("runs").rglob("config.json"))


class Unfinished(Experiment):
    name = "unfinished"


class Taken(one_file.Mine):
    name = "listops"


class Slash(one_file.Mine):
    name = "a/b"


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("nothing", f"unknown experiment 'nothing': choose from {', '.join(registry._OWN)}, or name a class as"),
        ("no.module:Mine", "no.module:Mine: module 'no' not found"),
        ("one_file:Yours", "one_file:Yours: one_file has no Yours"),
        ("one_file:Config", "one_file:Config is not a subclass of gumtrace_experiments.Experiment"),
        ("one_file:torch.nn", "one_file:torch.nn is not a subclass"),
        (f"{__name__}:Unfinished", "Unfinished lacks selection_metric, evaluate, items, load, loss"),
        (f"{__name__}:Taken", "Taken has the name of another experiment: 'listops' is gumtrace_experiments.listops"),
        (f"{__name__}:Slash", "Slash: a name may contain letters, digits, '.', '_' and '-', got 'a/b'"),
    ],
)
@pytest.mark.parametrize("command", ["train", "sweep", "table", "plot"])
def test_names_that_are_refused(reference, problem, command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, reference])
    assert end.value.code == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("lacks_one", "\nimport no_such_package", r"ModuleNotFoundError: No module .* \(lacks_one\.py, line 2\)"),
        ("half", "x = (\n", r"SyntaxError: '\(' was never closed \(half\.py, line 1\)"),
        ("words", "raise TypeError('two\\nlines')", r"TypeError: two lines \(words\.py, line 1\)"),
        ("in_torch", "import torch\n\ntorch.zeros(2) @ torch.zeros(3)", r"RuntimeError: .* \(in_torch\.py, line 3\)"),
        ("in_json", "import json\njson.loads('')", r"JSONDecodeError: .* \(in_json\.py, line 2\)"),
        ("by_helper", "import its_helper", r"ZeroDivisionError: .* \(its_helper\.py, line 1\)"),
    ],
)
def test_an_error_in_the_module_is_not_hidden(name, text, problem, capsys):
    """Its line is that of somebody's own code, and not of a library that it calls."""
    Path("its_helper.py").write_text("1 / 0")
    Path(f"{name}.py").write_text(text)
    with pytest.raises(ValueError, match=f"^{name} cannot be imported: {problem}$") as error:
        find(f"{name}:Mine")
    assert error.value.__cause__ is not None
    with pytest.raises(SystemExit):
        main(["train", f"{name}:Mine"])
    assert re.search(f"argument NAME: {name} cannot be imported: {problem}\n$", capsys.readouterr().err)


def test_entry_points(installed):
    """One of ours cannot be replaced, and names must agree."""
    installed(listops=MINE, yours=MINE)
    assert set(names()) == {*registry._OWN, "yours"}
    assert find("listops").__module__ == "gumtrace_experiments.listops.experiment"
    with pytest.raises(ValueError, match="one_file:Mine is installed as 'yours', but its name is 'mine'"):
        find("yours")
