"""`gumtrace bench --scale`: what it checks and records, with sizes that are not large, and its table and figure."""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import recordings
import scale
import table
import torch

import gumtrace as gt
from gumtrace import benchmark
from gumtrace.benchmark import Case, CheckFailed, Record, check_scale, run_scale
from gumtrace.benchmark import scale as timed
from gumtrace.benchmark.device import synchronises
from gumtrace.cli import bench

SMALL = (
    Case("Subset", {"d": 50, "k": 3}, batch=4, quick=True),
    Case("Permutation", {"d": 20}, batch=4),
    Case("Arborescence", {"n": 6}, batch=4, quick=True),
    Case("Matching", {"n": 5}, batch=4),
    Case("BinaryTree", {"n": 30}, batch=4),
    Case("SpanningTree.from_edges", {"nodes": 6, "edges": 9}, batch=1),
    Case("BatchedSpanningTree", {"nodes": 6, "edges": 9}, batch=3),
)
WITH = {"Subset": ["t_step", "torch"], "Permutation": ["t_step", "torch"], "Arborescence": ["t_step", "sst_step"]}


def record(**fields) -> Record:
    facts = {"structure": "Subset", "size": {"d": 1000, "k": 9}, "batch": 1000, "device": "cuda", "dtype": "float32"}
    sizes = {"peak_bytes": 12_000_000, "trace_bytes": 1, "logits_bytes": 4_000_000}
    times = {"step": "t_step", "ms": 5.0, "min_ms": 5.0, "copy_ms": 0.004, "graph_ms": 0.5}
    return Record(**{**facts, **sizes, **times, **fields})


MACHINE = {"device": "A card", "torch": "2.11.0+cu130", "date": "2026-11-17"}
RECORDED = {
    "machine": MACHINE,
    "records": [
        asdict(record()),
        asdict(record(step="torch", graph_ms=1.5)),
        asdict(record(size={"d": 100_000, "k": 9}, batch=10, peak_bytes=4_000_000)),
        asdict(record(structure="Matching", size={"n": 100}, batch=100, device="cpu", graph_ms=None)),
        asdict(record(structure="Arborescence", size={"n": 100}, batch=100, graph_ms=None, device_ms=1234.0)),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.structure)
def test_records(case):
    check_scale(case)
    records = run_scale(case, calls=2)
    assert [r.step for r in records] == WITH.get(case.structure, ["t_step"])
    for r in records:
        assert (r.structure, r.size, r.batch, r.device) == (case.structure, case.size, case.batch, "cpu")
        assert 0 < r.min_ms <= r.ms
        assert r.graph_ms is r.device_ms is None
        assert (r.copy_ms or 0) > 0


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda log_prob: log_prob * 1.01, "log-probabilities are not those in float64"),
        (lambda log_prob: 1.01 * log_prob - 0.01 * log_prob.detach(), "gradients are not those in float64"),
    ],
)
def test_a_wrong_answer_is_refused(monkeypatch, wrong, what):
    right = gt.Subset.trace_log_prob

    def broken(self, trace):
        found = right(self, trace)
        return wrong(found) if found.dtype == torch.float32 else found

    monkeypatch.setattr(gt.Subset, "trace_log_prob", broken)
    with pytest.raises(CheckFailed, match=f"Subset d=50 k=3: the {what}"):
        check_scale(SMALL[0])


def test_batches_are_smaller_on_the_cpu(monkeypatch):
    monkeypatch.setattr(timed, "CPU_LOGITS", 120)
    assert {r.batch for r in run_scale(SMALL[0], calls=1)} == {2}
    assert {r.batch for r in run_scale(replace(SMALL[0], size={"d": 200, "k": 3}), calls=1)} == {1}


def test_slow_steps_are_timed_less_often(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(timed.time, "perf_counter", lambda: next(clock))
    assert len(timed._wall(lambda: None, 15)) == 3
    slow = iter(range(0, 1000, 5))
    monkeypatch.setattr(timed.time, "perf_counter", lambda: next(slow))
    assert len(timed._wall(lambda: None, 15)) == 1


def test_cases():
    """Those that have limits, and the largest that CUDA kernels take; no batch has more logits than the series."""
    assert {(case.structure, *case.size.values(), case.batch) for case in benchmark.SCALE} >= {
        ("Subset", 131072, 64, 64),
        ("Permutation", 100_000, 16),
        ("SpanningTree", 2048, 4),
        ("Matching", 2048, 4),
        ("Arborescence", 2048, 4),
        ("SpanningTree.from_edges", 10**6, 10**7, 1),
    }
    for case in benchmark.SCALE:
        assert (case.batch or 0) * timed.keys_of(case.structure, case.size) <= 1.02 * timed.LOGITS


def test_quick_has_one_size_of_each_structure():
    quick = [case.structure for case in benchmark.SCALE if case.quick]
    assert sorted(quick) == sorted(benchmark.STRUCTURES)


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(["--scale", *words]))


def test_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "SCALE", SMALL)
    files = ["--json", str(tmp_path / "r.json"), "--figure", str(tmp_path / "r.svg")]
    assert command("--quick", "--repeat", "1", *files) == 0
    shown = capsys.readouterr().out
    for word in ("Subset d=50 k=3", "Arborescence n=6", "torch", "sst_step", "beyond logits and gradient", "at most"):
        assert word in shown
    assert "Matching" not in shown  # not among the quick ones
    assert "eager" not in shown  # as there is nothing else on the CPU
    machine, records = benchmark.load(tmp_path / "r.json")
    assert [r.step for r in records] == WITH["Subset"] + WITH["Arborescence"]
    assert scale.table({"machine": machine, "records": [asdict(r) for r in records]}).count("\n| ") == 3
    assert (tmp_path / "r.svg").read_text().startswith("<?xml")


def test_quick_repeats_less(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(benchmark, "SCALE", SMALL[:1])
    monkeypatch.setattr(benchmark, "check_scale", lambda *_, **__: None)
    monkeypatch.setattr(benchmark, "run_scale", lambda *_, calls, **__: asked.append(calls) or [record()])
    for words in ([], ["--quick"], ["--quick", "--repeat", "3"]):
        assert command(*words) == 0
    assert asked == [15, 5, 3]


def test_command_refuses_what_it_cannot_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "check_scale", lambda *_, **__: pytest.fail("it was checked"))
    assert command("--batch", "2") == 2
    why = "--batch has no meaning with --scale, whose cases have batches of their own"
    assert capsys.readouterr().err == f"gumtrace bench: {why}\n"
    pytest.importorskip("matplotlib")
    assert command("--figure", str(tmp_path / "times.txt")) == 2
    assert f"{tmp_path / 'times.txt'}: its name must end in one of" in capsys.readouterr().err
    (tmp_path / "times.png").mkdir()
    assert command("--figure", str(tmp_path / "times.png")) == 2
    assert capsys.readouterr().err.endswith("it is a folder; choose another --figure\n")


def test_rows_of_the_command():
    records = [record(), record(step="sst_step", graph_ms=None, device_ms=7.0), record(step="torch", graph_ms=0.25)]
    head, (row,) = bench._scale_table(records, cuda=True)
    cells = dict(zip(head, row, strict=True))
    assert (cells["t_step"], cells["sst_step"], cells["torch"], cells["peak"]) == ("0.5", "7*", "0.25", "2.00")
    assert (cells["eager"], cells["copies"], cells["x torch"]) == ("5", "125", "2.00")
    head, (row,) = bench._scale_table([record(device="cpu", graph_ms=None)], cuda=False)
    assert "eager" not in head
    assert dict(zip(head, row, strict=True))["x torch"] == ""


def test_table():
    lines = scale.table(RECORDED).splitlines()
    assert "A card, torch 2.11.0, 2026-11-17" in lines[0]
    assert lines[4] == "| Subset d=1,000 k=9 | 1,000 | 0.0040 | 1.5 | 0.50 | 5.0 |  | 125 | 0.33 | 2.0 |"
    assert lines[5] == "| Subset d=100,000 k=9 | 10 | 0.0040 |  | 0.50 | 5.0 |  | 125 |  | 0.0 |"
    assert lines[6] == "| Matching n=100 | 100 | 0.0040 |  | 5.0 | 5.0 |  | 1,250 |  | 2.0 |"
    assert lines[7] == "| Arborescence n=100 | 100 | 0.0040 |  | 1,234\\* | 5.0 |  | 308,500 |  | 2.0 |"


def test_permutations_beside_sort():
    of = {"structure": "Permutation", "size": {"d": 2000}}
    records = [record(**of), record(**of, step="torch", graph_ms=0.25, peak_bytes=8_000_000)]
    records += [record(**of | {"size": {"d": 10}}), record(**of | {"size": {"d": 10}}, step="torch", graph_ms=0.4)]
    page = scale.permutations({"machine": MACHINE, "records": [asdict(r) for r in records]})
    assert "on A card, in times of torch: 2.00 for 2,000, 1.25 for 10." in page
    assert "For 2,000 keys it takes 2 times the memory of the logits, " in page
    assert "which take 2." in page


def test_table_of_a_cpu():
    machine = {**MACHINE, "device": "cpu", "cpu": "A core", "threads": 2}
    records = [asdict(record(device="cpu", graph_ms=None)), asdict(record(device="cpu", graph_ms=None, step="torch"))]
    lines = scale.table({"machine": machine, "records": records}).splitlines()
    assert "--device cpu --scale` on A core, 2 threads, torch 2.11.0" in lines[0]
    assert "eager" not in lines[2]
    assert lines[4] == "| Subset d=1,000 k=9 | 1,000 | 0.0040 | 5.0 | 5.0 |  | 1,250 | 1.00 | 2.0 |"


def test_figure():
    pytest.importorskip("matplotlib")
    time, memory = scale.draw(RECORDED).axes
    of = {line.get_label(): line for line in time.lines}
    assert list(of["Subset"].get_xdata()) == [1000, 100_000]
    assert list(of["Subset"].get_ydata()) == pytest.approx([0.5, 0.5])  # ns a logit
    assert list(of["Arborescence"].get_ydata()) == pytest.approx([1234.0])
    assert list(memory.lines[0].get_ydata()) == pytest.approx([2.0, 0.0])


LIMITS = [  # what large items may take: structure, size, batch, what of it, and the most that it may be
    ("Subset", {"d": 131072, "k": 64}, 64, "times_torch", 1.5),
    ("Subset", {"d": 8192, "k": 256}, 1024, "times_torch", 1.5),
    ("Subset", {"d": 10**6, "k": 1000}, 8, "best_copies", 30),
    ("Subset", {"d": 131072, "k": 64}, 64, "extra_memory", 1.2),
    ("Subset", {"d": 8192, "k": 256}, 1024, "extra_memory", 1.2),
    ("Subset", {"d": 10**6, "k": 1000}, 8, "extra_memory", 1.2),
    ("Permutation", {"d": 100_000}, 16, "times_torch", 1.5),
    ("SpanningTree", {"n": 500}, 64, "best_copies", 12),
    ("SpanningTree", {"n": 1000}, 16, "best_copies", 30),
    ("Matching", {"n": 200}, 256, "best_copies", 15),
    ("Arborescence", {"n": 500}, 64, "best_copies", 40),
    ("SpanningTree.from_edges", {"nodes": 10**6, "edges": 10**7}, 1, "best_ms", 60),
    ("SpanningTree", {"n": 100}, 1024, "sst_ms", 20),
]


@pytest.mark.parametrize(("structure", "size", "batch", "what", "most"), LIMITS)
def test_what_was_recorded_is_within_its_limit(structure, size, batch, what, most):
    _, records = benchmark.load(Path(recordings.RESULTS) / scale.FILE)
    of = {r.step: r for r in records if (r.structure, r.size, r.batch) == (structure, size, batch)}
    step = of["t_step"]
    assert step.graph_ms is not None  # of the device alone, as a graph
    found = {
        "times_torch": lambda: step.best_ms / of["torch"].best_ms,
        "sst_ms": lambda: of["sst_step"].best_ms,
    }.get(what, lambda: getattr(step, what))()
    assert 0 < found <= most


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_synchronises_is_not_captured():
    x = torch.ones(4, device="cuda")
    assert synchronises(lambda: x.sum().item())
    assert not synchronises(lambda: x.sum())
    for case in SMALL:
        check_scale(case, device="cuda")
    (dense, baseline), (sparse,) = (run_scale(SMALL[i], device="cuda", calls=1) for i in (0, -1))
    assert dense.graph_ms is not None and baseline.graph_ms is not None  # noqa: PT018
    assert sparse.graph_ms is not None


def test_the_page_shows_a_run_that_is_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(recordings, "RESULTS", tmp_path)
    (tmp_path / scale.FILE).write_text(json.dumps(RECORDED))
    assert table.table("scale") == scale.table(RECORDED)


def test_all_cases_are_recorded_on_the_cpu():
    machine, records = benchmark.load(Path(recordings.RESULTS) / scale.CPU_FILE)
    assert machine["device"] == "cpu"
    recorded = {(r.structure, str(r.size)) for r in records if r.step == "t_step"}
    assert recorded == {(case.structure, str(dict(case.size))) for case in benchmark.SCALE}
    assert table.table("scale-cpu").count("\n| ") == 1 + len(benchmark.SCALE)
