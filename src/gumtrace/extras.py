"""Packages that only some parts of the library need."""

from importlib import import_module
from typing import Any


class MissingExtra(ImportError):
    """A package of an extra is not installed; the message says how to install it."""


def require(module: str, extra: str, distribution: str | None = None) -> Any:
    """Import a module of one of the extras.

    Args:
        distribution: what pip installs, where it has another name than the package that is imported.

    >>> require("math", "plot").pi
    3.141592653589793
    >>> require("no_such_package.part", "plot")
    Traceback (most recent call last):
    ...
    gumtrace.extras.MissingExtra: this needs no_such_package: pip install no_such_package, or ".[plot]" in a checkout
    """
    package = module.partition(".")[0]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        advice = f'pip install {distribution or package}, or ".[{extra}]" in a checkout'
        raise MissingExtra(f"this needs {package}: {advice}", name=package) from None
    return import_module(module)
