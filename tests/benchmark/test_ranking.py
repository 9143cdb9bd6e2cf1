"""Learning to rank: the benchmark trains, and its record shows what the pages say."""

import json
from dataclasses import replace

import numpy as np
import pytest
import ranking
import table
import torch


@pytest.fixture
def results():
    return json.loads(ranking.RESULTS.read_text(encoding="utf-8"))


def test_shares_add_up_to_ndcg():
    """The best order has 1."""
    grades = torch.tensor([[0, 4, 2, *[0] * 97], [1, 1, 1, *[0] * 97]])
    assert ranking.ndcg(grades.float(), grades) == pytest.approx(1)
    worst = ranking.ndcg(-grades.float(), grades)
    assert worst == 0


@pytest.mark.parametrize("name", ranking.losses(2))
def test_every_loss_trains(name):
    """A scorer of one feature that is the grade itself: its weight grows."""
    scorer = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(scorer.weight)
    grades = torch.randint(0, 5, (4, ranking.ITEMS), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    ranking.losses(64)[name](scorer(grades[..., None].float()).squeeze(-1), grades).mean().backward()
    assert scorer.weight.grad.item() < 0


def test_curves_of_digits(tmp_path):
    """On images of the same format."""
    rng = np.random.default_rng(0)
    images = {
        f"{s}_images": rng.integers(0, 255, (n, 28, 28), np.uint8) for s, n in (("train", 60_000), ("test", 10_000))
    }
    labels = {f"{s}_labels": rng.integers(0, 10, n, np.uint8) for s, n in (("train", 60_000), ("test", 10_000))}
    np.savez(tmp_path / "mnist.npz", **images, **labels)
    _, task = ranking.tasks(tmp_path)
    settings = ranking.Settings(checkpoints=2, lists=2)
    curve = ranking.train(
        replace(task, seconds=0.01), ranking.losses(2)["DecisionREINFORCE"], 0.01, 0, settings, "validation"
    )
    assert len(curve) == 3
    assert all(0 <= reached <= 1 for _, reached in curve)


def test_the_record(results):
    """Half the noise where the ranking is open, at most 1.3 times the cost, and ahead of ListMLE where it is wrong."""
    ratios = {r["list"]: r["exact"] for r in results["noise"]}
    assert list(ratios) == list(ranking.SCORES)
    assert all(ratio < 0.55 for name, ratio in ratios.items() if "nearly" not in name)
    assert results["cost"]["ratio"] < 1.3
    ends = {(r["task"], r["loss"]): [run[-1][1] for run in r["curves"]] for r in results["training"]}
    assert min(ends["generated", "DecisionREINFORCE"]) > 2 * max(ends["generated", "ListMLE"])
    assert sum(ends["MNIST", "DecisionREINFORCE"]) > sum(ends["MNIST", "ListMLE"])


def test_the_tables_show_the_record(results):
    lines = table.table("ranking-noise").splitlines()
    for r in results["noise"]:
        assert f"| {r['list']} | {r['to_go']:.2f} | {r['exact']:.2f} |" in lines
    assert f"{results['cost']['ratio']:.2f} times" in table.table("ranking-cost")
    shown = table.table("ranking")
    for r in results["training"]:
        assert f"{sum(run[-1][1] for run in r['curves']) / len(r['curves']):.3f} (" in shown
        assert len(r["curves"]) == results["settings"]["seeds"]
