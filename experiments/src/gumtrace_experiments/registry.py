"""Experiments by name."""

from importlib import import_module
from textwrap import shorten
from typing import Any

from gumtrace_experiments.experiment import Experiment

_WHERE = {
    "graph-layout": ("graph_layout", "GraphLayout"),
    "listops": ("listops", "ListOpsExperiment"),
    "treebank": ("treebank", "TreebankExperiment"),
}
NAMES = tuple(_WHERE)


def find(name: str) -> type[Experiment]:
    """Its module is imported when asked for, and not before."""
    if name not in _WHERE:
        raise ValueError(f"no experiment {name!r}; there are {', '.join(NAMES)}")
    folder, kind = _WHERE[name]
    return getattr(import_module(f"gumtrace_experiments.{folder}.experiment"), kind)


def completed(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """A config that was written down, with the defaults of fields that are newer."""
    return {**(find(name).config_type().to_dict() if name in NAMES else {}), **config}


def setting_problem(name: str, config: dict[str, Any]) -> str | None:
    """Which setting that was written down is of another type than this version has; None if none is.

    >>> setting_problem("listops", {"hidden": "60", "lr": 1})
    "hidden should be int, and is '60'"
    """
    known = find(name).config_type().to_dict() if name in NAMES else {}
    for setting in filter(known.__contains__, config):
        value, usual = config[setting], type(known[setting])
        if type(value) is not usual and not (usual is float and type(value) is int):
            return f"{setting} should be {usual.__name__}, and is {shorten(repr(value), 40, placeholder=' ...')}"
    return None
