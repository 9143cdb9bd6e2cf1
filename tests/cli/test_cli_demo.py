"""The command: its demo tells six traces and draws them."""

import runpy
import sys

import matplotlib
import pytest

import gumtrace
from gumtrace.cli import main

matplotlib.use("Agg")


def test_demo(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "new" / "folder"), "--seed", "3"]) == 0
    out = capsys.readouterr().out
    for title in ("Subset", "Permutation", "Matching", "Spanning tree", "Arborescence", "Binary tree"):
        assert f"\n{title}  " in out
    assert out.count("log P(T) = ") == 6
    assert out.count("the same trace 1000 times") == 6
    assert max(map(len, out.splitlines()[:-1])) <= 80
    picture = tmp_path / "new" / "folder" / "structures.png"
    assert out.splitlines()[-1].endswith(str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000


@pytest.mark.slow
def test_the_same_seed_tells_the_same(tmp_path, capsys):
    outputs = []
    for seed in ("1", "1", "2"):
        main(["demo", "--out", str(tmp_path), "--seed", seed])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_a_missing_extra_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == 'gumtrace: this needs rich: pip install rich, or ".[cli]" in a checkout\n'


@pytest.mark.parametrize(("out", "reason"), [("file", "it is a file"), ("file/demo", "Not a directory")])
def test_a_folder_that_cannot_be_written_is_refused_at_once(out, reason, tmp_path, capsys):
    """One line, and nothing before it."""
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / out)]) == 2
    error = f"gumtrace demo: cannot write into {tmp_path / out}: {reason}; choose another --out\n"
    assert capsys.readouterr() == ("", error)


def test_version(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gumtrace", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("gumtrace", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out == f"gumtrace {gumtrace.__version__}\n"


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "demo" in out
    assert "bench" in out
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    assert "--seed" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
