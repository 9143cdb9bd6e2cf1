"""How models of parentheses are reported. The paper shows two figures, one for each experiment, and no numbers: the
share of new and correct sequences and of old ones, and the perplexity, by the number of types, for each order."""

from collections.abc import Callable, Mapping
from typing import Any

from gumtrace_experiments.columns import Block, Column, Report
from gumtrace_experiments.parentheses.by_types import NEW, OLD, PERPLEXITY, figures, overview
from gumtrace_experiments.parentheses.orders import FIXED, ORDERS
from gumtrace_experiments.report.names import title

ENTROPY = Column("entropy of the encoder, nats", "entropy", larger=None, axis="linear")
# Runs of other data, budgets or models are not comparable, and get a table of their own.
_COMPARED = ("calls", "iterations", "supervision", "hidden", "longest", "train_size", "test_size", "generated")
_COMPARED += ("bound_samples", "valid_bound_samples")
_COMPARED += ("proposal_trees", "proposal_share")  # of trees alone
_COMPARED += ("width", "layers", "heads", "dropout")  # of insertions alone


def row(config: dict[str, Any]) -> tuple[int, str]:
    """Orders in the order of ORDERS; an estimator only where an order is learned."""
    order = config["order"]
    name = order if order in FIXED else f"{order}, {title(config)}"
    return ORDERS.index(order) if order in ORDERS else len(ORDERS), name


def _block(usual: Mapping[str, Any]) -> Callable[[dict[str, Any]], Block]:
    def block(config: dict[str, Any]) -> Block:
        odd = {name: config[name] for name in _COMPARED if name in usual and config[name] != usual[name]}
        changes = [f"{name} = {value}" for name, value in odd.items()]
        title = ", ".join([f"{config['types']} types of parentheses", *changes])
        return Block(key=(tuple(odd.items()), config["types"]), title=title)

    return block


def report(usual: Mapping[str, Any]) -> Report:
    """Of the runs of an experiment with these defaults."""
    columns = (NEW, OLD, PERPLEXITY, ENTROPY)
    return Report(columns, _block(usual), overview, rows=row, figures=figures)
