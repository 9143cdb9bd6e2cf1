"""Launches that take less of the host's time than Triton's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime import driver


def quick(kernel: Any) -> Any:
    """A kernel of `triton.jit`, launched as before: kernel[grid](*tensors_and_sizes, **constants_and_options).

    Triton binds, describes and compares all arguments and every global of a kernel at each launch. Here a launch whose
    arguments are of the same kinds as those of one before takes what was compiled for that. Settings of Triton
    that change afterwards (debugging, instrumentation) do not reach it.
    """
    return Quick(kernel) if _on_cuda(kernel) else kernel


def _on_cuda(kernel: Any) -> bool:
    return isinstance(kernel, triton.JITFunction) and torch.version.hip is None  # else interpreted, or other kinds


class Quick:
    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.compiled: dict[tuple, tuple[Any, tuple]] = {}  # by kinds of arguments: its launch, and its constants

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        active = driver.active
        device = active.get_current_device()
        kinds: list[Any] = [device, *options]
        values: list[int | None] = []
        bits = 0  # of all pointers
        for x in args:
            if x is None:
                kinds.append(None)
                values.append(None)
            elif type(x) is int:  # what Triton tells apart: 1, multiples of 16, others, and those beyond 32 bits
                kinds.append((0 if x == 1 else 1 if x & 15 else 2) if x < 2**31 else 3 if x & 15 else 4)
                values.append(x)
            else:
                pointer = x.data_ptr()
                kinds.append(x.dtype)
                values.append(pointer)  # the launcher need not ask the tensor, nor the driver, once more
                bits |= pointer
        for value in options.values():
            kinds.append(getattr(value, "value", value))  # of a constexpr: comparing two of them is slow
        if bits & 15:  # rarely: which of the tensors are aligned
            kinds.append(tuple([type(value) is int and value & 15 == 0 for value in values]))
        key = tuple(kinds)
        found = self.compiled.get(key)
        if found is not None:
            launch, constants = found
            launch(grid, active.get_current_stream(device), values, constants)
            return
        if any(parameter.is_constexpr for parameter in self.kernel.params[: len(args)]):
            raise TypeError("constants of a kernel are passed by name: kinds say nothing of their values")
        kernel = self.kernel[grid](*args, **options)
        if kernel is not None:
            names = self.kernel.arg_names[len(args) :]
            self.compiled[key] = launcher(kernel), tuple(options[name] for name in names)


def launcher(kernel: Any) -> Callable[[tuple[int, ...], int, list, tuple], None]:
    """(grid, stream, values, constants) -> None: launches what Triton compiled.

    As kernel[grid](*values, *constants, stream=stream) does, which makes a function and a description of the launch for
    hooks each time; without hooks nobody reads it. Where a version of Triton has no such parts, it is done that way.
    """

    def launch(grid: tuple[int, ...], stream: int, values: list, constants: tuple) -> None:
        x, y, z = (*grid, 1, 1)[:3]
        kernel[x, y, z](*values, *constants, stream=stream)

    runtime = getattr(getattr(triton, "knobs", None), "runtime", None)
    if any(not hasattr(kernel, name) for name in ("run", "function", "packed_metadata")) or not (
        hasattr(runtime, "launch_enter_hook") and hasattr(runtime, "launch_exit_hook")
    ):
        return launch
    run, function, packed = kernel.run, kernel.function, kernel.packed_metadata

    def launch_at_once(grid: tuple[int, ...], stream: int, values: list, constants: tuple) -> None:
        if hooked(runtime.launch_enter_hook) or hooked(runtime.launch_exit_hook):
            return launch(grid, stream, values, constants)
        x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        run(x, y, z, stream, function, packed, None, None, None, *values, *constants)

    return launch_at_once


def hooked(hook: Any) -> bool:
    """Whether it does anything: a chain of hooks may be empty."""
    return hook is not None and getattr(hook, "calls", True) != []


class Part:
    """Some of a tensor's memory, as a launch takes it: a view of torch would take the host as long as a tensor."""

    __slots__ = ("dtype", "pointer", "whole")

    def __init__(self, whole: Tensor, pointer: int, dtype: torch.dtype):
        self.whole, self.pointer, self.dtype = whole, pointer, dtype  # the memory is there as long as the tensor is

    def data_ptr(self) -> int:
        return self.pointer


@triton.jit
def _nothing():
    pass


COMPILED = _on_cuda(_nothing)


def scratch(device: torch.device, *parts: tuple[torch.dtype, int]) -> list[Any]:
    """Memory for a launch, in parts of so many numbers each: one allocation. Tensors where kernels are interpreted."""
    if not COMPILED:
        return [torch.empty(count, dtype=dtype, device=device) for dtype, count in parts]
    starts, end = [], 0
    for dtype, count in parts:
        starts.append(-(-end // 16) * 16)  # Triton compiles anew for what does not start at a multiple of 16
        end = starts[-1] + count * dtype.itemsize
    whole = torch.empty(end, dtype=torch.int8, device=device)
    first = whole.data_ptr()
    return [Part(whole, first + start, dtype) for start, (dtype, _) in zip(starts, parts, strict=True)]


def power_of_2(n: int) -> int:
    """The least one that is at least n. Triton's own function, `cdiv` too, takes ten times as long on the host."""
    return 1 << max(n - 1, 0).bit_length()
