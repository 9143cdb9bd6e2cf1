"""`gumtrace evaluate`: which runs it finds, and that they share what they can."""

import json
from pathlib import Path

import pytest
import quadratic
from fake_runs import write_run
from quadratic import Quadratic, QuadraticConfig

from gumtrace_experiments import names
from gumtrace_experiments.commands import main
from gumtrace_experiments.loop.data import SharedData
from gumtrace_experiments.loop.training import train

registered = quadratic.registered
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def trained(tmp_path, monkeypatch, registered):
    """A run in runs/quadratic; the command knows the experiment."""
    monkeypatch.chdir(tmp_path)
    train(Quadratic, QuadraticConfig(iterations=5), Path("runs/quadratic/a"), progress=False)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_by_name_or_by_folder(capsys):
    write_run(Path("runs/quadratic/other"), experiment="listops")
    known = json.loads(Path("runs/quadratic/a/seed-0/result.json").read_text())
    expected = [{"run": "runs/quadratic/a/seed-0", "split": "test", **known["test"]}]
    for argv in (["quadratic"], ["quadratic", "runs"], ["runs/quadratic/a"]):
        assert main(["evaluate", *argv]) == 0
        assert lines(capsys) == expected


def test_a_run_that_was_never_evaluated_is_left_out(capsys):
    fresh = write_run(Path("runs/quadratic/0"), experiment="quadratic", finished=False)
    assert main(["evaluate", "quadratic"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err.startswith(f"gumtrace evaluate: left out: {fresh} has no best.pt")
    assert main(["evaluate", str(fresh)]) == 2


def test_a_run_without_data_does_not_stop_the_others(capsys, monkeypatch):
    train(Quadratic, QuadraticConfig(iterations=5, goal=3.0), Path("runs/quadratic/0"), progress=False)

    def load(config, folder, device):
        if config.goal == 3.0:
            raise FileNotFoundError("goals.npz is missing: get it")
        return folder

    monkeypatch.setattr(Quadratic, "load", staticmethod(load))
    assert main(["evaluate", "quadratic"]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["run"] for line in out.splitlines()] == ["runs/quadratic/a/seed-0"]
    assert err == "gumtrace evaluate: left out: runs/quadratic/0/seed-0: goals.npz is missing: get it\n"
    assert main(["evaluate", "runs/quadratic/0"]) == 2


def test_a_damaged_config_does_not_stop_the_others(capsys):
    damaged = write_run(Path("runs/quadratic/0"), experiment="quadratic") / "config.json"
    damaged.write_text("{")
    assert main(["evaluate", "quadratic"]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["run"] for line in out.splitlines()] == ["runs/quadratic/a/seed-0"]
    assert err.startswith(f"gumtrace evaluate: left out: {damaged} cannot be read (")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["quadratic", "nowhere"], "no run of quadratic in nowhere"),
        (["quadratc"], "no run in quadratc: name a folder of runs or an experiment ({names})"),
        (["quadratic", "--device", "nowhere"], "device 'nowhere' cannot be used"),
    ],
)
def test_what_is_refused(argv, message, capsys):
    assert main(["evaluate", *argv]) == 2
    assert capsys.readouterr().err.startswith(f"gumtrace evaluate: {message.format(names=', '.join(names()))}")


def test_runs_of_equal_data_settings_share_them(capsys, monkeypatch):
    for i, config in enumerate([QuadraticConfig(lr=0.2), QuadraticConfig(goal=3.0), QuadraticConfig(goal=3.0, seed=1)]):
        train(Quadratic, config.replace(iterations=5), Path(f"runs/quadratic/{i}"), progress=False)
    loaded = []

    def load(config, folder, device):
        loaded.append(config.goal)
        return folder

    monkeypatch.setattr(Quadratic, "load", staticmethod(load))
    monkeypatch.setattr(Quadratic, "data_fields", ("goal",))
    assert main(["evaluate", "quadratic"]) == 0
    assert len(lines(capsys)) == 4
    assert loaded == [2.0, 3.0]


def test_data_of_other_folders_and_devices_are_others():
    shared, config = SharedData(), QuadraticConfig()
    places = [("a", "cpu"), ("b", "cpu"), ("a", "meta"), ("a", "cpu")]
    found = [shared.load(Quadratic, config, Path(folder), device) for folder, device in places]
    assert found == [Path("a"), Path("b"), Path("a"), Path("a")]
    assert len(shared._loaded) == 3


def test_a_setting_that_is_not_declared_cannot_be_read(monkeypatch):
    """Otherwise runs that differ in it would share data that differ."""
    monkeypatch.setattr(Quadratic, "data_fields", ("goal",))
    monkeypatch.setattr(Quadratic, "load", staticmethod(lambda config, folder, device: config.lr))
    with pytest.raises(ValueError, match="lr is not among the data_fields of Quadratic: add it"):
        SharedData().load(Quadratic, QuadraticConfig(), Path("a"), "cpu")


def test_without_declared_settings_every_config_has_its_own_data():
    shared = SharedData()
    for config in (QuadraticConfig(), QuadraticConfig(lr=0.2), QuadraticConfig()):
        shared.load(Quadratic, config, Path("a"), "cpu")
    assert len(shared._loaded) == 2
