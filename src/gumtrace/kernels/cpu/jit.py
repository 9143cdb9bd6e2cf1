"""The compiler's settings, and a cache of compiled code that can be trusted.

Numba keeps compiled functions on disk until their own file changes, although they contain code of the functions they
call: after a change elsewhere, an upgrade of the package for instance, it would run a mixture of old and new. Here
compiled code is valid only for exactly the sources of all kernels together.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from numba import njit

FILES = (path for path in Path(__file__).parent.glob("*.py") if path.name != "threads.py")  # is not compiled
SOURCES = [Path(__file__).parents[1] / "geometry.py", *sorted(FILES)]
STAMP = hashlib.sha256(b"\0".join(path.read_bytes() for path in SOURCES)).hexdigest()


# Divisions and logarithms follow IEEE rules and raise nothing. The last two are set because a function inherits them
# from its first caller: results would depend on the order in which kernels are compiled.
OPTIONS: Any = {"nogil": True, "error_model": "numpy", "fastmath": False, "forceinline": False}


def jit(function: Callable, **options) -> Callable:
    """Compile without the GIL."""
    options = {**OPTIONS, **options}
    try:
        compiled = njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep it: a read-only installation without a home compiles in every process
        return njit(**options)(function)
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None and hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = STAMP
    return compiled


# For functions of many arrays that are called for every item: a call would put a description of each on the stack.
inlined = partial(jit, forceinline=True)
