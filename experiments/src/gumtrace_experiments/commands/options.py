"""What the options of commands mean: the name of an experiment, the fields of its config, seeds, and folders."""

import argparse
import dataclasses
from hashlib import blake2b
from typing import Any

from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.registry import find, names, reference

LONGEST = 200  # letters of a folder's name; file systems take 255 bytes


def add_experiment(parser: argparse.ArgumentParser, more: str = "") -> None:
    what = f"experiment: {', '.join(names())}, or any class as module:Class{more}"
    parser.add_argument("experiment", type=experiment, metavar="NAME", help=what)


def experiment(text: str) -> type[Experiment]:
    """For argparse, whose errors name the argument."""
    try:
        return find(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse(kind: type[Experiment], argv: list[str], options: type, verb: str) -> tuple[Any, Any]:
    """The config and the options of a command line; --smoke changes the defaults, not what was asked for."""
    import tyro  # scripts that train without a command line do without it

    config = kind.config_type()
    if "--smoke" in argv:
        config = kind.smoke(config)
    parts = [("experiment", kind.config_type), ("running", options)]  # the names head lists in the help
    command = dataclasses.make_dataclass("Command", parts, frozen=True)
    found = tyro.cli(
        tyro.conf.configure(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)(command),
        args=argv,
        prog=f"gumtrace {verb} {reference(kind)}",
        default=command(config, options()),
    )
    return found.experiment, found.running


def set_threads(threads: int | None, smoke: bool) -> int | None:
    """As many threads as were asked for, by default one for small models, whose threads would wait for each other.
    Returns how many, or None where torch chooses."""
    import torch  # not for --help

    if threads is not None and threads < 1:
        raise ValueError(f"--threads must be at least 1, got {threads}")
    threads = 1 if threads is None and smoke else threads
    if threads is not None:
        torch.set_num_threads(threads)
    return threads


def read_seeds(text: str) -> list[int]:
    """
    >>> read_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        try:
            found = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise ValueError(f"seeds are numbers and ranges such as 0-9 or 0,3,5, got {text!r}") from None
        if not found:
            raise ValueError(f"{part} is not a range: its last seed comes before its first")
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
