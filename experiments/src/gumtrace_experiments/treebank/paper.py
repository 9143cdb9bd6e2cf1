"""How the treebank experiment is shown. It is not one of the paper's: our own baseline, the random field, is what
others are compared with."""

from typing import Any

from gumtrace_experiments.columns import Block, Column, Report
from gumtrace_experiments.treebank.data import SYNTHETIC

# Runs with other data, sizes or budgets are not comparable, and get a table of their own.
_USUAL = {
    "treebank": "en_ewt",
    "longest": 60,
    "calls": 64,
    "iterations": 10_000,
    "hidden": 200,
    "layers": 2,
    "min_count": 2,
}
_COLUMNS = (
    Column("UAS, %", "uas", scale=100, axis="share"),
    Column("without punctuation, %", "uas_without_punctuation", scale=100),
    Column("UAS of the largest Σ θ, %", "uas_of_heaviest", scale=100),
    Column("sentences without a mistake, %", "exact", scale=100, axis="share"),
)


def block(config: dict[str, Any]) -> Block:
    """One for each treebank and size: the likelihoods and all estimators are rows of the same table."""
    odd = {name: config[name] for name, usual in _USUAL.items() if config.get(name, usual) != usual}
    treebank = odd.get("treebank", _USUAL["treebank"])
    language = "made-up sentences, no real language" if treebank == SYNTHETIC else f"treebank {treebank}"
    changes = [f"{name} = {value}" for name, value in odd.items() if name != "treebank"]
    return Block(
        key=tuple((name, str(value)) for name, value in sorted(odd.items())), title=", ".join([language, *changes])
    )


REPORT = Report(_COLUMNS, block)
