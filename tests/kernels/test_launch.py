"""Launches of compiled kernels: Triton is asked once for arguments of the same kinds, and again for any others."""

import ast
import inspect
import textwrap
from types import SimpleNamespace

import pytest
import torch
import triton

from gumtrace.kernels.cuda import launch, noise, sampling
from gumtrace.kernels.cuda.launch import NO_HOOKS, Quick, power_of_2, quick


class Kernel:
    """As `triton.jit` makes one: a launch compiles and returns what it compiled."""

    arg_names = ("source", "sizes", "n", "MODE", "WIDTH")
    params = tuple(SimpleNamespace(is_constexpr=name.isupper()) for name in arg_names)

    def __init__(self):
        self.asked, self.launched = [], []

    def __getitem__(self, grid):
        def run(*args, **options):
            self.asked.append((grid, args, options))
            return Compiled(self, len(self.asked))

        return run


class Compiled:
    def __init__(self, kernel, number):
        self.kernel, self.number = kernel, number

    function, packed_metadata = "a function of the driver", "its warps and shared memory"

    def run(self, x, y, z, stream, function, packed_metadata, told, before, after, *args):
        assert (function, packed_metadata) == (self.function, self.packed_metadata)
        assert (told, before, after) == (None, None, None)
        self.kernel.launched.append((self.number, (x, y, z), args, stream))


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


def test_the_launcher_is_called_as_triton_calls_it():
    """Of a newer Triton: read how it launches, and `_launch` with it, before NEWEST is raised."""
    run = ast.parse(textwrap.dedent(inspect.getsource(triton.JITFunction.run)))
    calls = (node for node in ast.walk(run) if isinstance(node, ast.Call))
    (call,) = (node for node in calls if ast.unparse(node.func) == "kernel.run")
    given = [ast.unparse(x) for x in call.args]
    to = ["stream", "kernel.function", "kernel.packed_metadata"]
    assert given[:6] == ["grid_0", "grid_1", "grid_2", *to]
    assert given[6 + len(NO_HOOKS) :] == ["*bound_args.values()"]


def test_a_newer_triton_launches_by_itself(monkeypatch):
    monkeypatch.setattr(triton, "JITFunction", Kernel)
    kernel = Kernel()
    for version, launched in (
        ("3.3.0", True),
        ("3.9.1", True),
        ("3.10.0", False),
        ("4.0.0+git", False),
        ("3.10rc1", False),
        ("3.9rc1+cu130", True),
    ):
        monkeypatch.setattr(triton, "__version__", version)
        assert isinstance(quick(kernel), Quick) == launched


def test_powers_of_two():
    assert [power_of_2(n) for n in range(1, 2000)] == [triton.next_power_of_2(n) for n in range(1, 2000)]
