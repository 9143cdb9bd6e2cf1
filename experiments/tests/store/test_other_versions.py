"""Runs that another version of gumtrace left, and files that it did not: refused, in one line that says what to do."""

import json
from pathlib import Path
from zipfile import ZipFile

import pytest
import quadratic
import torch
from quadratic import Quadratic, QuadraticConfig

from gumtrace_experiments import evaluate
from gumtrace_experiments.commands import main
from gumtrace_experiments.loop.training import train
from gumtrace_experiments.store.checkpoints import BEST, FORMAT, STATE, load
from gumtrace_experiments.store.folder import CONFIG, RESULT, RunFolderError

registered = quadratic.registered
pytestmark = pytest.mark.usefixtures("one_thread")
CONFIGURED = QuadraticConfig(iterations=10)
SEED = Path("runs/quadratic/seed-0")


@pytest.fixture(autouse=True)
def trained(tmp_path, monkeypatch, registered):
    """A run; commands know the experiment."""
    monkeypatch.chdir(tmp_path)
    train(Quadratic, CONFIGURED, SEED.parent, progress=False)


def change(name, **changes):
    """Fields of a checkpoint; None takes one away."""
    kept = {**torch.load(SEED / name, weights_only=True), **changes}
    torch.save({field: value for field, value in kept.items() if value is not None}, SEED / name)


def configure(**changes):
    about = json.loads((SEED / CONFIG).read_text())
    (SEED / CONFIG).write_text(json.dumps({**about, "config": {**about["config"], **changes}}))


def refused(words, file, reason, capsys):
    capsys.readouterr()
    assert main(words) == 2
    output = capsys.readouterr().err
    assert len(output.splitlines()) == 1
    for part in (f"gumtrace {words[0]}: ", file, "version of gumtrace", reason, "the version that wrote it"):
        assert part in output
    assert "weights_only" not in output


EVALUATED = {
    "a field that is not known": (CONFIG, lambda: configure(momentum=0.9), "'momentum'"),
    "a value that is refused": (CONFIG, lambda: configure(estimator="Old"), "unknown estimator 'Old'"),
    "a value of another type": (CONFIG, lambda: configure(calls="many"), "calls must be int, got 'many'"),
    "no config": (
        CONFIG,
        lambda: (SEED / CONFIG).write_text('{"experiment": "quadratic"}'),
        "it lacks config",
    ),
    "a weight of another name": (BEST, lambda: change(BEST, model={"v": torch.zeros(())}), "Missing key(s)"),
    "a weight of another shape": (
        BEST,
        lambda: change(BEST, model={"w": torch.zeros(3), "steps": torch.tensor(1)}),
        "size mismatch for w",
    ),
    "another format": (BEST, lambda: change(BEST, format=2), "it has format 2, but this version reads format 1"),
    "no model": (BEST, lambda: change(BEST, model=None), "it lacks model"),
    "an object": (BEST, lambda: change(BEST, valid=Path()), "more than tensors and plain values"),
    "a list": (BEST, lambda: torch.save([1], SEED / BEST), "it holds a list"),
}


@pytest.mark.parametrize("case", EVALUATED)
def test_models_of_other_versions(case, capsys):
    file, make, reason = EVALUATED[case]
    make()
    for words in (["evaluate", str(SEED)], ["plot", "quadratic", "--run", str(SEED)]):
        refused(words, str(SEED / file), reason, capsys)


RESUMED = {
    "another format": (lambda: change(STATE, format=2), "it has format 2, but this version reads format 1"),
    "fields that are missing": (lambda: change(STATE, rows=None, seconds=None), "it lacks rows, seconds"),
    "an object": (lambda: change(STATE, seconds=Path()), "more than tensors and plain values"),
}
TRAIN = ["train", "quadratic", "--iterations", "10", "--out", str(SEED.parent)]


@pytest.mark.parametrize("case", RESUMED)
def test_states_of_other_versions(case, capsys):
    make, reason = RESUMED[case]
    make()
    (SEED / RESULT).unlink()
    refused(TRAIN, str(SEED / STATE), reason, capsys)


def test_a_state_with_other_weights(capsys):
    change(STATE, model={"v": torch.zeros(())})
    (SEED / RESULT).unlink()
    refused(TRAIN, str(SEED / STATE), 'Missing key(s) in state_dict: "w", "steps"', capsys)


def test_checkpoints_that_name_no_format_are_read():
    """As those of before there was one."""
    result = json.loads((SEED / RESULT).read_text())
    for name in (STATE, BEST):
        assert load(SEED / name)["format"] == FORMAT == 1
        change(name, format=None)
        assert "format" not in load(SEED / name)
    (SEED / RESULT).unlink()
    (again,) = train(Quadratic, CONFIGURED, SEED.parent, progress=False)
    assert {**again, "seconds": 0} == {**result, "seconds": 0}
    assert evaluate(SEED) == result["test"]


def test_an_archive_of_something_else(tmp_path):
    with ZipFile(tmp_path / "best.pt", "w") as archive:
        archive.writestr("letter.txt", "dear all")
    with pytest.raises(RunFolderError, match=r"best\.pt is of another version .*not written by torch\.save"):
        load(tmp_path / "best.pt")


@pytest.mark.parametrize("content", ["[]", '{"experiment": "quadratic", "config": []}'])
def test_a_config_that_is_none(content, capsys):
    (SEED / CONFIG).write_text(content)
    assert main(TRAIN) == 2
    assert capsys.readouterr().err.startswith(f"gumtrace train: {SEED / CONFIG} cannot be read (")
