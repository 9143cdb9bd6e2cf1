"""Where the time of an update goes."""

import warnings
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from gumtrace.experiments.config import Config
from gumtrace.experiments.experiment import Experiment
from gumtrace.experiments.parallel import Workers
from gumtrace.experiments.run import BACKWARD, FORWARD, OPTIMISER, WARM_UP, Run
from gumtrace.experiments.training import precision

ROWS = 15  # of the table of operators
PARTS = (FORWARD, BACKWARD, OPTIMISER)


def profile(
    experiment: type[Experiment],
    config: Config,
    data: Path,
    device: torch.device | str = "cpu",
    updates: int = 20,
    *,
    compile: bool = False,
    trace: Path | None = None,
) -> str:
    """A report on that many updates, made one by one (not as a graph). Nothing is kept of the training.

    Args:
        trace: a file for a timeline, to be looked at in chrome://tracing or Perfetto.
    """
    with precision(config):
        return _profile(experiment, config, data, Workers(torch.device(device)), updates, compile, trace)


def _profile(
    experiment: type[Experiment],
    config: Config,
    data: Path,
    workers: Workers,
    updates: int,
    compile: bool,
    trace: Path | None,
) -> str:
    model = experiment.build(config, experiment.load(config, data, workers.device), workers.device)
    if compile:
        model.compile_parts()
    run = Run(model, None, workers)
    cuda = workers.device.type == "cuda"
    for _ in range(WARM_UP):
        run.update()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    # Some versions of torch warn, whenever one starts, that it forgets earlier cycles.
    with warnings.catch_warnings(action="ignore"), torch.profiler.profile(activities=activities) as profiler:
        for _ in range(updates):
            run.update()
        if cuda:
            torch.cuda.synchronize()
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    return _report(profiler, updates, cuda)


def _report(profiler: torch.profiler.profile, updates: int, cuda: bool) -> str:
    events = profiler.key_averages()
    # On CUDA a part is there twice: as the host saw it, and, with no time of the host, as the device did.
    host = {part: sum(e.cpu_time_total for e in events if e.key == part) for part in PARTS}
    kernels = [e for e in profiler.events() or () if cuda and e.device_type.name == "CUDA" and e.key not in PARTS]
    lines = [f"one update of {updates}, in ms; host is what Python and the launches take"]
    lines += [f"  {part:<10} host {host[part] / 1e3 / updates:8.3f}" for part in PARTS]
    if cuda:
        busy = sum(e.time_range.elapsed_us() for e in kernels)
        lines.append(f"  device busy {busy / 1e3 / updates:.3f} with {len(kernels) / updates:.0f} kernels")
    column = "self_device_time_total" if cuda else "self_cpu_time_total"
    ranked = sorted((e for e in events if e.key not in PARTS), key=lambda e: -getattr(e, column))
    lines += ["", f"  {'operator':<60} {'calls':>7} {'ms':>8}"]
    for e in ranked[:ROWS]:
        lines.append(f"  {e.key[:60]:<60} {e.count / updates:7.1f} {getattr(e, column) / 1e3 / updates:8.3f}")
    return "\n".join(lines)
