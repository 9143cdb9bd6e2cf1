"""The way to the kernels: what is loaded when, what is compiled for which structure, and devices without kernels."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import TypingError

import gumtrace as gt
from gumtrace.kernels import backends, ops
from gumtrace.kernels.backends import backend, own_kernel
from gumtrace.kernels.cpu import formula, hooks, marginals, sampling, simd_math, subset_shift
from gumtrace.kernels.geometry import MatchingGeometry, SubsetGeometry, flatten_geometry, unflatten_geometry

LOADED = "import sys, gumtrace; print(sorted({'numba', 'triton', 'matplotlib', 'IPython'} & set(sys.modules)))"


def test_importing_the_package_loads_no_compiler():
    """Nor anything else that is slow: numba and triton are loaded with the first kernel."""
    environment = {**os.environ, "PYTHONPATH": str(Path(gt.__file__).parents[1])}
    command = [sys.executable, "-c", LOADED]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip() == "[]"


def test_the_page_on_performance_has_the_largest_items():
    pytest.importorskip("triton", reason="needs triton: it comes with CUDA builds of torch, or pip install triton")
    from gumtrace.kernels.cuda.ops import RANGES

    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    _, after = page.split("| | the largest item of the CUDA kernels |\n|---|---|\n")
    rows = [line.replace("`", "").split("|")[1:-1] for line in after.partition("\n\n")[0].splitlines()]
    shown = {name: reach.strip() for names, reach in rows for name in names.strip().split(", ")}
    reaches = [(names, reach.removeprefix("to ").partition(" (")[0]) for names, reach in RANGES.items()]
    assert shown == {name: reach for names, reach in reaches for name in names.split(" and ")}


def test_a_kernel_is_compiled_for_the_structure_it_is_called_with():
    gt.Subset(torch.zeros(2, 4), k=2).sample()
    compiled = {signature[2].instance_class for signature in sampling.sample.signatures}
    assert SubsetGeometry in compiled
    gt.Matching(torch.zeros(2, 3, 3)).sample()
    assert {signature[2].instance_class for signature in sampling.sample.signatures} == compiled | {MatchingGeometry}


def test_a_structure_without_an_algorithm_is_an_error_of_the_compiler():
    """Not the step of another structure."""

    @hooks.Hook
    def step(geometry):
        return 1

    needed = hooks.Hook(lambda geometry: 1, required=True)
    given = SubsetGeometry(4, 2, 2, 0, 2)
    assert formula.kernel(lambda geometry: step(geometry))(given) == 1
    with pytest.raises(TypingError):
        formula.kernel(lambda geometry: needed(geometry))(given)


def test_rounding_does_not_depend_on_which_kernel_is_compiled_first():
    """Numba lets a function inherit the options of its first caller: with `fastmath`, another exponential."""
    for function in (simd_math.exp64, simd_math.log64, simd_math.log_exponential_row, formula.log_prob, sampling.trace):
        assert function.targetoptions["fastmath"] is False
        assert function.targetoptions["forceinline"] is False
    assert marginals._weights.targetoptions["fastmath"]
    assert subset_shift._excess.targetoptions["fastmath"]


@pytest.mark.parametrize(
    "d",
    [
        gt.Subset(torch.zeros(5), k=2),
        gt.Permutation(torch.zeros(4)),
        gt.Matching(torch.zeros(3, 4)),
        gt.SpanningTree(torch.zeros(4, 4), components=2),
        gt.SpanningTree.from_edges(torch.zeros(3), torch.tensor([[0, 1, 2], [1, 2, 3]]), 4),
        gt.Arborescence(torch.zeros(4, 4), root=2),
        gt.BinaryTree(torch.zeros(4)),
    ],
    ids=lambda d: type(d).__name__,
)
def test_a_geometry_survives_an_operator(d):
    geometry = d._layout.geometry
    numbers, edges = flatten_geometry(geometry)
    assert all(isinstance(number, int) for number in numbers)
    again = unflatten_geometry(numbers, edges)
    assert type(again) is type(geometry)
    assert again[:6] == geometry[:6]


def test_every_operator_has_a_kernel_on_the_cpu():
    operators = [x for x in vars(ops).values() if isinstance(x, ops.Operator)]
    assert len(operators) >= 14
    for operator in operators:
        assert callable(getattr(backend("cpu"), operator.name))


def test_other_devices_are_served_by_the_cpu():
    assert backend("mps") is backend("cpu")
    assert own_kernel("subset_shift", "cpu") is not None
    assert own_kernel("subset_shift", "mps") is None
    assert own_kernel("no such kernel", "cpu") is None


@pytest.mark.parametrize("version", [None, "3.2.0", "2.3.1+git"])
def test_cuda_without_a_triton_that_serves_is_as_other_devices(version, monkeypatch):
    """Operators copy tensors to the CPU; the CPU's kernels of relaxations do not, so that torch's formulas serve."""
    if version is None:
        monkeypatch.setattr(backends, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(pytest.importorskip("triton"), "__version__", version)
    backends.backend.cache_clear()
    try:
        assert backend("cuda") is backend("cpu")
        kernels = ("subset_shift", "subset_weights", "subset_probs", "tree_marginals", "sinkhorn")
        assert [own_kernel(name, "cuda") for name in kernels] == [None] * 5
        assert None not in [own_kernel(name, "cpu") for name in kernels]
        why = f"triton {version} is older than 3.3" if version else "triton is not installed"
        assert f"tensors are copied there and back: {why}" in backends._cuda()
    finally:
        backends.backend.cache_clear()


def test_racing_keys_of_a_trace():
    d = gt.Subset(torch.zeros(4), k=2)
    trace = d.trace(torch.tensor([0.0, 3.0, 1.0, 2.0]))
    first, second = backend("cpu").racing_keys(trace.layout.geometry, trace.choices, trace.links)
    assert first.tolist() == [0, 1, 2, 3]
    assert second.tolist() == [0, 2, 3]
    assert first.dtype == np.int32


def test_a_copy_to_the_cpu_inside_a_cuda_graph_is_an_error_that_says_so(monkeypatch):
    from types import SimpleNamespace

    from gumtrace.kernels.cpu import ops as cpu

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"no CUDA kernel .* a CUDA graph cannot record"):
        cpu._array(SimpleNamespace(is_cuda=True))
    assert cpu._array(torch.zeros(2)).tolist() == [0.0, 0.0]  # of a tensor on the CPU, a graph knows nothing
