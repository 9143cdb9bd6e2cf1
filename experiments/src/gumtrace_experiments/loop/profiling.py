"""Where the time of an update goes."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function

from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.easy_first import check_difficulty
from gumtrace_experiments.loop.update import BACKWARD, FORWARD, OPTIMISER, WARM_UP, Updater
from gumtrace_experiments.loop.workers import Workers

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
    if config.curriculum:
        check_difficulty(experiment)
    with config.set_precision():
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
    model = experiment.build(config, experiment.load_data(config, data, workers.device), workers.device)
    if compile:
        model.compile_parts()  # which knows no names
    else:
        _name_parts(model)
    updater = Updater(model, workers)
    cuda = workers.device.type == "cuda"
    if trace is not None:
        trace.open("ab").close()  # where that is refused, before the updates and not after them
    for iteration in range(WARM_UP):
        updater.update(iteration)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    # Some versions of torch warn, whenever one starts, that it forgets earlier cycles.
    with warnings.catch_warnings(action="ignore"), torch.profiler.profile(activities=activities) as profiler:
        for iteration in range(WARM_UP, WARM_UP + updates):
            updater.update(iteration)
        if cuda:
            torch.cuda.synchronize()
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    return _report(profiler, updates, cuda, [] if compile else [name for name, _ in model.named_children()])


def _name_parts(model: nn.Module) -> None:
    """Let the profiler know when each of the model's parts is called."""

    def name_part(name: str, part: nn.Module) -> None:
        called: list[record_function] = []  # the last of them ends first
        part.register_forward_pre_hook(lambda *_: called.append(record_function(name).__enter__()))
        part.register_forward_hook(lambda *_: called.pop().__exit__(None, None, None))

    for name, part in model.named_children():
        name_part(name, part)


def _report(profiler: torch.profiler.profile, updates: int, cuda: bool, parts: list[str]) -> str:
    averages, events = profiler.key_averages(), profiler.events() or ()
    # On CUDA a part is there twice: as the host saw it, and, with no time of the host, as the device did. So are others
    # that torch names itself; older versions of it do not say of an event that it is a name.
    on_device = [e for e in events if cuda and e.device_type.name == "CUDA"]
    kernels = [e for e in on_device if not getattr(e, "is_user_annotation", e.key in (*PARTS, *parts))]

    def line(part: str, indent: str) -> str:
        host = sum(e.cpu_time_total for e in averages if e.key == part)
        return f"{indent}{part:<{14 - len(indent)}} host {host / 1e3 / updates:8.3f}"

    lines = [f"one update of {updates}, in ms; host is what Python and the launches take"]
    for part in PARTS:
        lines.append(line(part, "  "))
        if part == FORWARD:  # one may call another: the estimator the objective
            lines += [f"{line(name, '    ')}{_busy(name, on_device, kernels, updates)}" for name in parts]
    if cuda:
        busy = sum(e.time_range.elapsed_us() for e in kernels)
        lines.append(f"  device busy {busy / 1e3 / updates:.3f} with {len(kernels) / updates:.0f} kernels")
    column = "self_device_time_total" if cuda else "self_cpu_time_total"
    ranked = sorted((e for e in averages if e.key not in (*PARTS, *parts)), key=lambda e: -getattr(e, column))
    lines += ["", f"  {'operator':<60} {'calls':>7} {'ms':>8}"]
    for e in ranked[:ROWS]:
        lines.append(f"  {e.key[:60]:<60} {e.count / updates:7.1f} {getattr(e, column) / 1e3 / updates:8.3f}")
    return "\n".join(lines)


def _busy(part: str, on_device: list[Any], kernels: list[Any], updates: int) -> str:
    """Time of the kernels that ran while the device was in a part."""
    if not on_device:
        return ""
    spans = [e.time_range for e in on_device if e.key == part]
    inside = [k.time_range for k in kernels if any(s.start <= k.time_range.start < s.end for s in spans)]
    return f"   device {sum(time.elapsed_us() for time in inside) / 1e3 / updates:8.3f}"
