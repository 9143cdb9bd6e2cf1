"""Experiments with gumtrace: those of the paper and anybody's own. `find` one and `train` it, or use the `gumtrace`
command, which this distribution gives `train`, `evaluate`, `sweep`, `table` and `plot`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gumtrace_experiments.config import Config, build_estimator
    from gumtrace_experiments.experiment import Experiment
    from gumtrace_experiments.loop.evaluation import evaluate, restore
    from gumtrace_experiments.loop.training import train
    from gumtrace_experiments.registry import find, names, register

__all__ = ["Config", "Experiment", "build_estimator", "evaluate", "find", "names", "register", "restore", "train"]
__version__ = "0.1.0"

_MODULES = {
    "Config": "config",
    "Experiment": "experiment",
    "build_estimator": "config",
    "evaluate": "loop.evaluation",
    "find": "registry",
    "names": "registry",
    "register": "registry",
    "restore": "loop.evaluation",
    "train": "loop.training",
}


def __getattr__(name: str) -> Any:
    """Imported when first used: `gumtrace --help` reads the list of commands, and should not import a training loop."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
