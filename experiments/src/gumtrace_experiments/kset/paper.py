"""What others print of the k-subset tasks, and how ours are shown beside it."""

import math
from collections.abc import Mapping
from typing import Any

from gumtrace_experiments.columns import Block, Column, PaperRow, Report, Spread
from gumtrace_experiments.kset.data import SYNTHETIC

_IMAGES = {"digits": "mnist", "valid_size": 5000, "width": 512, "synthetic_size": 2000}
# Runs with other images, sizes or budgets cannot be compared with each other, and get a table of their own.
_AUTOENCODER = {
    **_IMAGES,
    "calls": 1000,
    "iterations": 60_000,
    "rows": 20,
    "columns": 20,
    "subset_size": 10,
    "logit_scale": 5.0,
    "kl": "category",
    "kl_weight": 0.1,
}
_FEATURES = {
    **_IMAGES,
    "calls": 128,
    "iterations": 8000,
    "subset_size": 50,
    "selector": "global",
    "selector_width": 100,
}
_NEIGHBOURS = {
    **_IMAGES,
    "calls": 128,
    "iterations": 4000,
    "subset_size": 10,
    "candidates": 128,
    "dimensions": 2,
}
_EPOCH = 600  # updates: 60 000 images in batches of 100
# By epochs, the test loss in the log of one run of adaptive I-MLE, with its own noise (sum of gammas).
PRINTED = {1: 79.86, 2: 72.88, 3: 70.80, 100: 60.21}
_NONE = Spread(math.nan, None, math.nan)  # not reported

_AUTOENCODER_COLUMNS = (
    Column("I-MLE's loss", "loss", larger=False, axis="linear"),
    Column("cross-entropy", "cross_entropy", larger=False),
    Column("KL of the subsets", "kl", larger=False),
    Column("bound", "bound", larger=False, axis="linear"),
)
_FEATURES_COLUMNS = (
    Column("accuracy, %", "accuracy", scale=100, axis="linear"),
    Column("with random pixels, %", "accuracy_sampled", scale=100),
    Column("cross-entropy", "cross_entropy", larger=False, digits=3),
)
_NEIGHBOURS_COLUMNS = (
    Column("accuracy, %", "accuracy", scale=100, axis="linear"),
    Column("neighbours of the same digit, %", "alike", scale=100),
)


def autoencoder(config: dict[str, Any]) -> Block:
    """The published loss is beside ours where as many updates were made in the same setting, the noise aside."""
    odd = _odd(config, _AUTOENCODER)
    epochs, part = divmod(config["iterations"], _EPOCH)
    alike = odd.keys() <= {"iterations", "logit_scale"} and not part and epochs in PRINTED
    paper = ()
    if alike:
        found = Spread(PRINTED[epochs], None, PRINTED[epochs])
        paper = (PaperRow("Adaptive I-MLE", (found, _NONE, _NONE, _NONE), seeds=1, settings=1),)
    what = "{rows} subsets of {subset_size} out of {columns} keys, logits × {logit_scale:g}".format(**config)
    return _block(odd, what, ("rows", "columns", "subset_size", "logit_scale"), paper)


def features(config: dict[str, Any]) -> Block:
    whose = "one choice for all images" if config["selector"] == "global" else "one choice for each image"
    return _block(_odd(config, _FEATURES), f"{config['subset_size']} pixels, {whose}", ("selector", "subset_size"), ())


def neighbours(config: dict[str, Any]) -> Block:
    what = "{subset_size} neighbours of {candidates}, {dimensions} dimensions".format(**config)
    return _block(_odd(config, _NEIGHBOURS), what, ("subset_size", "candidates", "dimensions"), ())


def _odd(config: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """What is unlike the setting of the full contest; sizes of data that are not used do not count."""
    unused = "valid_size" if config["digits"] == SYNTHETIC else "synthetic_size"
    return {name: config[name] for name, value in usual.items() if config[name] != value and name != unused}


def _block(odd: dict[str, Any], what: str, told: tuple[str, ...], paper: tuple[PaperRow, ...]) -> Block:
    """`told`: settings that `what` already names."""
    parts = [what]
    if "digits" in odd:
        parts.append("made-up digits, no handwriting" if odd["digits"] == SYNTHETIC else f"images of {odd['digits']}")
    if "iterations" in odd:
        parts.append(f"short runs of {odd['iterations']:,} updates")
    parts += [f"{name} = {value}" for name, value in odd.items() if name not in ("digits", "iterations", *told)]
    key = tuple((name, str(value)) for name, value in sorted(odd.items()))
    return Block(key=key, title=", ".join(parts), paper=paper, source="its repository")


AUTOENCODER = Report(_AUTOENCODER_COLUMNS, autoencoder)
FEATURES = Report(_FEATURES_COLUMNS, features)
NEIGHBOURS = Report(_NEIGHBOURS_COLUMNS, neighbours)
