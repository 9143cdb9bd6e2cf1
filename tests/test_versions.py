"""What pyproject.toml says it needs, and the script that tests both ends of it."""

import re
import tomllib
from pathlib import Path

import pytest
import versions

from gumtrace.kernels.backends import TRITON

ROOT = Path(__file__).parents[1]


def test_the_oldest_torch_is_stated():
    """With 2.4 the library cannot be imported."""
    assert "torch==2.5" in versions.oldest_versions()


def test_the_oldest_triton_is_that_of_the_kernels():
    oldest = ".".join(map(str, TRITON))
    assert f"triton=={oldest}; sys_platform == 'linux'" in versions.oldest_versions()


def test_both_distributions_and_the_classifiers_agree():
    library, experiments = (
        tomllib.loads((ROOT / path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for path in (".", "experiments")
    )
    assert library["requires-python"] == experiments["requires-python"]
    tested = re.findall(r"Python :: (3\.\d+)", " ".join(library["classifiers"]))
    assert tested[0] == versions.pythons()[0]
    assert set(tested) <= set(versions.pythons())


def test_runs(monkeypatch, capsys):
    """In turn, with what is pinned; a Python that is not there is reported, and no failure."""
    monkeypatch.setattr(versions, "interpreter", lambda version: f"python{version}" if version == "3.11" else None)
    installed, commands = [], []
    monkeypatch.setattr(versions, "create", lambda place, python: f"{place.name}/{python}")
    monkeypatch.setattr(versions, "add", lambda own, pinned, _: installed.append((own, pinned)))

    class Done:
        returncode = 0

    def run(command, **_):
        commands.append(command)
        return Done()

    monkeypatch.setattr(versions.subprocess, "run", run)
    assert versions.main(["oldest", "newest-3.11", "newest-3.12", "--", "-k", "subset"]) == 0
    assert installed == [("oldest/python3.11", versions.oldest_versions()), ("newest-3.11/python3.11", [])]
    assert [command[0] for command in commands] == ["oldest/python3.11", "newest-3.11/python3.11"]
    assert all(command[-2:] == ["-k", "subset"] for command in commands)
    assert "newest-3.12  not run: there is no python3.12 on the path" in capsys.readouterr().out
    Done.returncode = 1
    assert versions.main(["oldest"]) == 1
    assert commands[-1][-2:] == ["-m", "not slow"]


def test_triton_comes_last_and_by_itself(monkeypatch, tmp_path):
    """torch 2.5 for CUDA requires triton 3.1, and the tests a newer one."""
    commands = []
    monkeypatch.setattr(versions.subprocess, "run", lambda command, **_: commands.append(list(map(str, command))))
    (tmp_path / "bin").mkdir()
    versions.add(tmp_path / "bin" / "python", ["torch==2.5", "triton==3.3"], ["gumtrace.whl"])
    first, last = commands
    assert "gumtrace.whl" in first
    assert not any(word.startswith("triton") for word in first)
    assert (tmp_path / "pinned.txt").read_text() == "torch==2.5"
    assert last[-2:] == ["--no-deps", "triton==3.3"]
    versions.add(tmp_path / "bin" / "python", [], ["gumtrace.whl"])
    assert commands[-1][-1].startswith("triton>=")


def test_a_run_that_does_not_exist():
    with pytest.raises(SystemExit, match=r"newest-2\.7: there are oldest, newest-3\.11"):
        versions.main(["newest-2.7"])


def test_a_name_that_does_not_run_is_no_python(monkeypatch, tmp_path):
    broken = tmp_path / "python3.12"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert versions.interpreter("3.12") is None
