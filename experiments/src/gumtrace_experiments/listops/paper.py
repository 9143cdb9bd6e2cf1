"""What the paper reports of ListOps, and how ours is shown beside it."""

from typing import Any

from gumtrace_experiments.columns import Block, Column, PaperRow, Report, Spread

# The paper's data, budget, sizes and dropout: runs with others are not comparable, and get a table of their own.
_USUAL = {
    "original": False,
    "longest": 50,
    "depth": 5,
    "calls": 100,
    "iterations": 50_000,
    "hidden": 60,
    "rounds": 5,
    "dropout": 0.1,
    "relabel": 0.0,
    "train_size": 100_000,
    "test_size": 20_000,
}
_OF_GENERATED = ("depth", "train_size", "test_size")  # of no meaning with original files
_COLUMNS = (
    Column("accuracy, %", "accuracy", scale=100, axis="share"),
    Column("edge precision, %", "precision", scale=100, axis="share"),
    Column("edge recall, %", "recall", scale=100, axis="share"),
)


def _row(estimator: str, *spreads: tuple[float, float, float]) -> PaperRow:
    return PaperRow(estimator, tuple(Spread(*spread) for spread in spreads), seeds=None, settings=20)


# By split: mean, std and max of accuracy, edge precision and edge recall (Tables "edmonds" and "edmonds-train"). Of the
# number of seeds the paper says only that there were several.
RESULTS = {
    "test": (
        _row("StochasticSoftmax", (78.42, 8.14, 93.78), (56.84, 20.08, 82.40), (30.18, 19.10, 73.11)),
        _row("NoiseREINFORCE", (60.25, 2.29, 64.47), (40.87, 6.90, 45.74), (40.74, 6.93, 45.46)),
        _row("TraceREINFORCE", (87.34, 3.00, 91.97), (77.93, 7.36, 79.65), (61.10, 14.11, 79.65)),
        _row("RELAX", (79.60, 9.36, 88.64), (54.73, 17.48, 75.27), (53.61, 17.14, 75.27)),
    ),
    "train": (
        _row("StochasticSoftmax", (79.31, 8.17, 94.73), (57.15, 19.92, 82.51), (30.58, 19.03, 73.28)),
        _row("NoiseREINFORCE", (60.64, 2.51, 65.21), (41.12, 6.68, 45.95), (40.99, 6.75, 45.68)),
        _row("TraceREINFORCE", (88.69, 3.02, 93.06), (78.60, 7.37, 80.68), (61.78, 14.52, 80.68)),
        _row("RELAX", (79.92, 9.35, 88.64), (54.84, 17.51, 75.27), (53.73, 17.18, 75.27)),
    ),
}


def block(config: dict[str, Any]) -> Block:
    """One for all runs on the paper's terms, and one for those that differ from them in a curriculum alone."""
    odd = {name: config[name] for name, usual in _USUAL.items() if config.get(name, usual) != usual}
    longest, original = config.get("longest", _USUAL["longest"]), "original" in odd
    if original:
        odd = {name: value for name, value in odd.items() if name not in _OF_GENERATED}
    what = f"original expressions of up to {longest} tokens" if original else f"expressions of 10 to {longest} tokens"
    changes = [f"{name} = {value}" for name, value in odd.items() if name not in ("longest", "original")]
    easy_first = bool(config.get("curriculum"))
    return Block(
        key=(easy_first, *sorted(odd.items())),
        title=", ".join([what, *changes, *["with a curriculum"] * easy_first]),
        paper=() if odd else RESULTS["test"],
        paper_train=() if odd else RESULTS["train"],
        source="paper, no curriculum" if easy_first else "paper",
    )


def timed(config: dict[str, Any]) -> Block:
    """The same whatever calls and iterations there are, and without the paper."""
    same = block({**config, "calls": _USUAL["calls"], "iterations": _USUAL["iterations"]})
    return Block(key=same.key, title=same.title)


REPORT = Report(_COLUMNS, block, timed=timed)
