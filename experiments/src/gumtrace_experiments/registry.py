"""Experiments by name: those of this distribution, those that others add by an entry point, and any class that is named
as module:Class."""

import re
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isabstract
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

from gumtrace_experiments.experiment import Experiment

GROUP = "gumtrace.experiments"  # of entry points, each the name of an experiment and its class
_OWN = {
    "graph-layout": "gumtrace_experiments.graph_layout.experiment:GraphLayout",
    "kset-autoencoder": "gumtrace_experiments.kset.autoencoder:Autoencoder",
    "kset-features": "gumtrace_experiments.kset.features:Features",
    "kset-neighbours": "gumtrace_experiments.kset.neighbours:Neighbours",
    "listops": "gumtrace_experiments.listops.experiment:ListOpsExperiment",
    "l2x": "gumtrace_experiments.l2x.experiment:L2XExperiment",
    "parentheses-insertion": "gumtrace_experiments.parentheses.insertion:InsertionExperiment",
    "parentheses-tree": "gumtrace_experiments.parentheses.tree:TreeExperiment",
    "treebank": "gumtrace_experiments.treebank.experiment:TreebankExperiment",
}
_REFERENCE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")
_REQUIRED = ("name", "selection_metric")  # attributes of a class
_registered: dict[str, type[Experiment]] = {}

E = TypeVar("E", bound=Experiment)


def names() -> tuple[str, ...]:
    """Names of the experiments that `find` takes by name. None is imported."""
    return tuple(dict.fromkeys([*_installed(), *_registered]))


def find(reference: str) -> type[Experiment]:
    """The class of a name such as listops, or of module:Class. Its module is imported when asked for."""
    if is_reference(reference):
        return register(_checked(_load(reference), reference))
    if reference in _registered:
        return _registered[reference]
    if reference not in (installed := _installed()):
        known = ", ".join(names())
        raise ValueError(f"unknown experiment {reference!r}: choose from {known}, or name a class as module:Class")
    experiment = _checked(_load(installed[reference]), installed[reference])
    if experiment.name != reference:
        raise ValueError(f"{installed[reference]} is installed as {reference!r}, but its name is {experiment.name!r}")
    return experiment


def known(name: str) -> type[Experiment] | None:
    """The class of a name that was found in a file; None if it is not installed here, nor was given as module:Class."""
    return find(name) if name in names() else None


def register(experiment: type[E]) -> type[E]:
    """Let a class be found by its name in this process. Two classes cannot have one name.

    A class that is given as module:Class is registered by that.
    """
    where = source(experiment)
    name = _checked(experiment, where).name
    other = find(name) if name in names() else experiment
    if other is not experiment:
        raise ValueError(f"{where} has the name of another experiment: {name!r} is {source(other)}")
    if name not in _installed():
        _registered[name] = experiment
    return experiment


def is_reference(text: str) -> bool:
    """
    >>> is_reference("my.module:MyExperiment"), is_reference("listops"), is_reference("runs/a:b")
    (True, False, False)
    """
    return _REFERENCE.fullmatch(text) is not None


def source(experiment: type[Experiment]) -> str:
    """Where a class is defined, as module:Class."""
    return f"{experiment.__module__}:{experiment.__qualname__}"


def reference(experiment: type[Experiment]) -> str:
    """What `find` takes in another process: the name of an installed experiment, or module:Class."""
    return experiment.name if experiment.name in _installed() else source(experiment)


@cache  # to read them takes a while, and every record that is loaded asks
def _installed() -> dict[str, str]:
    """The classes of names, as module:Class. None can replace one of this distribution."""
    return {**{entry.name: entry.value for entry in entry_points(group=GROUP)}, **_OWN}


def _load(where: str) -> Any:
    """What module:Class names. The working folder is searched, as `python -m` does and a console script does not."""
    module, _, path = where.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module)
    except Exception as error:  # whatever somebody's module raises
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{where}: module {error.name!r} not found") from None
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"{module} cannot be imported: {what}{_line_of(error, module)}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"{where}: {module} has no {name}")
        found = getattr(found, name)
    return found


def _line_of(error: Exception, module: str) -> str:
    """Where the import of a module failed: the last line of a file in its folder, not in a library that this calls."""
    calls = [(Path(frame.f_code.co_filename), line, frame.f_globals) for frame, line in walk_tb(error.__traceback__)]
    folders = [file.parent for file, _, its in calls if f"{module}.".startswith(f"{its.get('__name__')}.")]
    lines = [f" ({file.name}, line {line})" for file, line, _ in calls if file.parent in folders[:1]]
    return lines[-1] if lines else ""  # a syntax error in the module itself: its text says where


def _checked(experiment: Any, where: str) -> type[Experiment]:
    if not (isinstance(experiment, type) and issubclass(experiment, Experiment)):
        raise ValueError(f"{where} is not a subclass of gumtrace_experiments.Experiment")
    missing = [name for name in _REQUIRED if not isinstance(getattr(experiment, name, None), str)]
    missing += sorted(experiment.__abstractmethods__) if isabstract(experiment) else []
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    if not re.fullmatch(r"[\w.-]+", experiment.name):  # it names folders
        raise ValueError(f"{where}: a name may contain letters, digits, '.', '_' and '-', got {experiment.name!r}")
    return experiment
