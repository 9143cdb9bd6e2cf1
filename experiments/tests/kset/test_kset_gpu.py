"""The k-subset tasks on real hardware: a recorded update does what the update does, and neither synchronises."""

import warnings

import pytest
import tiny_runs
import torch

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import find, train
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.store.folder import read_metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; test_kset_experiments.py does not"),
    pytest.mark.usefixtures("one_machine"),
]
one_machine = tiny_runs.one_machine
DEVICE = torch.device("cuda")
_SMALL = {
    "digits": "synthetic",
    "synthetic_size": 200,
    "width": 16,
    "calls": 48,
    "extra": 8,
    "iterations": 8,
    "evaluate_every": 4,
    "precision": "float32",
}
TINY = {
    "kset-autoencoder": {**_SMALL, "samples": 2, "rows": 3, "columns": 5, "subset_size": 2},
    "kset-features": {**_SMALL, "subset_size": 9},
    "kset-neighbours": {**_SMALL, "candidates": 16, "subset_size": 3},
}
RECORDED = [name for name, cls in ESTIMATORS.items() if not cls.on_host]  # all of them take subsets
# All of them in one task, and one of every family in the others.
FAMILIES = ("TraceREINFORCE", "SurrogateREINFORCE", "RELAX", "StochasticSoftmax", "MarginalStraightThrough")
estimators_and_tasks = pytest.mark.parametrize(
    ("name", "estimator"),
    [
        *(("kset-autoencoder", name) for name in RECORDED),
        *((task, name) for task in list(TINY)[1:] for name in FAMILIES),
    ],
)


@estimators_and_tasks
def test_a_graph_changes_nothing(name, estimator, tmp_path):
    """Up to rounding, and to subsets that are decided by it: losses are compared, to a hundredth."""
    config = find(name).config_type(**TINY[name], estimator=estimator)
    found = {}
    for graph in (True, False):
        train(find(name), config, tmp_path / str(graph), device=DEVICE, graph=graph, progress=False)
        rows = read_metrics(tmp_path / str(graph) / "seed-0" / "metrics.jsonl")
        found[graph] = [row["loss"] for row in rows if row["split"] == "train"]
    assert found[True] == pytest.approx(found[False], rel=1e-2)
    assert len(found[True]) == 2


@estimators_and_tasks
def test_an_update_does_not_wait(name, estimator, tmp_path):
    """An update that synchronises cannot be recorded as a CUDA graph, and `test_a_graph_changes_nothing` records each
    of these."""
    kind = find(name)
    config = kind.config_type(**TINY[name], estimator=estimator)
    made = Run(kind.build(config, kind.load(config, tmp_path, DEVICE), DEVICE), None, Workers(DEVICE))
    with made.updater.on_stream():
        made.update()  # compiles
        torch.cuda.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # says that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            made.update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert all(value == value for value in made.updater.totals().values())  # none is nan
