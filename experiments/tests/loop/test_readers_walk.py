"""How many files `gumtrace train graph-layout --smoke` goes through up to the first step of the optimiser: those that
CONTRIBUTING lists, and no others."""

import inspect
import re
import sys
from pathlib import Path

import pytest
import torch

import gumtrace_experiments
from gumtrace import cli
from gumtrace_experiments.commands import COMMANDS, train
from gumtrace_experiments.graph_layout import experiment

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(gumtrace_experiments.__file__).parent
CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"
WALK = "### A training run"


class FirstStep(Exception):
    """The optimiser is about to take it."""


def functions_before_the_first_step(tmp_path, monkeypatch) -> dict[str, list[str]]:
    """By file, in the order of their calls. What runs when a module is imported does not count: here both are."""
    assert train
    assert experiment
    called: dict[str, dict[str, None]] = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and Path(code.co_filename).is_relative_to(ROOT):
            file = Path(code.co_filename).relative_to(ROOT).as_posix()
            called.setdefault(file, {})[code.co_qualname] = None

    def step(*_, **__):
        raise FirstStep

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    command = ["train", "graph-layout", "--smoke", "--out", str(tmp_path / "runs"), "--data", str(tmp_path / "data")]
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        with pytest.raises(FirstStep):
            cli.main(command, COMMANDS)
    finally:
        sys.setprofile(before)
    return {file: list(names) for file, names in called.items()}


@pytest.mark.slow
def test_the_files_that_contributing_lists(tmp_path, monkeypatch):
    called = functions_before_the_first_step(tmp_path, monkeypatch)
    print(*(f"{file}: {', '.join(names)}" for file, names in called.items()), f"{len(called)} files", sep="\n")
    section = CONTRIBUTING.read_text(encoding="utf-8").partition(WALK)[2]
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)
    assert sorted(called) == sorted(listed)
    assert f"{len(listed)} files" in section
