"""The compiler's settings. `@kernel` is for functions that Python calls, `@jit` for the parts that they are made of.

Numba compiles every function to machine code of its own, and once more as a part of each function that calls it; most
of that is never run. A part is typed and lowered once, linked into kernels, and optimised there only, which more than
halves the time to the first result.
"""

import ctypes
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite.binding import Linkage
from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock

from gumtrace.kernels.cpu.cache import KernelCache

# Divisions and logarithms follow IEEE rules and raise nothing. The last two are set because a function inherits them
# from its first caller: results would depend on the order in which kernels are compiled.
OPTIONS: Any = {"nogil": True, "error_model": "numpy", "fastmath": False, "forceinline": False}

ANY_ORDER = {"reassoc", "nsz", "contract"}  # fastmath for sums that may be added in any order, so in SIMD


# Where a part would have its entry from Python. It has none: this raises that the object is not callable.
NO_ENTRY = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p).value


class _NoEnvironment:
    """A code generator for code that is not loaded, and so has no environment to set."""

    def __init__(self, codegen):
        self._codegen = codegen

    def __getattr__(self, name: str):
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        pass


class _PartLibrary(JITCodeLibrary):
    """Code of a part alone: linked into kernels together with what it calls, neither optimised nor loaded by itself."""

    @property
    def codegen(self) -> Any:
        return _NoEnvironment(self._codegen)

    def _optimize_functions(self, ll_module) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._raise_if_finalized()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"  # may be linked several times, and is left out where it was inlined
        self._finalize_dynamic_globals()
        self._shared_module, self._finalized = self._final_module, True

    def get_pointer_to_function(self, name: str) -> int | None:
        self._ensure_finalized()
        return NO_ENTRY


class _KernelLibrary(JITCodeLibrary):
    """Code of a kernel, with all parts that it is made of."""

    def add_linking_library(self, library) -> None:
        if library not in self._linking_libraries:
            super().add_linking_library(library)
            for each in library._linking_libraries if isinstance(library, _PartLibrary) else ():
                self.add_linking_library(each)


def _compiler(library_class: type[JITCodeLibrary]) -> type[Compiler]:
    class _Compiler(Compiler):
        def define_pipelines(self):
            if self.state.library is None:
                self.state.library = library_class(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
                self.state.library.enable_object_caching()  # as Numba does
            return super().define_pipelines()

    return _Compiler


PART: Any = {**OPTIONS, "pipeline_class": _compiler(_PartLibrary), "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def jit(function: Callable, **options) -> Callable:
    """A part of kernels, called by compiled code only."""
    return njit(**{**PART, **options})(function)


# For functions of many arrays that are called for every item: a call would put a description of each on the stack.
inlined = partial(jit, forceinline=True)


def kernel(function: Callable, **options) -> Callable:
    """A function that Python calls, without the GIL. Compiled on the first call with arguments of new types, or loaded
    where that was done before."""
    settings: Any = {**OPTIONS, "pipeline_class": _compiler(_KernelLibrary), "no_cfunc_wrapper": True, **options}
    dispatcher: Any = njit(**settings)(function)
    if dispatcher is function:
        raise RuntimeError("gumtrace's kernels cannot run uncompiled: unset NUMBA_DISABLE_JIT")
    dispatcher._cache = cache = KernelCache(function)
    compile_or_load = dispatcher.compile

    def compile_once(signature):
        with global_compiler_lock:  # of threads
            collecting = gc.isenabled()
            gc.disable()  # the compiler makes millions of objects, nearly all of which it keeps
            try:
                return compile_or_load(signature)
            finally:
                cache.release()
                if collecting:
                    gc.enable()

    dispatcher.compile = compile_once
    return dispatcher
