"""Requests to the explorer, right ones and mutated ones: an answer that is JSON, or a BadRequest; nothing else."""

import json
from collections import Counter
from typing import Any

import numpy as np

from gumtrace.explore.answers import answer
from gumtrace.explore.requests import STORIES, BadRequest, read
from gumtrace.fuzz.subject import Wrong

JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 12, 13, 10**6, 10**400, -(10**30), 0.5, 1.0, -0.0, 5e-324, 1e308, 4.0, 4.1,
    float("nan"), float("inf"), float("-inf"), "", "0", "subset", "tree\ud800", [], [[]], [0.0], {}, {"n": 3}, [None],
]  # fmt: skip
FIELDS = ["structure", "options", "logits", "seed", "redraw", "more"]
OPTIONS = ["n", "k", "rows", "columns", "components", "root", "m", ""]


def drawn(rng: np.random.Generator) -> Any:
    """What a page may send, and what it may not."""
    if rng.random() < 0.05:
        return _junk(rng)
    asked: dict[str, Any] = {"structure": str(rng.choice(list(STORIES)))}
    if rng.random() < 0.7:
        names = [option.name for option in STORIES[asked["structure"]].options]
        asked["options"] = {name: int(rng.integers(0, 14)) for name in names if rng.random() < 0.7}
    if rng.random() < 0.5:
        asked["seed"] = int(rng.integers(0, 100_001))
    if rng.random() < 0.5:
        asked["redraw"] = int(rng.integers(0, 10_001))
    if rng.random() < 0.5:
        asked["logits"] = _logits(rng, asked)
    for _ in range(int(rng.choice([0, 1, 1, 2]))):
        asked = _mutated(rng, asked)
    return asked


def _junk(rng: np.random.Generator) -> Any:
    return JUNK[int(rng.integers(len(JUNK)))]


def _logits(rng: np.random.Generator, asked: dict[str, Any]) -> list[Any]:
    """As many as the structure has keys, if it can be built."""
    try:
        request = read({name: asked[name] for name in ("structure", "options") if name in asked})
        count = len(request.logits)
    except BadRequest:
        count = int(rng.integers(0, 40))
    logits: list[Any] = rng.uniform(-4, 4, max(count + int(rng.choice([0, 0, 0, 1, -1])), 0)).tolist()
    if logits and rng.random() < 0.2:
        logits[int(rng.integers(len(logits)))] = _junk(rng)
    return logits


def _mutated(rng: np.random.Generator, asked: dict[str, Any]) -> dict[str, Any]:
    options = asked.get("options")
    if isinstance(options, dict) and rng.random() < 0.4:
        return {**asked, "options": {**options, str(rng.choice(OPTIONS)): _junk(rng)}}
    return {**asked, str(rng.choice(FIELDS)): _junk(rng)}


def answered(asked: Any, tally: Counter) -> None:
    tally["requests"] += 1
    code = f"answer(read({asked!r}))".replace("nan", "float('nan')").replace("inf", "float('inf')")
    show = ("from gumtrace.explore.answers import answer", "from gumtrace.explore.requests import read", code)
    try:
        run = answer(read(asked))
    except BadRequest:
        return
    except Exception as error:
        raise Wrong(
            "request", f"expected an answer or a BadRequest, got {type(error).__name__}: {error}", None, show
        ) from error
    try:
        json.dumps(run, allow_nan=False)
    except ValueError as error:
        raise Wrong("request", f"the answer is no JSON: {error}", None, show) from error
