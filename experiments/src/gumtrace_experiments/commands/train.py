"""`gumtrace train NAME`: the options are the fields of the experiment's config, read by tyro."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumtrace.cli.arguments import device_problem
from gumtrace_experiments.commands.options import add_experiment, label, parse, read_seeds, set_threads
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.training import train
from gumtrace_experiments.store.errors import RunFolderError


@dataclass(frozen=True)
class Options:
    """How to run it; up to rounding, results do not depend on these options."""

    out: Path | None = None
    """Folder of the runs, one folder for each seed inside; a run that was cut off is resumed. Default: runs/NAME/..."""
    seeds: str = ""
    """Several seeds side by side, instead of --seed: 0-9, or 0,3,5."""
    device: str = "cpu"
    data: Path = Path("data")
    """Folder of the data sets; they are made or checked there when first used."""
    compile: bool = False
    """torch.compile the model."""
    graph: bool = False
    """Record the update as a CUDA graph."""
    threads: int | None = None
    """Threads of the CPU. Default: 1 with --smoke, else as many as torch chooses."""
    profile: bool = False
    """Instead of training, report where the time of an update goes, without a CUDA graph."""
    profile_updates: int = 20
    """With --profile: number of updates."""
    profile_trace: Path | None = None
    """With --profile: a file for a timeline, for chrome://tracing or Perfetto."""
    smoke: bool = False
    """Small data, small model, few iterations: a minute on two cores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser, more="; its options: gumtrace train NAME --help")
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """0: done; 1: a run diverged; 2: it cannot be run as asked."""
    try:
        config, options = parse(args.experiment, args.options, Options, "train")
        if options.seeds and any(option.partition("=")[0] == "--seed" for option in args.options):
            raise ValueError("--seed is for one run and --seeds for several: give one of them")
        if options.profile and (unused := [name for name in ("seeds", "graph") if getattr(options, name)]):
            raise ValueError(f"--profile measures one run without a CUDA graph: leave out --{' and --'.join(unused)}")
        if problem := device_problem(options.device):
            raise ValueError(problem)
        set_threads(options.threads, options.smoke)
        return (_profile if options.profile else _train)(args.experiment, config, options)
    # OSError: folders that cannot be read or written. NotImplementedError: an estimator that cannot serve here.
    except (RunFolderError, ValueError, OSError, NotImplementedError) as error:
        print(f"gumtrace train: {error}", file=sys.stderr)
        return 2


def _train(experiment: type[Experiment], config: Any, options: Options) -> int:
    out = options.out or Path("runs") / experiment.name / label(config)
    seeds = read_seeds(options.seeds) or [config.seed]
    results = train(
        experiment,
        config,
        out,
        seeds=seeds,
        device=options.device,
        data=options.data,
        compile=options.compile,
        graph=options.graph,
    )
    for seed, result in zip(seeds, results, strict=False):  # ranks other than 0 have none
        if result["test"]:
            print(f"seed {seed}:", "  ".join(f"{metric} {value:.5g}" for metric, value in result["test"].items()))
        if "diverged" in result:
            print(f"gumtrace train: seed {seed} diverged {result['diverged']}", file=sys.stderr)
    if results:
        print(f"runs in {out}")
    return int(any("diverged" in result for result in results))


def _profile(experiment: type[Experiment], config: Any, options: Options) -> int:
    from gumtrace_experiments.loop.profiling import profile

    if options.profile_updates < 1:
        raise ValueError(f"profile_updates must be at least 1, got {options.profile_updates}")
    settings = {"compile": options.compile, "trace": options.profile_trace}
    print(profile(experiment, config, options.data, options.device, options.profile_updates, **settings))
    return 0
