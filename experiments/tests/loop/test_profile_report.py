"""What a profile says of a device, by made-up events: there is none in most tests."""

import re
from types import SimpleNamespace

from gumtrace_experiments.loop.profiling import _report


class Span(SimpleNamespace):
    def elapsed_us(self):
        return self.end - self.start


def on_device(key, start, end, named=False):
    kind = SimpleNamespace(name="CUDA")
    return SimpleNamespace(key=key, device_type=kind, time_range=Span(start=start, end=end), is_user_annotation=named)


def average(key, host, device=0.0):
    return SimpleNamespace(
        key=key, cpu_time_total=host, self_device_time_total=device, self_cpu_time_total=host, count=2
    )


def test_kernels_belong_to_the_parts_they_ran_in():
    """Two updates: names are no kernels, those of torch included, and the second kernel is in no part."""
    events = [
        on_device("forward", 0, 6_000, named=True),
        on_device("encoder", 1_000, 4_000, named=True),
        on_device("first", 1_000, 3_000),
        on_device("second", 4_000, 5_000),
        on_device("Optimizer.step#AdamW.step", 7_000, 9_000, named=True),
        on_device("third", 7_000, 7_500),
    ]
    averages = [average("forward", 8_000), average("encoder", 2_000), average("first", 0, device=2_000)]
    profiler = SimpleNamespace(events=lambda: events, key_averages=lambda: averages)
    report = _report(profiler, 2, True, ["encoder"])
    assert re.search(r"forward +host +4\.000\n", report)
    assert re.search(r"encoder +host +1\.000 +device +1\.000\n", report)
    assert "device busy 1.750 with 2 kernels" in report
    assert re.search(r"first +1\.0 +1\.000$", report, re.MULTILINE)
    assert len(re.findall("encoder", report)) == 1  # not among the operators
