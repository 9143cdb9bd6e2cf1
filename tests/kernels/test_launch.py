"""Launches of compiled kernels: Triton is asked once for arguments of the same kinds, and again for any others."""

import inspect
from types import SimpleNamespace

import pytest
import torch
import triton

from gumtrace.kernels.cuda import launch, noise, sampling
from gumtrace.kernels.cuda.launch import Quick, power_of_2, quick


class Kernel:
    """As `triton.jit` makes one: a launch compiles and returns what it compiled."""

    arg_names = ("source", "sizes", "n", "MODE", "WIDTH")
    params = tuple(SimpleNamespace(is_constexpr=name.isupper()) for name in arg_names)

    def __init__(self, compiled=None):
        self.asked, self.launched, self.compiled = [], [], compiled or Compiled

    def __getitem__(self, grid):
        def run(*args, **options):
            self.asked.append((grid, args, options))
            return self.compiled(self, len(self.asked))

        return run


class Compiled:
    def __init__(self, kernel, number):
        self.kernel, self.number = kernel, number

    def __getitem__(self, grid):
        return lambda *args, stream: self.kernel.launched.append((self.number, grid, args, stream))


@pytest.fixture
def device(monkeypatch):
    active = SimpleNamespace(device=0, get_current_device=lambda: active.device, get_current_stream=lambda d: 70 + d)
    monkeypatch.setattr(launch, "driver", SimpleNamespace(active=active))
    return active


X = torch.zeros(64)
CONSTANTS = {"WIDTH": 64, "MODE": triton.language.constexpr(3), "num_warps": 1}


@pytest.mark.usefixtures("device")
def test_the_second_launch_goes_past_triton():
    kernel = Kernel()
    launched = Quick(kernel)
    other = torch.ones(64)
    launched[(5,)](X, None, 17, **CONSTANTS)
    assert kernel.launched == []
    launched[(6, 2)](other, None, 33, **CONSTANTS)
    assert kernel.asked == [((5,), (X, None, 17), CONSTANTS)]
    ((number, grid, args, stream),) = kernel.launched
    assert (number, grid, stream) == (1, (6, 2, 1), 70)
    assert args == (other.data_ptr(), None, 33, CONSTANTS["MODE"], 64)  # in the order of the signature


@pytest.mark.parametrize(
    ("args", "constants"),
    [
        ((X.double(), None, 17), {}),
        ((X[1:], None, 17), {}),  # not aligned
        ((X, X[1:], 17), {}),
        ((X, X, 17), {}),
        ((X, None, 1), {}),
        ((X, None, 32), {}),
        ((X, None, 2**31 + 1), {}),
        ((X, None, 17), {"WIDTH": 32}),
        ((X, None, 17), {"MODE": triton.language.constexpr(4)}),
        ((X, None, 17), {"num_warps": 2}),
    ],
)
@pytest.mark.usefixtures("device")
def test_other_kinds_are_compiled(args, constants):
    kernel = Kernel()
    launched = Quick(kernel)
    launched[(5,)](X, None, 17, **CONSTANTS)
    for _ in range(2):
        launched[(5,)](*args, **{**CONSTANTS, **constants})
    launched[(5,)](X, None, 17, **CONSTANTS)
    assert len(kernel.asked) == 2
    assert [number for number, *_ in kernel.launched] == [2, 1]


@pytest.mark.usefixtures("device")
def test_constants_have_names():
    with pytest.raises(TypeError, match="passed by name"):
        Quick(Kernel())[(5,)](X, None, 17, 3, WIDTH=64)


class Loaded(Compiled):
    """As Triton 3.4 and newer have it."""

    function, packed_metadata = "function", "packed"

    def run(self, *args):
        self.kernel.launched.append(args)


class Chain:
    """As Triton 3.6 keeps its hooks."""

    def __init__(self, *calls):
        self.calls = list(calls)


@pytest.mark.parametrize(("enter", "exit"), [(None, None), (Chain(), Chain())])
@pytest.mark.usefixtures("device")
def test_without_hooks_the_launcher_is_called_at_once(enter, exit, monkeypatch):
    runtime = SimpleNamespace(launch_enter_hook=enter, launch_exit_hook=exit)
    monkeypatch.setattr(triton, "knobs", SimpleNamespace(runtime=runtime), raising=False)
    kernel = Kernel(Loaded)
    launched = Quick(kernel)
    for grid in ((5,), (6, 2), (7, 3, 4)):
        launched[grid](X, None, 17, **CONSTANTS)
    values = (70, "function", "packed", None, None, None, X.data_ptr(), None, 17, CONSTANTS["MODE"], 64)
    assert kernel.launched == [(6, 2, 1, *values), (7, 3, 4, *values)]
    for runtime.launch_enter_hook, runtime.launch_exit_hook in ((Chain(print), exit), (enter, print)):
        launched[(8,)](X, None, 17, **CONSTANTS)  # Triton calls them
    assert [grid for _, grid, *_ in kernel.launched[2:]] == [(8, 1, 1), (8, 1, 1)]


@pytest.mark.usefixtures("device")
def test_versions_without_settings_of_hooks(monkeypatch):
    monkeypatch.setattr(triton, "knobs", None, raising=False)
    kernel = Kernel(Loaded)
    launched = Quick(kernel)
    for _ in range(2):
        launched[(5,)](X, None, 17, **CONSTANTS)
    ((_, grid, *_),) = kernel.launched
    assert grid == (5, 1, 1)


@pytest.mark.skipif(not hasattr(triton, "knobs"), reason="Triton 3.3 has no settings of hooks")
def test_the_launcher_takes_what_it_is_given():
    """Arguments and their order, in the version that is installed: Triton's own call has the same."""
    source = " ".join(inspect.getsource(triton.compiler.CompiledKernel.__getitem__).split())
    assert (
        "self.run(grid[0], grid[1], grid[2], stream, self.function, self.packed_metadata, launch_metadata, "
        "knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook, *args)"
    ) in source


def test_devices_have_kernels_of_their_own(device):
    kernel = Kernel()
    launched = Quick(kernel)
    for device.device in (0, 1, 1):
        launched[(5,)](X, None, 17, **CONSTANTS)
    assert len(kernel.asked) == 2
    assert [(number, stream) for number, *_, stream in kernel.launched] == [(2, 71)]


def test_which_kernels_are_launched_so():
    """Compiled ones alone: the interpreter has nothing to compile."""
    interpreted = not isinstance(noise.philox, triton.JITFunction)
    assert isinstance(sampling._perturb, Quick) != interpreted
    plain = object()
    assert quick(plain) is plain


def test_parts_of_one_allocation(monkeypatch):
    taken, real = [], torch.empty

    def empty(*size, **options):
        taken.append(real(*size, **options))
        return taken[-1]

    monkeypatch.setattr(launch, "COMPILED", True)
    monkeypatch.setattr(torch, "empty", empty)
    kinds = ((torch.int32, 5), (torch.float64, 3), (torch.int8, 0), (torch.int16, 17))
    parts = launch.scratch(torch.device("cpu"), *kinds)
    (whole,) = taken
    ends = [part.data_ptr() + count * dtype.itemsize for part, (dtype, count) in zip(parts, kinds, strict=True)]
    starts = [part.data_ptr() for part in parts]
    assert all((start - whole.data_ptr()) % 16 == 0 for start in starts)
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert ends[-1] <= whole.data_ptr() + whole.nbytes
    assert [part.dtype for part in parts] == [dtype for dtype, _ in kinds]
    monkeypatch.setattr(launch, "COMPILED", False)
    assert [(x.dtype, x.numel()) for x in launch.scratch(torch.device("cpu"), *kinds)] == list(kinds)


@pytest.mark.usefixtures("device")
def test_launches_take_parts():
    kernel = Kernel()
    launched = Quick(kernel)
    launched[(5,)](X, None, 17, **CONSTANTS)
    launched[(5,)](launch.Part(X, X.data_ptr() + 32, X.dtype), None, 17, **CONSTANTS)
    assert len(kernel.asked) == 1
    assert kernel.launched[0][2][0] == X.data_ptr() + 32


def test_powers_of_two():
    assert [power_of_2(n) for n in range(1, 2000)] == [triton.next_power_of_2(n) for n in range(1, 2000)]
