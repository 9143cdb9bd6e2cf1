"""Settings as they are written down, compared with those that an experiment has now."""

from collections.abc import Mapping
from textwrap import shorten
from typing import Any


def completed(defaults: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config that was written down, with the defaults of fields that are newer.

    >>> completed({"lr": 0.1, "clip": 0.0}, {"lr": 0.2})
    {'lr': 0.2, 'clip': 0.0}
    """
    return {**defaults, **config}


def setting_problem(defaults: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Which setting that was written down is of another type than its default; None if none is.

    >>> setting_problem({"hidden": 60, "lr": 0.1}, {"hidden": "60", "lr": 1})
    "hidden must be int, got '60'"
    """
    for setting in filter(defaults.__contains__, config):
        value, usual = config[setting], type(defaults[setting])
        if type(value) is not usual and not (usual is float and type(value) is int):
            return f"{setting} must be {usual.__name__}, got {shorten(repr(value), 40, placeholder=' ...')}"
    return None


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The settings in which two configs differ, with the values of the first.

    >>> differences({"lr": 0.2, "clip": 0.0}, {"lr": 0.1, "clip": 0.0})
    ['lr 0.2']
    """
    names = sorted(theirs.keys() | ours.keys())
    return [f"{name} {theirs.get(name)!r}" for name in names if theirs.get(name) != ours.get(name)]
