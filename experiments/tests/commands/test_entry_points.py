"""What the distribution says of itself, and both ways to its commands."""

import runpy
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gumtrace.cli import GROUP
from gumtrace_experiments.commands import COMMANDS, main

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_the_entry_point_is_all_commands():
    ((name, value),) = PROJECT["entry-points"][GROUP].items()
    assert EntryPoint(name, value, GROUP).load() is COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: gumtrace {name}" in capsys.readouterr().out


def test_as_a_module_nothing_needs_to_be_installed(monkeypatch, capsys):
    monkeypatch.setattr("gumtrace.cli.entry_points", lambda group: ())
    monkeypatch.setattr(sys, "argv", ["gumtrace", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("gumtrace_experiments", run_name="__main__")
    assert end.value.code == 0
    assert set(COMMANDS) <= set(capsys.readouterr().out.split())
