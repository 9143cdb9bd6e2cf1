"""Names for the keys and races of a trace, as `gumtrace.steps`, pictures and the explorer show them."""

from collections.abc import Iterable, Sequence
from typing import Any

from gumtrace.traces.trace import Trace

Names = Sequence[Any]  # of keys, nodes or tokens


class Words:
    """What the keys and races of one trace are called. Here for keys in a row; structures with other keys override it.

    Args:
        names: what keys, nodes or tokens are called. Default: their numbers.
    """

    short_races = False  # whether `race` fits above a small picture

    def __init__(self, trace: Trace, names: Names | None = None):
        self.trace, self.names = trace, names

    def name(self, i: int) -> str:
        return str(i if self.names is None else self.names[i])

    def key(self, key: int) -> str:
        return self.name(key)

    def short_key(self, key: int) -> str:
        """The key where there is little room."""
        return self.key(key)

    def race(self, decision: int, keys: Sequence[int]) -> str:
        """Who raced in a decision, given the keys that did."""
        return " ".join(self.name(key) for key in keys)

    def order(self) -> list[int]:
        """The decisions in the order in which they are taken: chains, supernodes and recursions are numbered so."""
        return [b for b, winner in enumerate(self.trace.winners.tolist()) if winner >= 0]

    def labels(self) -> Any:
        """The names that a picture writes beside keys, nodes or tokens."""
        return range(self.trace.layout.geometry.keys) if self.names is None else self.names

    def graph_nodes(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """The nodes at which edges begin and those at which they end, by number: what they are called in a graph."""
        raise NotImplementedError("only trees, forests and matchings are graphs")

    def _called(self, nodes: Iterable[int]) -> tuple[dict[int, Any], dict[int, Any]]:
        names = {node: node if self.names is None else self.names[node] for node in nodes}
        return names, names


class EdgeWords(Words):
    """Keys are edges between named nodes: entries of an adjacency matrix, unless `nodes` and `ends` say otherwise."""

    short_races = True
    line = " - "  # between the two ends

    @property
    def nodes(self) -> int:
        return self.trace.layout.event_shape[-1]

    def ends(self, key: int) -> tuple[int, int]:
        return divmod(key, self.trace.layout.event_shape[-1])

    def key(self, key: int) -> str:
        return self.line.join(self.name(node) for node in self.ends(key))

    def graph_nodes(self):
        return self._called(range(self.nodes))

    def labels(self) -> Any:
        return range(self.nodes) if self.names is None else self.names
