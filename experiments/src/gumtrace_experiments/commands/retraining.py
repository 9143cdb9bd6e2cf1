"""The command line that trains a config."""

import dataclasses
import shlex
from typing import Any

from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.registry import reference

SEEDS = "0-9"


def command(experiment: type[Experiment], config: Any, options: Any, seeds: str = SEEDS) -> str:
    """`gumtrace train`, with several seeds, of exactly this config, on the device and the data of the options.

    What is not given is the default: --smoke would change these, and is written out.
    """
    defaults = type(config)()
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name != "seed"}
    words = ["gumtrace", "train", reference(experiment)]
    for setting, value in settings.items():
        default = None if setting == "estimator" else getattr(defaults, setting)  # always given
        words += _words(setting, value, default)
    for option in ("device", "data", "compile", "graph"):
        words += _words(option, getattr(options, option), getattr(type(options)(), option))
    return shlex.join([*words, "--seeds", seeds])


def _words(name: str, value: Any, default: Any) -> list[str]:
    """As tyro reads them.

    >>> _words("decoder_lr", 0.1 + 0.2, 0.0), _words("graph", True, False), _words("lr", 0.1, 0.1)
    (['--decoder-lr', '0.30000000000000004'], ['--graph'], [])
    """
    flag = name.replace("_", "-")
    if value == default:
        return []
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", *(map(str, value) if isinstance(value, tuple | list) else [str(value)])]
