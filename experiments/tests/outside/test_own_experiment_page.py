"""docs/own_experiment.md: its module is an experiment of about 60 lines, and its commands run."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from gumtrace_experiments import registry
from gumtrace_experiments.commands import main

pytestmark = pytest.mark.usefixtures("one_thread")
PAGE = (Path(__file__).parents[3] / "docs" / "own_experiment.md").read_text(encoding="utf-8")
(MODULE,) = re.findall(r"^%%writefile subsets\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^%%bash\n(gumtrace .*)$", PAGE, re.MULTILINE)
NAMED = re.findall(r"`(gumtrace (?:plot|sweep) [^`]*)`", PAGE)
SHORT = ["--iterations", "4", "--evaluate-every", "2", "--seeds", "0"]


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "subsets.py").write_text(MODULE)
    yield
    sys.modules.pop("subsets", None)


def test_about_sixty_lines():
    assert 50 <= len(MODULE.splitlines()) <= 66


def test_its_commands_run(capsys):
    assert [command.split()[1] for command in COMMANDS] == ["train", "train", "evaluate", "table"]
    for command in COMMANDS:
        _, verb, *words = shlex.split(command)
        assert main([verb, *words, *(SHORT if verb == "train" else [])]) == 0
    table = capsys.readouterr().out
    assert "SST" in table
    assert "T-REINFORCE+ (K = 4)" in table
    plot, sweep = NAMED
    assert main(shlex.split(plot)[1:]) == 0
    assert Path("plots/subset-autoencoder/explained.png").exists()
    assert main([*shlex.split(sweep)[1:], "--trials", "1", *SHORT[:4]]) == 0


def test_it_learns(capsys):
    """A hundred iterations explain more than a third of the signals' variance."""
    words = ["--iterations", "100", "--out", "runs"]
    assert main(["train", "subsets:SubsetAutoencoder", *words]) == 0
    assert float(re.search(r"^seed 0: explained (\S+)$", capsys.readouterr().out, re.MULTILINE)[1]) > 1 / 3


def test_a_critic_as_the_page_says():
    (call,) = re.findall(r"`(build_estimator\(config, critic=.*?\))`", PAGE)
    module = MODULE.replace("build_estimator(config)", call)
    assert module != MODULE
    Path("subsets.py").write_text(f"from gumtrace.estimators import VectorCritic\n{module}")
    assert main(["train", "subsets:SubsetAutoencoder", "--estimator", "RELAX", *SHORT]) == 0
