"""Gradients in real training: the script in small, its tables by hand, and what pages say of the recording."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
import training_models  # benchmarks/
import training_surrogates
import training_tables
import training_variance
from common import seeded

import gumtrace as gt

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_recording(tmp_path, monkeypatch, capsys):
    """Of the tree alone: the other models run through the same lines."""
    out = tmp_path / "found.json"
    command = ["", "--smoke", "--folder", str(tmp_path / "weights"), "--out", str(out), "--models", "graph layout"]
    monkeypatch.setattr("sys.argv", command)
    training_variance.main()
    found = json.loads(out.read_text())
    assert [r["iteration"] for r in found["training"]] == [0, 2, 4]
    names = [r["estimator"] for r in found["updates"]]
    assert {"TraceREINFORCE", "SurrogateREINFORCE", "MLP", "RELAX", "REBAR", "IMLE", "StructureREINFORCE"} <= set(names)
    assert "DecisionREINFORCE" not in names  # for sums over decisions
    assert [(r["point"], r["estimator"]) for r in found["gradients"]] == [
        (point, name) for point in training_models.POINTS for name in names
    ]
    assert all(r["std"] > 0 for r in found["gradients"])
    assert len(found["explained"]) == 6
    training_variance.main()  # nothing is done again
    assert json.loads(out.read_text()) == found
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["", "--smoke"])
    with pytest.raises(SystemExit):
        training_variance.main()
    assert "give --out FILE" in capsys.readouterr().err


def test_training_resumes_at_a_point(tmp_path):
    name = "graph layout"
    kind, config = training_models.configuration(name, smoke=True)
    data = kind.load_data(config, tmp_path, torch.device("cpu"))
    whole = training_models.train(name, kind, config, data, tmp_path / "whole")
    part = tmp_path / "part"
    training_models.train(name, kind, config, data, part)
    (part / "graph-layout-4.pt").unlink()
    resumed = training_models.train(name, kind, config, data, part)
    torch.testing.assert_close(resumed["end"]["model"], whole["end"]["model"], rtol=0, atol=0)
    assert resumed["end"]["metrics"] == whole["end"]["metrics"]


def test_spread_and_its_error():
    """Of normal numbers: the standard deviation is known, and so is the error of its estimate, about std / √(2 m) for
    m numbers in all."""
    grads = 3 * torch.randn(400, 2, 5, generator=seeded(1), dtype=torch.float64) + 7
    alive = torch.ones(2, 5, dtype=torch.bool)
    alive[0, 0] = False
    grads[:, 0, 0] = 1e6 * torch.arange(400)  # no key
    found = training_variance.spread(grads, alive)
    assert found["std"] == pytest.approx(3, rel=0.05)
    assert found["std_error"] == pytest.approx(3 / math.sqrt(2 * 400 * 9), rel=0.2)


def test_what_is_explained():
    losses = torch.randn(1000, 3, generator=seeded(1), dtype=torch.float64)
    constant = torch.tensor([5.0, -2.0, 1.0])
    assert training_surrogates.share(losses, losses + constant) == pytest.approx(1)
    assert training_surrogates.share(losses, 0 * losses) == pytest.approx(0)
    assert training_surrogates.share(losses, losses / 2) == pytest.approx(0.75)


def test_a_sum_over_edges_is_explained_within_items():
    weights = torch.randn(3, 5, 5, generator=seeded(1))
    dist = gt.SpanningTree(torch.zeros(3, 5, 5))
    given = training_models.Problem(dist, lambda x: (x * weights).sum((-1, -2)), None)
    seen, fresh = (training_surrogates.drawn(given, 500, seeded(seed)) for seed in (2, 3))
    assert seen[0].shape == (500, 3, 10)
    found = training_surrogates.regressed(*seen, fresh[0])
    assert training_surrogates.share(fresh[1].double(), found) > 0.999
    squares = training_surrogates.regressed(seen[0], seen[1].square(), fresh[0])
    assert training_surrogates.share(fresh[1].double().square(), squares) < 0.99  # which is no sum over edges


def test_ratios_by_hand():
    """At equal calls 18 calls count for 8, at equal time 4 ms for 1."""
    plain = {"model": "ListOps", "point": "end", "estimator": "TraceREINFORCE", "std": 2.0, "std_error": 0.0}
    plain |= {"calls": 8, "bias": 0.1, "chance": 0.2, "gradient": 1.0}
    other = {**plain, "estimator": "REBAR", "std": 1.0, "calls": 18, "bias": 0.5, "chance": 0.3}
    updates = [{"model": "ListOps", "estimator": name, "ms": ms} for name, ms in (("TraceREINFORCE", 1), ("REBAR", 4))]
    results = {"gradients": [plain, other], "updates": updates}
    found = training_tables.ratios(results, "ListOps")["REBAR", "end"]
    assert found == pytest.approx({"calls": 0.75, "time": 1.0, "error": 0.0, "bias": 0.4})
    assert training_tables.best(results, "ListOps", "end") == ("REBAR", pytest.approx(0.75))


# --- the recording ---


def test_the_recording_is_whole():
    found = training_tables.load()
    assert found["settings"] == json.loads(json.dumps(vars(training_variance.Settings())))
    for name in training_models.TRAINED:
        about, config = found["models"][name], training_models.configuration(name, smoke=False)[1]
        assert {**type(config)().to_dict(), **about} == config.to_dict()  # newer settings have their defaults
        for point in training_models.POINTS:
            names = [r["estimator"] for r in found["gradients"] if (r["model"], r["point"]) == (name, point)]
            clocked = [r["estimator"] for r in found["updates"] if r["model"] == name]
            assert sorted(names) == sorted(clocked or ["TraceREINFORCE", "SurrogateREINFORCE"])


def test_the_models_learn():
    """Else the table would be of nothing."""
    at = {(r["model"], r["point"]): r for r in training_tables.load()["training"]}
    assert at["graph layout", "end"]["precision"] > 0.85
    assert at["ListOps", "end"]["precision"] > 0.8
    assert at["ListOps", "end"]["accuracy"] > 0.8


@pytest.mark.parametrize("file", ["variance", "choosing", "estimators/surrogate-reinforce"])
def test_numbers_of_pages_are_recorded(file):
    """{in-training}`model | estimator | point | at` is filled in from the recording; each names a record."""
    text = (ROOT / "docs" / f"{file}.md").read_text(encoding="utf-8")
    named = re.findall(r"\{in-training\}`([^`]+)`", text)
    assert named
    for name in named:
        assert re.fullmatch(r"\d+\.\d\d", training_tables.number(name))
