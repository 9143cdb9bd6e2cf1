"""benchmarks/updates.py times what it says it times."""

import itertools
import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from gumtrace_experiments import find

pytestmark = pytest.mark.usefixtures("one_thread")
spec = spec_from_file_location("update_times", Path(__file__).parents[2] / "benchmarks" / "updates.py")
updates = sys.modules["update_times"] = module_from_spec(spec)  # where its dataclass looks for itself
spec.loader.exec_module(updates)


def test_cases_are_runs_that_can_be_trained():
    """Each is another one, in full size; the paper's six times stand beside its own estimators and protocol."""
    cases = updates.cases()
    configs = [find(c.experiment).config_type(estimator=c.estimator, **c.settings) for c in cases]
    assert len({str(config.to_dict()) for config in configs}) == len(cases)
    assert {(c.experiment, config.calls) for c, config in zip(cases, configs, strict=True)} == {
        ("graph-layout", 128), ("listops", 100), ("l2x", 100)
    }  # fmt: skip
    known = {(c.experiment, c.estimator): c.paper for c in cases if c.paper}
    names = ("StochasticSoftmax", "TraceREINFORCE", "RELAX")
    assert known == {
        **dict(zip(itertools.product(["graph-layout"], names), (123, 137, 180), strict=True)),
        **dict(zip(itertools.product(["listops"], names), (175, 249, 535), strict=True)),
    }
    assert all(c.settings["training"] == "unrolled" for c in cases if c.paper and c.experiment == "graph-layout")


def test_every_run_gets_its_updates(monkeypatch, tmp_path):
    for name, number in (("ROUNDS", 2), ("REPEATS", 3)):
        monkeypatch.setattr(updates, name, number)
    counts, make = [], updates.Run

    def counted(*args, **kwargs):
        counts.append(make(*args, **kwargs))
        return counts[-1]

    monkeypatch.setattr(updates, "Run", counted)
    monkeypatch.setattr(updates, "BESIDE", (1, 3))
    case = updates.Case("listops", "TraceREINFORCE", 249, {"samples": 4})
    one, three = updates.measure(case, torch.device("cpu"), tmp_path, smoke=True)
    assert [run.iteration for run in counts] == [2 * (3 + 2 * 3), 3 + 2 * 3, 3 + 2 * 3]
    assert [run.config.seed for run in counts] == [0, 1, 2]
    assert (one["runs"], three["runs"]) == (1, 3)
    for record in (one, three):
        assert record["experiment"] == "listops"
        assert record["settings"] == {"samples": 4}
        assert 0 < record["min_ms"] <= record["ms"]


def test_the_others_are_kept(monkeypatch, tmp_path):
    out = tmp_path / "updates.json"
    about = {"ms": 1.0, "machine": {"device": "cpu"}, "smoke": True}
    old = [{"experiment": name, **about} for name in ("graph-layout", "l2x")]
    out.write_text(json.dumps({"records": old}))
    monkeypatch.setattr(updates, "measure", lambda case, *_: [{"experiment": case.experiment, "ms": 2.0}])
    monkeypatch.setattr("sys.argv", ["updates.py", "--experiments", "l2x", "--out", str(out), "--smoke"])
    updates.main()
    records = json.loads(out.read_text())["records"]
    assert records[0] == old[0]
    assert {(r["experiment"], r["ms"]) for r in records[1:]} == {("l2x", 2.0)}
    out.write_text(json.dumps({"records": [{**old[0], "machine": {"device": "NVIDIA H200"}}]}))
    with pytest.raises(SystemExit):  # the others are of another device
        updates.main()


def test_a_time_is_that_of_one_update(monkeypatch):
    """By a made-up clock: two rounds of three runs take 12 seconds, so one update 2."""

    class MadeUp:
        recorded = False

        def update(self):
            clock.append(clock[-1] + 2.0)

    clock = [0.0]
    monkeypatch.setattr(updates.time, "perf_counter", lambda: clock[-1])
    assert updates.clocked([MadeUp() for _ in range(3)], 2) == pytest.approx(2000)


def test_recorded_times():
    """What the pages promise of an H200: milliseconds, and no case missing."""
    found = json.loads(updates.RESULTS.read_text())
    assert not any(record["smoke"] for record in found["records"])
    assert {record["machine"]["device"] for record in found["records"]} == {"NVIDIA H200"}
    alone = {(r["experiment"], r["estimator"], str(r["settings"])): r["ms"] for r in found["records"] if r["runs"] == 1}
    assert alone.keys() == {(c.experiment, c.estimator, str(c.settings)) for c in updates.cases()}
    assert max(ms for (name, *_), ms in alone.items() if name == "listops") < 10
    for training, most in (("unrolled", 3), ("teacher-forced", 2)):
        assert alone["graph-layout", "TraceREINFORCE", str({"training": training, "samples": 8})] < most
    assert alone["l2x", "TraceREINFORCE", str({"samples": 4})] < 2
