"""benchmarks/host.py on the CPU: every call of every structure, with backward in both threads."""

import json

import host  # benchmarks/
import pytest
import torch


def test_a_record_for_every_structure_and_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "ROUNDS", 2)
    monkeypatch.setattr(host, "CALLS", 1)
    before = torch.distributions.Distribution._validate_args
    host.main(["--device", "cpu", "--out", str(tmp_path / "out.json")])
    assert torch.distributions.Distribution._validate_args == before
    assert torch.autograd.is_multithreading_enabled()
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["machine"]["device"] == "cpu"
    assert [(r["structure"], r["thread"], r["call"]) for r in found["records"]] == [
        (s, t, c) for t in host.THREADS for s in host.STRUCTURES for c in ("plain", "step", "call", "update")
    ]
    shown = host.table(found)
    assert shown.count("\n| ") == 1 + len(host.STRUCTURES)
    own, calling = (r["median_us"] / 1e3 for r in found["records"] if (r["structure"], r["call"]) == ("Subset", "step"))
    assert f"| {own:.2f} → {calling:.2f} |" in next(line for line in shown.splitlines() if line.startswith("| Subset"))
    fastest = sorted(r["min_us"] / 1e3 for r in found["records"] if (r["thread"], r["call"]) == ("own", "update"))
    assert f"an estimator with backward {fastest[0]:.2f} to {fastest[-1]:.2f} ms." in shown
    assert all(0 < r["min_us"] <= r["median_us"] and r["cpu_us"] > 0 for r in found["records"])


def test_the_first_round_is_not_counted_as_it_compiles(monkeypatch):
    monkeypatch.setattr(host, "ROUNDS", 3)
    monkeypatch.setattr(host, "STRUCTURES", {"Permutation": host.STRUCTURES["Permutation"]})
    times = iter([1000.0] * 8 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0] * 2 + [9.0] * 8)
    monkeypatch.setattr(host, "clocked", lambda call, device: (wall := next(times), wall / 2))
    found = host.measure("cpu")
    assert [(r["min_us"], r["median_us"], r["cpu_us"]) for r in found] == [(i, i, i / 2) for i in range(1, 9)]


def test_without_a_gpu_it_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        host.main(["--out", str(tmp_path / "out.json")])
    assert "torch finds no GPU" in capsys.readouterr().err
