"""benchmarks/host.py on the CPU: every call of every structure, with backward in both threads."""

import json

import host  # benchmarks/
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
    assert {(r["structure"], r["thread"]) for r in found["records"]} == {
        (s, t) for s in host.STRUCTURES for t in host.THREADS
    }
    for record in found["records"]:
        assert list(record["microseconds"]) == ["plain", "step", "call", "update"]
        assert all(0 < x["min"] <= x["median"] for x in record["microseconds"].values())
