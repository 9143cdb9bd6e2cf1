"""gumtrace: discrete latent structures that are the output of an algorithm run on exponential noise."""

from importlib import import_module
from typing import TYPE_CHECKING

from gumtrace import diagnostics, divergences, estimators, losses, structures
from gumtrace.kernels.backends import backends
from gumtrace.relaxations import relax
from gumtrace.structures import *  # noqa: F403 - its `__all__`, the one list of structures
from gumtrace.traces.trace import Trace

if TYPE_CHECKING:
    from gumtrace import plotting, steps

__version__ = "0.1.0"

__all__ = ["Trace", "backends", "diagnostics", "divergences", "estimators", "losses", "plotting", "relax", "steps"]
__all__ += structures.__all__


def __getattr__(name: str):
    """Imported when they are asked for: most programs draw nothing, and Pyro is an extra."""
    if name in ("plotting", "pyro", "steps"):
        return import_module(f"gumtrace.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With what is imported when it is asked for, but for Pyro: `help` imports all that is listed."""
    return sorted({*globals(), *__all__})
