"""Launches that take less of the host's time than Triton's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
from triton.runtime import driver

from gumtrace.kernels.backends import version

NO_HOOKS = (None, None, None)  # what they would be told of a launch; before it; after it
NEWEST = (3, 9)  # version of Triton whose source calls launchers as here; those of a later one are called by Triton


def quick(kernel: Any) -> Any:
    """A kernel of `triton.jit`, launched as before: kernel[grid](*tensors_and_sizes, **constants_and_options).

    Triton binds, describes and compares all arguments and every global of a kernel at each launch. Here a launch whose
    arguments are of the same kinds as those of one before takes what was compiled for that, and goes to its launcher.
    Settings of Triton that change afterwards (debugging) and its hooks (instrumentation) do not reach it.
    """
    on_cuda = isinstance(kernel, triton.JITFunction) and torch.version.hip is None  # else interpreted, or other kinds
    known = version(triton) <= NEWEST
    return Quick(kernel) if on_cuda and known else kernel


class Quick:
    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.compiled: dict[tuple, tuple[Any, tuple]] = {}  # by kinds of arguments: the compiled kernel, its constants

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        active = driver.active
        device = active.get_current_device()
        kinds: list[Any] = [device]
        values: list[int | None] = []
        for x in args:
            if x is None:
                kinds.append(None)
                values.append(None)
            elif type(x) is int:
                kinds.append(kind_of(x))
                values.append(x)
            else:
                pointer = x.data_ptr()
                kinds.append(x.dtype)
                kinds.append(pointer % 16 == 0)
                values.append(pointer)  # the launcher need not ask the tensor, nor the driver, once more
        for name, value in options.items():
            kinds.append(name)
            kinds.append(getattr(value, "value", value))  # of a constexpr: comparing two of them is slow
        key = tuple(kinds)
        found = self.compiled.get(key)
        if found is not None:
            kernel, constants = found
            x, y, z = (*grid, 1, 1)[:3]
            to = (active.get_current_stream(device), kernel.function, kernel.packed_metadata)
            kernel.run(x, y, z, *to, *NO_HOOKS, *values, *constants)
            return
        if any(parameter.is_constexpr for parameter in self.kernel.params[: len(args)]):
            raise TypeError("constants of a kernel are passed by name: kinds say nothing of their values")
        kernel = self.kernel[grid](*args, **options)
        if kernel is not None:
            names = self.kernel.arg_names[len(args) :]
            self.compiled[key] = kernel, tuple(options[name] for name in names)


def kind_of(size: int) -> int:
    """What Triton tells apart: 1, multiples of 16, others, and those beyond 32 bits. Sizes are not negative."""
    return 0 if size == 1 else 1 + (size % 16 == 0) + 2 * (size >= 2**31)


def power_of_2(n: int) -> int:
    """The least one that is at least n."""
    return 1 << max(n - 1, 0).bit_length()
