"""Run folders that no training made."""

import json
from pathlib import Path

MACHINE = {"device": "NVIDIA H200", "cpu": "some CPU", "torch": "2.13.0", "date": "2026-11-16"}
USUAL = {"samples": 1, "lr": 0.001, "calls": 128, "frames": 10, "nodes": 10, "training": "unrolled"}


def metrics(elbo: float, precision: float = 0.5) -> dict[str, float]:
    return {"elbo": elbo, "kl": 3.0, "precision": precision, "recall": precision, "complement": 0.0}


def write_run(
    folder: Path,
    *,
    seed: int = 0,
    estimator: str = "TraceREINFORCE",
    valid: float = -1000.0,
    test: float = -1000.0,
    precision: float = 0.5,
    points: int = 4,
    finished: bool = True,
    experiment: str = "graph-layout",
    machine: dict | None = None,
    **config,
) -> Path:
    """A run whose ELBO rises to `valid`, with that many evaluations on the way."""
    folder = folder / f"seed-{seed}"
    folder.mkdir(parents=True)
    config = {**USUAL, "seed": seed, "estimator": estimator, **config}
    about = {"experiment": experiment, "config": config, "machine": machine or MACHINE}
    (folder / "config.json").write_text(json.dumps(about))
    rows = []
    for i in range(1, points + 1):
        rows.append({"iteration": 500 * i, "split": "train", "elbo": -1.0})
        rows.append({"iteration": 500 * i, "split": "valid", **metrics(valid * points / i, precision * i / points)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        result = {"iteration": 500 * points, "valid": metrics(valid, precision), "test": metrics(test, precision)}
        (folder / "result.json").write_text(json.dumps({**result, "seconds": 12.5}))
    return folder
