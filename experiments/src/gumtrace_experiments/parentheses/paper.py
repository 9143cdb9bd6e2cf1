"""What the paper reports of parentheses, which is two figures without numbers, and how ours is shown."""

from typing import Any

from gumtrace_experiments.columns import Block, Column, Report

_COLUMNS = (
    Column("new and correct, %", "new_correct", scale=100),
    Column("old, %", "old", scale=100),
    Column("perplexity", "perplexity", digits=3, larger=False, axis="linear"),
    Column("entropy of the encoder", "entropy", axis="linear"),
)


def block(config: dict[str, Any]) -> Block:
    return Block(key=(config["types"],), title=f"{config['types']} types")


REPORT = Report(_COLUMNS, block)
