"""`gumtrace sweep NAME`: an Optuna study over the search ranges of an experiment; it takes the options of `train`."""

import argparse
import signal
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from gumtrace.cli.arguments import device_problem, folder_problem
from gumtrace_experiments.commands.options import add_experiment, label, parse, set_threads
from gumtrace_experiments.commands.retraining import command
from gumtrace_experiments.store.errors import RunFolderError

ROWS = 10  # of the table of the best trials


@dataclass(frozen=True)
class Options:
    """How to search. The options above hold for all trials, except those that are searched: each trial sets its own."""

    trials: int = 20
    """Trials to complete or prune, including those of earlier calls; failed ones are replaced by new ones."""
    jobs: int = 1
    """Number of workers; 1 is this process, more are started by submitit."""
    out: Path | None = None
    """Folder of the study and of its trials; a sweep that was cut off is resumed. Default: runs/sweep-NAME/..."""
    storage: str = ""
    """The journal file of the study, or the URL of a PostgreSQL or MySQL database that many machines share.
    Drivers to install: psycopg2-binary for postgresql+psycopg2://, pymysql for mysql+pymysql://.
    Default: a file in --out."""
    cluster: Literal["local", "slurm"] = "local"
    slurm_partition: str = ""
    slurm_hours: int = 24
    """Time limit of a job; a worker that reaches it is queued again."""
    slurm_cpus: int = 4
    slurm_options: str = ""
    """Further options for sbatch, e.g. account=me,qos=high."""
    no_prune: bool = False
    """Do not stop trials early that are worse than the median."""
    seed_sampler: int | None = None
    """Random seed of the search; with one worker, it makes a sweep repeatable."""
    device: str = "cpu"
    data: Path = Path("data")
    """Folder of the data sets; they are made or checked there when first used."""
    compile: bool = False
    """torch.compile the model."""
    graph: bool = False
    """Record the update as a CUDA graph."""
    threads: int | None = None
    """Threads of the CPU, of each worker. Default: 1 with --smoke, else local workers share what torch chooses."""
    smoke: bool = False
    """Small data, small model, few iterations: a minute on two cores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser, more="; its options: gumtrace sweep NAME --help")
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    import optuna

    from gumtrace_experiments.sweep.errors import SweepError
    from gumtrace_experiments.sweep.front_end import run_sweep
    from gumtrace_experiments.sweep.jobs import Jobs
    from gumtrace_experiments.sweep.signals import Stopped
    from gumtrace_experiments.sweep.study import Sweep, best

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the bar and the table show the same
    config, options = parse(args.experiment, args.options, Options, "sweep")
    out = options.out or Path("runs") / f"sweep-{args.experiment.name}" / study_label(config)
    try:
        # On a cluster, other machines have the device.
        if options.cluster == "local" and (problem := device_problem(options.device)):
            raise ValueError(problem)
        sweep = Sweep(
            args.experiment,
            config,
            out,
            trials=options.trials,
            storage=options.storage,
            prune=not options.no_prune,
            seed=options.seed_sampler,
            device=options.device,
            data=options.data,
            compile=options.compile,
            graph=options.graph,
            threads=set_threads(options.threads, options.smoke),
        )
        more = read_options(options.slurm_options)
        if problem := folder_problem(out, "--out"):
            raise ValueError(problem)
        slurm = (options.slurm_partition, options.slurm_hours, options.slurm_cpus, more)
        study = run_sweep(sweep, Jobs(options.jobs, options.cluster, *slurm))
    except (RunFolderError, SweepError, ValueError, OSError) as error:
        print(f"gumtrace sweep: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        text = f"stopped by {stopped}, and its workers with it; the same command resumes it, and their trials"
        print(f"gumtrace sweep: {text}", file=sys.stderr)
        return 128 + signal.Signals[str(stopped)]
    trials = best(study)[:ROWS]
    print_table(sweep.experiment.selection_metric, trials)
    print(f"study {study.study_name} in {out}")
    if trials:
        print("to train the best with several seeds:")
        print(command(args.experiment, args.experiment.search(config, trials[0]), options))
    return 0


def study_label(config: Any) -> str:
    """A folder name, as for runs; all runs of a sweep have one seed, and so it belongs to the name."""
    return label(config) + (f",seed={config.seed}" if config.seed != type(config)().seed else "")


def read_options(text: str) -> dict[str, str]:
    """
    >>> read_options("account=me,qos=high")
    {'account': 'me', 'qos': 'high'}
    """
    pairs = [part.partition("=") for part in filter(None, text.split(","))]
    if any(not name or not equals for name, equals, _ in pairs):
        raise ValueError(f"options for sbatch are pairs such as account=me,qos=high, got {text!r}")
    return {name: value for name, _, value in pairs}


def print_table(metric: str, trials: list[Any]) -> None:
    """By rich, if it is there."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    head = ["trial", metric, *names, "folder"]
    rows = [
        [str(trial.number), *(_short(x) for x in (trial.value, *map(trial.params.get, names))), _folder(trial)]
        for trial in trials
    ]
    if find_spec("rich") is None:
        for row in [head, *rows]:
            print("  ".join(row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for name in head:
        table.add_column(name, justify="left" if name == "folder" else "right", no_wrap=name != "folder")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)


def _folder(trial: Any) -> str:
    return Path(trial.user_attrs["folder"]).name
