"""The harness with models that are compiled, on the CPU."""

import shutil

import pytest
import torch
import torch._dynamo.utils

from gumtrace_experiments import find, train
from gumtrace_experiments.store.folder import read_metrics

GraphLayout = find("graph-layout")
TINY = GraphLayout.config_type(
    frames=4,
    nodes=4,
    hidden=8,
    calls=16,
    train_size=40,
    test_size=20,
    iterations=8,
    evaluate_every=4,
    lr=2e-3,
)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++: torch.compile writes C++ for the CPU")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, in its compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # likewise
def test_a_compiled_model_trains_as_it_would_have(tmp_path):
    """But for sums in another order. Where a gradient should be 0 (a bias before a batch norm, where ELU is linear),
    Adam takes a whole step to one side or the other: the ELBO hardly sees it, the KL divergence by 2·10⁻³ of it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    rows = {}
    for compiled in (False, True):
        folder = tmp_path / str(compiled)
        train(GraphLayout, TINY, folder, data=tmp_path / "data", compile=compiled, progress=False)
        rows[compiled] = read_metrics(folder / "seed-0" / "metrics.jsonl")
        assert bool(torch._dynamo.utils.counters["stats"]["unique_graphs"]) == compiled
    torch._dynamo.reset()
    assert len(rows[True]) == len(rows[False])
    for ours, theirs in zip(rows[True], rows[False], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            close = 1e-3 if name == "elbo" else 2e-2
            expected = theirs[name] if isinstance(value, str) else pytest.approx(theirs[name], rel=close)
            assert value == expected, f"{name} of {ours}, {theirs}"
    first, last = [row["elbo"] for row in rows[True] if row["split"] == "valid"]
    assert last > first + 0.05 * abs(first)  # it learns: far more than what counts as alike


def test_evaluations_that_overlap_are_all_of_the_uncompiled_model(tmp_path):
    """Whether a call is compiled is the whole process's: the first one to end must not decide for the others."""
    runs = 0

    def backend(module, inputs):
        nonlocal runs
        runs += 1
        return module.forward

    model = GraphLayout.build(TINY, GraphLayout.load(TINY, tmp_path, "cpu"), "cpu")
    model.compiled = True
    double = torch.compile(lambda x: 2 * x, backend=backend)
    torch._dynamo.reset()
    with pytest.raises(KeyError), model.eager():  # however it ends
        raise KeyError
    first, second = model.eager(), model.eager()
    first.__enter__()
    second.__enter__()
    double(torch.ones(2))
    first.__exit__(None, None, None)
    double(torch.ones(2))
    assert runs == 0
    second.__exit__(None, None, None)
    double(torch.ones(2))
    assert runs == 1
    torch._dynamo.reset()
