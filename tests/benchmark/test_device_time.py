"""Device time: measured right though Python is slow, or not at all. On a device that is made up, and on a real one."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from gumtrace import benchmark
from gumtrace.benchmark import Case, Record, device
from gumtrace.cli import bench

pytestmark = pytest.mark.device

DEVICE_MS = 0.06


class MadeUp:
    """A device and its host, each with a clock in seconds. The host may be `queue` launches ahead, no more."""

    def __init__(self, queue=1000):
        self.now = self.free = 0.0  # of the host, and when the device has done all it was sent
        self.queue, self.ends = queue, []

    def launch(self, seconds):
        if len(self.ends) >= self.queue:
            self.now = max(self.now, self.ends[-self.queue])  # a full queue: the host waits for a place
        self.free = max(self.free, self.now) + seconds
        self.ends.append(self.free)

    def synchronize(self):
        self.now = max(self.now, self.free)

    def event(self, **_):
        event = SimpleNamespace()
        event.record = lambda: setattr(event, "at", max(self.free, self.now))
        event.query = lambda: self.now >= event.at
        event.elapsed_time = lambda end: 1e3 * (end.at - event.at)
        return event

    def step(self, launches=6, host=1.4e-3, waits=False):
        """A call that takes the host `host` seconds and the device DEVICE_MS."""

        def call():
            for _ in range(launches):
                self.now += host / launches
                self.launch(1e-3 * DEVICE_MS / launches)
            if waits:
                self.synchronize()

        return call


@pytest.fixture
def made_up(monkeypatch):
    def make(**settings):
        it = MadeUp(**settings)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", it.synchronize)
        monkeypatch.setattr(torch.cuda, "Event", it.event)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: it.launch(cycles / device.CYCLES))
        monkeypatch.setattr(time, "perf_counter", lambda: it.now)
        return it

    return make


@pytest.mark.parametrize(
    "step",
    [
        {},  # the host is twenty times slower
        {"host": 1e-5},  # the device is slower
        {"host": 0.3},  # one call at a time, and a long wait
        {"launches": 300, "host": 1e-3},  # twenty calls do not fit into the queue
    ],
)
def test_the_host_is_hidden(made_up, step):
    assert device.event_ms(made_up().step(**step)) == pytest.approx(DEVICE_MS)


def test_a_wait_that_is_too_short_is_doubled(made_up):
    """The first calls were fast, those that are timed are not."""
    it = made_up()
    slow, fast = it.step(host=0.1), it.step(host=1e-3)
    left = iter([fast] * 4)
    assert device.event_ms(lambda: next(left, slow)()) == pytest.approx(DEVICE_MS)


@pytest.mark.parametrize("step", [{"waits": True}, {"launches": 2000}])
def test_what_cannot_be_hidden_is_not_told(made_up, step):
    assert device.event_ms(made_up().step(**step)) is None


def test_what_synchronises_is_not_captured(made_up, monkeypatch):
    made_up()
    modes = ["default"]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def call():
        if modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    assert device.graph_ms(call) is None
    assert modes == ["default", "error", "default"]


def test_tables_are_blank_where_nothing_was_measured(capsys):
    facts = {"structure": "BinaryTree", "size": {"n": 5}, "batch": 4, "device": "cuda:1", "dtype": "float32"}
    sizes = {"peak_bytes": 10, "trace_bytes": 1, "logits_bytes": 5}
    records = [
        Record(
            step=step, ms=77.0, min_ms=77.0, copy_ms=0.5, **facts, **sizes, device_ms=None if step == "trace" else 3.0
        )
        for step in benchmark.STEPS
    ]
    assert records[1].own_ms is records[1].copies is None
    assert records[0].copies == 6
    head, (row,) = bench._cuda_table(records, None)
    cells = dict(zip(head, row, strict=True))
    assert (cells["perturb"], cells["trace"], cells["graph"], cells["share"]) == ("3", "", "", "")
    assert (cells["host"], cells["copies"]) == ("77", "6")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_real_device():
    """What does not depend on how fast it is: the device waits for a host that looks at results, and one step of each
    case is recorded as a graph."""
    x = torch.ones(1 << 20, device="cuda")
    assert device.event_ms(lambda: x.sum().item()) is None
    records = benchmark.run_case(Case("SpanningTree.from_edges", {"nodes": 9, "edges": 20}), device="cuda:0", repeat=1)
    assert [record.step for record in records if record.graph_ms is not None] == ["t_step"]
