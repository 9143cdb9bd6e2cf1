"""The paper's experiments, and the harness that runs them: `find` one and `train` it, or use the `gumtrace` command."""

from gumtrace.experiments.config import Config
from gumtrace.experiments.evaluation import evaluate, restore
from gumtrace.experiments.experiment import Experiment
from gumtrace.experiments.registry import NAMES, find
from gumtrace.experiments.training import train

__all__ = ["NAMES", "Config", "Experiment", "evaluate", "find", "restore", "train"]
