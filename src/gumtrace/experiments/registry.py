"""Experiments by name."""

from importlib import import_module

from gumtrace.experiments.experiment import Experiment

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
    return getattr(import_module(f"gumtrace.experiments.{folder}.experiment"), kind)
