"""The commands that run experiments."""

import json
import re

import pytest
import torch

from gumtrace_experiments import find
from gumtrace_experiments.commands import main
from gumtrace_experiments.commands.options import label, parse, read_seeds, set_threads
from gumtrace_experiments.commands.train import Options

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = [
    "--smoke",
    "--iterations",
    "4",
    "--evaluate-every",
    "2",
    "--train-size",
    "40",
    "--test-size",
    "20",
    "--calls",
    "16",
]


def test_train_then_evaluate(tmp_path, capsys):
    where = ["--data", str(tmp_path / "data")]
    assert main(["train", "graph-layout", *TINY, "--out", str(tmp_path / "runs"), "--seeds", "0-1", *where]) == 0
    assert f"runs in {tmp_path / 'runs'}" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "runs"), "--split", "test", *where]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for seed, line in enumerate(lines):
        result = json.loads((tmp_path / "runs" / f"seed-{seed}" / "result.json").read_text())
        assert line == {"run": str(tmp_path / "runs" / f"seed-{seed}"), "split": "test", **result["test"]}
    assert len(lines) == 2


def test_another_config_is_refused(tmp_path, capsys):
    where = ["--out", str(tmp_path / "runs"), "--data", str(tmp_path / "data")]
    assert main(["train", "graph-layout", *TINY, *where]) == 0
    assert main(["train", "graph-layout", *TINY, *where, "--lr", "0.01"]) == 2
    assert "holds another run" in capsys.readouterr().err


def test_profile(tmp_path, capsys):
    assert main(["train", "graph-layout", *TINY, "--profile", "--profile-updates", "2", "--data", str(tmp_path)]) == 0
    report = capsys.readouterr().out
    for word in ("forward", "backward", "optimiser", "aten::"):
        assert word in report
    times = dict(re.findall(r"^ +(\w+) +host +([\d.]+)$", report, re.MULTILINE))
    assert list(times) == ["forward", "encoder", "decoder", "estimator", "backward", "optimiser"]
    assert 0 < float(times["decoder"]) < float(times["estimator"]) < float(times["forward"])  # each inside the next
    assert 0 < float(times["encoder"]) < float(times["forward"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seeds", "a"], "seeds are numbers and ranges"),
        (["--seeds", "0-"], "seeds are numbers and ranges such as 0-9 or 0,3,5, got '0-'"),
        (["--seeds", "1,1"], "a seed appears twice"),
        (["--seeds", "0,3-1"], "3-1 is not a range"),
        (["--seeds", ","], "seeds are numbers and ranges"),
        (["--seeds", "1,2", "--seed", "0"], "give one of them"),
        (["--seeds", "1,2", "--seed=5"], "give one of them"),
        (["--profile", "--profile-updates", "0"], "profile_updates must be at least 1, got 0"),
        (["--profile", "--seeds", "0-3"], "leave out --seeds"),
        (["--profile", "--seeds", "0-3", "--graph"], "leave out --seeds and --graph"),
        (["--profile", "--graph"], "leave out --graph"),
        (["--profile", "--profile-trace", "/no/such/folder/x.json"], "'/no/such/folder/x.json'"),
        (["--calls", "1000"], "the training set has only 40"),
        (["--graph"], "graph=True needs a CUDA device"),
        (["--device", "nowhere"], "nowhere"),
    ],
)
def test_what_is_wrong(argv, message, tmp_path, capsys):
    where = ["--out", str(tmp_path / "runs"), "--data", str(tmp_path / "data")]
    assert main(["train", "graph-layout", *TINY, *where, *argv]) == 2
    *generated, error = capsys.readouterr().err.splitlines()
    assert message in error
    assert all(line.startswith("generated ") for line in generated)
    assert not list(tmp_path.rglob("config.json"))  # nothing that would count as a run


def cut(content):
    """As by a full disk."""
    return content[: len(content) // 2]


def flip(content):
    """A bit in the middle, of some weight."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 64]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("state.pt", cut),
        ("state.pt", flip),
        ("best.pt", cut),
        ("best.pt", flip),
        ("result.json", cut),
        ("config.json", cut),
        ("config.json", lambda content: b"{}"),
    ],
)
def test_a_damaged_run(file, harm, tmp_path, capsys):
    """Said in one line, by a command that needs the file."""
    where = ["--out", str(tmp_path / "runs"), "--data", str(tmp_path / "data")]
    train = ["train", "graph-layout", *TINY, *where]
    evaluate = ["evaluate", str(tmp_path / "runs"), *where[2:]]
    assert main(train) == 0
    path = tmp_path / "runs" / "seed-0" / file
    if file == "state.pt":  # which is needed only where there is no result
        (path.parent / "result.json").unlink()
    path.write_bytes(harm(path.read_bytes()))
    capsys.readouterr()
    assert main(evaluate if file == "best.pt" else train) == 2
    assert f"{path} cannot be read (" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    where = ["--out", str(tmp_path / "file"), "--data", str(tmp_path / "data")]
    assert main(["train", "graph-layout", *TINY, *where]) == 2
    folder = tmp_path / "file" / "seed-0"
    error = f"gumtrace train: cannot write into {folder}: Not a directory; choose another --out"
    assert capsys.readouterr().err.splitlines()[-1] == error


def test_generated_data_are_reported(tmp_path, capsys):
    """Once: whoever has the data has named another folder."""
    where = ["--out", str(tmp_path / "runs"), "--data", str(tmp_path / "dtaa")]
    assert main(["train", "graph-layout", *TINY, *where]) == 0
    (file,) = (tmp_path / "dtaa").iterdir()
    line = f"generated {file}: there was no such file"
    assert capsys.readouterr().err.splitlines().count(line) == 1
    assert main(["train", "graph-layout", *TINY, *where]) == 0
    assert line not in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "message"), [(["--samples", "1000"], "with 1000 samples"), (["--lrr", "1"], "--lrr")])
def test_what_tyro_finds_wrong(argv, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", "graph-layout", *TINY, *argv])
    assert message in capsys.readouterr().err


def test_smoke_changes_defaults_only():
    experiment = find("graph-layout")
    words = ["--smoke", "--frames", "7", "--estimator", "RELAX"]
    config, options = parse(experiment, words, Options, "train")
    assert (config.frames, config.estimator, config.k, options.smoke) == (7, "RELAX", 1, True)
    assert config.iterations < 100
    assert parse(experiment, [], Options, "train")[0].iterations == 50_000


@pytest.mark.parametrize(
    ("threads", "smoke", "expected"), [(None, True, 1), (None, False, None), (2, True, 2), (3, False, 3)]
)
def test_threads(monkeypatch, threads, smoke, expected):
    """One for small models, unless others were asked for."""
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    assert set_threads(threads, smoke) == expected
    assert chosen == ([] if expected is None else [expected])


@pytest.mark.parametrize("verb", ["train", "sweep"])
def test_no_thread_at_all_is_refused(verb, tmp_path, capsys):
    assert main([verb, "graph-layout", "--threads", "0", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"gumtrace {verb}: --threads must be at least 1, got 0\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train", "gumtrace: interrupted; the same command resumes from the last evaluation\n"),
        ("evaluate", "gumtrace: interrupted\n"),
    ],
)
def test_an_interrupted_command(command, message, monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"gumtrace_experiments.commands.{command}.run", interrupted)
    assert main([command, "graph-layout"]) == 130
    assert capsys.readouterr().err == message


def test_seeds():
    assert read_seeds("0-2,7") == [0, 1, 2, 7]
    assert read_seeds("") == []


def test_a_folder_has_a_name_however_much_is_set():
    """Cut off where file systems would refuse it; other settings behind the cut make another name."""
    base = find("graph-layout").config_type
    several = {"temperature": 0.123456, "lr": 1.23456e-4, "clip": 1.23456, "weight_decay": 1.23456e-6, "nodes": 12}
    more = {"decoder_lr": 1.23456e-5, "critic_hidden": 512, "estimator_lr": 1.23456e-4, "train_size": 12345}
    config = base(estimator="StochasticSoftmax", training="unrolled", schedule="cosine", **several, **more)
    names = [label(config), label(config.replace(test_size=100)), label(config.replace(test_size=101))]
    assert len(set(names)) == 3
    assert all(len(name) < 255 for name in names)
    assert all(name.startswith("StochasticSoftmax,temperature=0.123456,lr=") for name in names)
    assert label(config.replace(seed=3)) == names[0]
