"""What the paper reports of graph layout, and how ours is shown beside it."""

from typing import Any

from gumtrace_experiments.columns import Block, Column, PaperRow, Report, Spread

_PROTOCOLS = {"unrolled": "the paper's protocol", "teacher-forced": "our protocol"}
# The paper's data and budget: runs with others are not comparable, and get a table of their own.
_USUAL = {"nodes": 10, "calls": 128, "iterations": 50_000, "train_size": 50_000, "test_size": 10_000}
_COLUMNS = (
    Column("ELBO", "elbo", axis="log of minus"),
    Column("edge precision, %", "precision", scale=100, digits=1, paper_digits=0, axis="share"),
    Column("edge recall, %", "recall", scale=100, digits=1, paper_digits=0),
)


def _row(estimator: str, *spreads: tuple[float, float, float]) -> PaperRow:
    return PaperRow(estimator, tuple(Spread(*spread) for spread in spreads), seeds=10, settings=20)


# By frames: mean, std and max of the ELBO, of edge precision and of edge recall (Tables "nri1" and "nri2")
RESULTS = {
    10: (
        _row("StochasticSoftmax", (-1860.79, 1116.83, -1374.81), (87, 21, 95), (93, 3, 95)),
        _row("TraceREINFORCE", (-1582.72, 571.18, -1192.04), (70, 31, 91), (86, 8, 91)),
        _row("RELAX", (-2079.18, 569.49, -1205.87), (43, 31, 90), (81, 6, 90)),
    ),
    20: (
        _row("StochasticSoftmax", (-2039.42, 1079.56, -1483.31), (83, 30, 98), (93, 9, 98)),
        _row("TraceREINFORCE", (-1976.16, 980.12, -1458.81), (83, 30, 98), (94, 8, 98)),
        _row("RELAX", (-3129.51, 1464.88, -1594.85), (60, 37, 98), (90, 8, 98)),
    ),
}
# Standard deviation of the gradient at 10 frames: at the beginning, after 25 000 and 50 000 iterations ("nri-var")
GRADIENT_STD = {
    "StochasticSoftmax": (0.1674, 0.0343, 0.0379),
    "TraceREINFORCE": (1.6320, 1.4409, 0.9924),
    "RELAX": (3.0592, 1.0292, 0.8874),
}


def block(config: dict[str, Any]) -> Block:
    """Frames and protocol. The paper's numbers stand beside both protocols, and are its own in one."""
    frames, training = config["frames"], config["training"]
    odd = {name: config[name] for name, usual in _USUAL.items() if config.get(name, usual) != usual}
    name = f"T = {frames}, {training} training ({_PROTOCOLS.get(training, 'neither protocol')})"
    return Block(
        key=(frames, training != "unrolled", training, *sorted(odd.items())),
        title=", ".join([name, *(f"{key} = {value}" for key, value in odd.items())]),
        paper=RESULTS.get(frames, ()) if not odd else (),
        gradient_std=GRADIENT_STD if frames == 10 and not odd else {},
        source="paper" if training == "unrolled" else "paper, unrolled",
    )


def timed(config: dict[str, Any]) -> Block:
    """The same whatever calls and iterations there are, and without the paper."""
    same = block({**config, "calls": _USUAL["calls"], "iterations": _USUAL["iterations"]})
    return Block(key=same.key, title=same.title)


REPORT = Report(_COLUMNS, block, timed=timed)
