"""`gumtrace train NAME`: the options are the fields of the experiment's config, read by tyro."""

import argparse
import dataclasses
import sys
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import tyro

from gumtrace.cli.arguments import device_problem
from gumtrace_experiments import NAMES, find
from gumtrace_experiments.loop.training import train
from gumtrace_experiments.store.folder import RunFolderError

LONGEST = 200  # letters of a folder's name; file systems take 255 bytes


@dataclass(frozen=True)
class Options:
    """How to run it; what comes out does not depend on these, up to rounding."""

    out: Path | None = None
    """Folder of the runs, one folder for each seed inside; a run that was cut off goes on. Default: runs/NAME/..."""
    seeds: str = ""
    """Several seeds side by side, instead of --seed: 0-9, or 0,3,5."""
    device: str = "cpu"
    data: Path = Path("data")
    """Folder of the data sets; they are made or checked there when first used."""
    compile: bool = False
    """torch.compile the model."""
    graph: bool = False
    """Record the update as a CUDA graph."""
    profile: bool = False
    """Say where the time of an update goes, instead of training; made one by one, without a graph."""
    profile_updates: int = 20
    """With --profile: updates to look at."""
    profile_trace: Path | None = None
    """With --profile: a file for a timeline, for chrome://tracing or Perfetto."""
    smoke: bool = False
    """Small data, small model, few iterations: a minute on two cores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=NAMES, help="experiment; its options: gumtrace train NAME --help")
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """0: done; 1: a run diverged; 2: it cannot be run as asked."""
    try:
        config, options = parse(args.name, args.options)
        if options.seeds and any(option.partition("=")[0] == "--seed" for option in args.options):
            raise ValueError("--seed is for one run and --seeds for several: say one of them")
        if options.profile and (unused := [name for name in ("seeds", "graph") if getattr(options, name)]):
            raise ValueError(f"--profile looks at one run without a graph: it takes no --{' and no --'.join(unused)}")
        if problem := device_problem(options.device):
            raise ValueError(problem)
        return _profile(args.name, config, options) if options.profile else _train(args.name, config, options)
    # OSError: folders that cannot be read or written. NotImplementedError: an estimator that cannot serve here.
    except (RunFolderError, ValueError, OSError, NotImplementedError) as error:
        print(f"gumtrace train: {error}", file=sys.stderr)
        return 2


def _train(name: str, config: Any, options: Options) -> int:
    out = options.out or Path("runs") / name / label(config)
    seeds = read_seeds(options.seeds) or [config.seed]
    results = train(
        find(name),
        config,
        out,
        seeds=seeds,
        device=options.device,
        data=options.data,
        compile=options.compile,
        graph=options.graph,
    )
    for seed, result in zip(seeds, results, strict=False):  # there are none in processes that only help
        if result["test"]:
            print(f"seed {seed}:", "  ".join(f"{metric} {value:.5g}" for metric, value in result["test"].items()))
        if "diverged" in result:
            print(f"gumtrace train: seed {seed} diverged {result['diverged']}", file=sys.stderr)
    if results:
        print(f"runs in {out}")
    return int(any("diverged" in result for result in results))


def _profile(name: str, config: Any, options: Options) -> int:
    from gumtrace_experiments.loop.profiling import profile

    if options.profile_updates < 1:
        raise ValueError(f"profile_updates must be at least 1, got {options.profile_updates}")
    settings = {"compile": options.compile, "trace": options.profile_trace}
    print(profile(find(name), config, options.data, options.device, options.profile_updates, **settings))
    return 0


def parse(name: str, argv: list[str], options: type = Options, verb: str = "train") -> tuple[Any, Any]:
    """The config and the options of a command line; --smoke changes the defaults, not what was asked for."""
    experiment = find(name)
    config = experiment.config_type()
    if "--smoke" in argv:
        config = experiment.smoke(config)
    parts = [("experiment", experiment.config_type), ("running", options)]  # the names head lists in the help
    command = dataclasses.make_dataclass("Command", parts, frozen=True)
    found = tyro.cli(
        tyro.conf.configure(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)(command),
        args=argv,
        prog=f"gumtrace {verb} {name}",
        default=command(config, options()),
    )
    return found.experiment, found.running


def read_seeds(text: str) -> list[int]:
    """
    >>> read_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        try:
            found = range(int(first), int(last or first) + 1)
        except ValueError:
            raise ValueError(f"seeds are numbers and ranges such as 0-9 or 0,3,5, got {text!r}") from None
        if not found:
            raise ValueError(f"{part} is no range: the last seed comes before the first")
        seeds += found
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"a seed appears twice in {text!r}")
    return seeds


def label(config: Any) -> str:
    """A folder name from what differs from the defaults, cut off where it is too long for one, with a digest then."""
    default = type(config)()
    parts = [config.estimator]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in ("seed", "estimator") and value != getattr(default, field.name):
            parts.append(f"{field.name}={value}")
    name = ",".join(parts)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]},...,{blake2b(name.encode(), digest_size=6).hexdigest()}"
