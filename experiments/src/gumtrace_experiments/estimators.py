"""The estimator of a config, and what a sweep tries of its settings."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from gumtrace.estimators import Estimator
from gumtrace_experiments.config import Config

C = TypeVar("C", bound=Config)
Make = Callable[[], nn.Module]


def build_estimator(config: Config, critic: Make | None = None, surrogate: Make | None = None) -> Estimator:
    """The one the config names. `critic` and `surrogate` make the experiment's own, for those that need one.

    >>> build_estimator(Config(estimator="GumbelRao", draws=2))
    GumbelRao(samples=1, temperature=1.0, kind=None, draws=2)
    """
    cls = config.estimator_type
    if critic is None and "critic" in cls.settings():
        raise ValueError(f"{config.estimator} needs a critic, which this experiment does not provide")
    modules = {name: make for name, make in (("critic", critic), ("surrogate", surrogate)) if make is not None}
    settings = {**vars(config), "samples": config.k, "leave_one_out": config.k > 1}  # one sample is the config's choice
    return cls.from_settings(settings, **modules)


def suggest_estimator(
    config: C,
    trial: Any,
    *,
    samples: Sequence[int] = (2, 4, 8, 16),
    estimator_lr: tuple[float, float] = (1e-5, 1e-3),
) -> C:
    """The config with the setting that matters most to its estimator asked from `trial`: the learning rate of a critic,
    the temperature of a relaxation, the step of a difference, the number of samples of the others."""
    settings = config.estimator_type.settings()
    if "critic" in settings:
        return config.replace(estimator_lr=trial.suggest_float("estimator_lr", *estimator_lr, log=True))
    if "temperature" in settings:
        return config.replace(temperature=trial.suggest_float("temperature", 0.1, 10.0, log=True))
    if "step" in settings:
        return config.replace(step=trial.suggest_float("step", 0.01, 10.0, log=True))
    return config.replace(samples=trial.suggest_categorical("samples", list(samples)))
