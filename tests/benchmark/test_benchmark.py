import argparse
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gumtrace as gt
from gumtrace import benchmark
from gumtrace.benchmark import CASES, RELAXED, STEPS, STRUCTURES, Case, CheckFailed, peak_bytes, run_case
from gumtrace.benchmark.records import commit
from gumtrace.cli import bench

TINY = {case.structure: STRUCTURES[case.structure].tiny for case in CASES}


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(words))


@pytest.fixture
def few_cases(monkeypatch):
    monkeypatch.setattr(
        benchmark, "CASES", [Case(name, size, batch=2, quick=name != "Subset") for name, size in TINY.items()]
    )


@pytest.fixture
def broken(monkeypatch):
    right = gt.BinaryTree.trace_log_prob
    monkeypatch.setattr(gt.BinaryTree, "trace_log_prob", lambda self, trace: right(self, trace) - 0.5)


@pytest.mark.parametrize("structure", TINY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.slow
def test_a_case_gives_every_step(structure, dtype):
    records = run_case(Case(structure, TINY[structure]), batch=3, dtype=dtype, repeat=2)
    assert [record.step for record in records if record.step != RELAXED] == list(STEPS)
    for record in records:
        assert (record.structure, record.size, record.batch, record.device) == (structure, TINY[structure], 3, "cpu")
        assert record.dtype == str(dtype).removeprefix("torch.")
        assert 0 < record.min_ms <= record.ms
        assert 0 < record.copy_ms < record.ms
        assert record.copies > 1
        assert record.peak_bytes is None or 0 <= record.peak_bytes < 1e8
        assert 0 < record.trace_bytes <= record.logits_bytes


def test_the_case_overrules_batch_and_repeat():
    records = run_case(Case("Permutation", {"d": 4}, batch=2, repeat=1), batch=9, repeat=50)
    assert {record.batch for record in records} == {2}
    assert all(record.ms == record.min_ms for record in records)


def test_registry():
    assert {case.structure for case in (*CASES, *benchmark.SCALE)} == set(STRUCTURES)
    assert {case.structure for case in CASES if case.quick} == set(TINY)
    with pytest.raises(ValueError, match="unknown structure 'Forest'"):
        run_case(Case("Forest", {"n": 3}))


@pytest.mark.parametrize(
    ("method", "wrong", "what"),
    [
        ("trace_log_prob", lambda right: lambda self, trace: right(self, trace) - 0.5, "sum to 0.60"),
        ("trace_log_prob", lambda right: lambda self, trace: right(self, trace) + 99, "at most 0"),
        ("trace_log_prob", lambda right: lambda self, trace: right(self, trace) * torch.nan, "not finite"),
        ("conditional", lambda right: lambda self, trace, generator: self.perturb(generator=generator), "give back"),
        ("trace", lambda right: lambda self, noise: _upside_down(right(self, noise)), "outside the support"),
    ],
)
def test_the_gate_refuses(monkeypatch, method, wrong, what):
    monkeypatch.setattr(gt.BinaryTree, method, wrong(getattr(gt.BinaryTree, method)))
    monkeypatch.setattr("gumtrace.benchmark.timing.steps", lambda _: pytest.fail("it was timed"))
    with pytest.raises(CheckFailed, match=what) as failure:
        run_case(Case("BinaryTree", {"n": 20}), batch=4)
    assert "BinaryTree n=" in str(failure.value)


def _upside_down(trace: gt.Trace) -> gt.Trace:
    trace.links.copy_(trace.links.flip(-1))
    return trace


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_peak_bytes_counts_torch_and_numpy_alike():
    size = 64_000_000
    assert abs(peak_bytes(lambda: torch.ones(size // 4)) - size) < 2e6
    assert abs(peak_bytes(lambda: torch.ones(size // 4).numpy() + 1) - 2 * size) < 2e6
    assert peak_bytes(lambda: None) < 2e6


def test_json_round_trip(tmp_path):
    records = run_case(Case("Subset", {"d": 5, "k": 2}), batch=2, repeat=1)
    machine = benchmark.machine()
    benchmark.save(tmp_path / "r.json", records, machine)
    assert benchmark.load(tmp_path / "r.json") == (machine, records)
    assert {"python", "torch", "numba", "threads", "cpu", "platform", "date"} <= set(machine)


def test_the_commit_of_a_checkout(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert commit(tmp_path) is None
    git("init")
    (tmp_path / "__init__.py").write_text("")
    assert commit(tmp_path) is None  # not one of its files
    git("add", ".")
    git("commit", "-m", "first")
    assert commit(tmp_path) == git("rev-parse", "HEAD").strip()
    (tmp_path / "__init__.py").write_text("1")
    assert commit(tmp_path) == git("rev-parse", "HEAD").strip() + "+"


@pytest.mark.parametrize("plain", [False, True])
def test_command(few_cases, tmp_path, capsys, monkeypatch, plain):
    if plain:  # neither is installed
        monkeypatch.setitem(sys.modules, "rich", None)
        monkeypatch.setitem(sys.modules, "tqdm", None)
    file = tmp_path / "new" / "r.json"
    assert command("--quick", "--repeat", "1", "--structures", "binarytree,Subset,Matching", "--json", str(file)) == 0
    out, err = capsys.readouterr()
    for word in ("BinaryTree n=5", "Matching n=3", "log_prob+backward", "trace_reinforce", "ratio", "copies"):
        assert word in out
    assert "Subset" not in out  # not among the quick ones
    assert "17 records" in err
    body = json.loads(file.read_text())
    assert set(body) == {"machine", "records"}
    assert len([r for r in body["records"] if r["step"] != RELAXED]) == 2 * len(STEPS)


def test_command_times_nothing_after_a_failed_check(few_cases, broken, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "run_case", lambda *_, **__: pytest.fail("it was timed"))
    assert command("--json", str(tmp_path / "r.json")) == 1
    out, err = capsys.readouterr()
    assert not out
    assert "BinaryTree n=5: the probabilities of all traces sum to 0.60" in err
    assert not (tmp_path / "r.json").exists()


def test_command_refuses_a_file_that_cannot_be_written(few_cases, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "check_case", lambda *_, **__: pytest.fail("it was checked"))
    (tmp_path / "file").write_text("")
    assert command("--json", str(tmp_path / "file" / "r.json")) == 2
    error = f"gumtrace bench: cannot write into {tmp_path / 'file'}: it is a file; choose another --json\n"
    assert capsys.readouterr().err == error
    assert command("--json", str(tmp_path)) == 2
    error = f"gumtrace bench: cannot write {tmp_path}: it is a folder; choose another --json\n"
    assert capsys.readouterr().err == error


def test_command_refuses_a_file_in_a_folder_that_cannot_be_searched(tmp_path, capsys, monkeypatch):
    def denied(_):  # of root nobody can keep it
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "exists", denied)
    assert command("--json", str(tmp_path / "r.json")) == 2
    error = f"gumtrace bench: cannot write {tmp_path / 'r.json'}: Permission denied; choose another --json\n"
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(("words", "options"), [((), "without --scale"), (("--quick",), "with --quick")])
def test_command_refuses_to_measure_nothing(words, options, capsys):
    assert command("--structures", "BatchedSpanningTree", *words) == 2
    error = f"gumtrace bench: no case of BatchedSpanningTree is measured {options} on cpu\n"
    assert capsys.readouterr() == ("", error)


@pytest.mark.parametrize("device", ["nonsense", "meta"])
def test_command_refuses_a_device(capsys, device):
    assert command("--device", device) == 2
    assert f"device '{device}' cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("--structures", "Forest"), ("--structures", ","), ("--batch", "0"), ("--dtype", "int8")]
)
def test_command_refuses_arguments(words, capsys):
    with pytest.raises(SystemExit):
        command(*words)
    assert capsys.readouterr().err
