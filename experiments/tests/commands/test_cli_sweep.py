"""`gumtrace sweep`: what it prints, and what it refuses."""

import shlex
import sys
from pathlib import Path

import optuna
import pytest
import quadratic
from quadratic import Quadratic, QuadraticConfig, make, order

from gumtrace_experiments.commands import main
from gumtrace_experiments.commands import sweep as command
from gumtrace_experiments.commands.options import parse
from gumtrace_experiments.commands.train import Options
from gumtrace_experiments.sweep.study import Sweep, best, claim, open_study

registered = quadratic.registered
pytestmark = pytest.mark.usefixtures("one_thread", "registered")


@pytest.fixture(autouse=True)
def verbosity():
    """Optuna logs as much afterwards as before."""
    before = optuna.logging.get_verbosity()
    yield
    optuna.logging.set_verbosity(before)


def test_the_command(tmp_path, monkeypatch, capsys):
    out = tmp_path / "sweep"
    options = ["--out", str(out), "--trials", "2", "--goal", "1", "--smoke", "--seed-sampler", "0"]
    assert main(["sweep", "quadratic", *options]) == 0
    study = open_study(Sweep(Quadratic, QuadraticConfig(goal=1.0, iterations=10), out))
    table = capsys.readouterr().out
    for trial in study.trials:
        assert Path(trial.user_attrs["folder"]).name in table
        assert f"{trial.params['lr']:.5g}" in table
    monkeypatch.setattr(command, "find_spec", lambda name: None)  # no rich
    assert main(["sweep", "quadratic", *options]) == 0
    plain = capsys.readouterr().out
    assert plain.startswith("trial  score  lr  folder\n")
    assert plain.splitlines()[4:] == table.splitlines()[-2:]
    assert plain.splitlines()[4] == "to train the best with several seeds:"


def test_the_command_that_trains_the_best(tmp_path, monkeypatch, capsys):
    """It is of exactly the best config, and runs where the sweep did."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "a folder"
    options = ["--trials", "2", "--goal", "1", "--smoke", "--estimator", "NoiseREINFORCE", "--seed", "3"]
    assert main(["sweep", "quadratic", *options, "--data", str(data)]) == 0
    out = Path("runs/sweep-quadratic/NoiseREINFORCE,iterations=10,goal=1.0,seed=3")
    base = QuadraticConfig(seed=3, estimator="NoiseREINFORCE", iterations=10, goal=1.0)
    study = open_study(Sweep(Quadratic, base, out))
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert words[:3] == ["gumtrace", "train", "quadratic:Quadratic"]
    config, found = parse(Quadratic, words[3:], Options, "train")
    assert config == base.replace(seed=0, lr=best(study)[0].params["lr"])
    assert (found.seeds, found.data, found.smoke) == ("0-9", data, False)


def test_sweeps_of_two_estimators_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for estimator in ("TraceREINFORCE", "NoiseREINFORCE"):
        assert main(["sweep", "quadratic", "--trials", "1", "--smoke", "--estimator", estimator]) == 0
    assert len(list(Path("runs/sweep-quadratic").iterdir())) == 2


def test_an_interrupted_command(tmp_path, capsys):
    order(tmp_path, "interrupt")
    options = ["--out", str(tmp_path / "sweep"), "--data", str(tmp_path / "orders"), "--trials", "1"]
    assert main(["sweep", "quadratic", *options]) == 130
    assert "the same command resumes it" in capsys.readouterr().err
    assert main(["sweep", "quadratic", *options]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--goal", "3"], "holds another sweep"),
        (["--trials", "0"], "trials must be at least 1"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--slurm-hours", "0"], "--slurm-hours must be at least 1"),
        (["--cluster", "slurm"], "slurm"),
        (["--cluster", "slurm", "--device", "nowhere"], "slurm"),  # whose machines may have it
        (["--device", "nowhere"], "device 'nowhere' cannot be used"),
        (["--out", "/dev/null"], "cannot write into /dev/null: it is a file; choose another --out"),
        (["--slurm-options", "account"], "pairs such as account=me"),
        (["--storage", "postgresql+nothing://me:secret@nowhere/x"], "cannot open the study in the database"),
        (["--storage", "sqlite:////no/such/folder/x.db"], "cannot open the study in the database"),
    ],
)
def test_what_the_command_refuses(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.setenv("PATH", str(tmp_path))  # there may be a Slurm here
    out = ["--out", str(tmp_path / "sweep")]
    claim(make(tmp_path))
    assert main(["sweep", "quadratic", *out, *options]) == 2
    output = capsys.readouterr().err
    assert output.startswith("gumtrace sweep: ")
    assert message in output
    assert len(output.splitlines()) == 1
    assert "secret" not in output


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("postgresql+psycopg2", "psycopg2", "psycopg2-binary"),
        ("postgresql+psycopg", "psycopg", "psycopg[binary]"),
        ("mysql+pymysql", "pymysql", "pymysql"),
        ("mysql", "MySQLdb", "mysqlclient"),
    ],
)
def test_a_driver_that_is_missing_is_named(tmp_path, capsys, monkeypatch, url, module, package):
    """As pip knows it. Which one a bare postgresql:// takes depends on the version of SQLAlchemy."""
    monkeypatch.setitem(sys.modules, module, None)
    options = ["--out", str(tmp_path / "sweep"), "--storage", f"{url}://me:secret@nowhere/x"]
    assert main(["sweep", "quadratic", *options]) == 2
    why = f"its driver is not installed: pip install '{package}'"
    assert capsys.readouterr().err == f"gumtrace sweep: cannot open the study in the database: {why}\n"
