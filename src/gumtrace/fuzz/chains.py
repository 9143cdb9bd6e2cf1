"""What a structure is, in a few plain words: which keys race, when it can be completed, its algorithm, its value, how
it is built. Here those that are one race after another; the others, and the list of all, are in `structures`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import gumtrace as gt
from gumtrace.fuzz import algorithms, oracles
from gumtrace.fuzz.numbers import literal
from gumtrace.fuzz.oracles import Outcome
from gumtrace.fuzz.recursions import Choose, Run, interpret
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace

if TYPE_CHECKING:
    from gumtrace.fuzz.cases import Case

Settings = dict[str, Any]


class Description:
    """Rows are items of the batch; arrays have one line for each."""

    ordered = True  # decisions come in an order; else they are compared as sets
    relaxes = True  # `gumtrace.relax` takes it

    def dims(self, settings: Settings) -> int:
        """Of the keys."""
        return 1

    def keys(self, shape: tuple[int, ...], settings: Settings) -> np.ndarray:
        """(keys,) bool: those that the structure lets race."""
        return np.ones(int(np.prod(shape, dtype=np.int64)), bool)

    def inside(self, shape: tuple[int, ...], settings: Settings, lengths: np.ndarray) -> np.ndarray:
        """(rows, *keys) bool: keys none of whose indices lies in the padding."""
        inside = np.ones((len(lengths), *shape), bool)
        for axis, size in enumerate(shape):
            index = np.arange(size).reshape(-1, *[1] * (len(shape) - axis - 1))
            inside &= index < lengths.reshape(-1, *[1] * len(shape))
        return inside

    def longest(self, shape: tuple[int, ...], settings: Settings) -> int:
        return min(shape, default=0)

    def sizes(self, case: "Case") -> np.ndarray:
        full = self.longest(case.key_shape, case.settings)
        return np.full(case.rows, full) if case.row_lengths is None else case.row_lengths

    def feasible(self, case: "Case") -> np.ndarray:
        return np.ones(case.rows, bool)

    def outcome(self, case: "Case", noise: np.ndarray, hint: Trace | None = None) -> Outcome:
        """The algorithm on noise (items, keys). `hint`: the library's trace of it, which counts where rounding
        decides."""
        raise NotImplementedError

    def play(self, case: "Case", row: int) -> Callable[[Choose], Run]:
        """The algorithm of one row with the argmin passed in."""
        raise NotImplementedError

    def values(self, case: "Case", row: int, winners: np.ndarray, runs: list[Run]) -> np.ndarray:
        """The structures that runs of one row make; winners (runs, decisions)."""
        raise NotImplementedError

    def build(self, logits: Tensor, settings: Settings, **more) -> Structure:
        raise NotImplementedError

    def call(self, settings: Settings, case: "Case") -> str:
        """The code of `build`."""
        raise NotImplementedError


def _arguments(settings: Settings) -> str:
    return "".join(f", {name}={literal(x)}" for name, x in settings.items())


class Named(Description):
    """A class of the library that takes logits first and all settings by name."""

    made: Callable[..., Structure]

    def build(self, logits, settings, **more):
        return type(self).made(logits, **settings, **more)

    def call(self, settings, case):
        return f"gt.{type(self).made.__name__}(logits{_arguments(settings)})"


class Chain(Named):
    """One race after another, of all keys that are left."""

    def steps(self, case: "Case") -> np.ndarray:
        return case.sizes

    def leave(self, case: "Case") -> oracles.Leave:
        return oracles.winner_leaves

    def twin(self, case: "Case", row: int) -> Any:
        raise NotImplementedError

    def value(self, case: "Case", winners: np.ndarray, racing: np.ndarray) -> np.ndarray:
        return oracles.ones(winners, racing.shape[1])

    def outcome(self, case, noise, hint=None):
        racing = case.of_items(case.racing, len(noise))
        steps = case.of_items(self.steps(case), len(noise))
        winners, members = oracles.greedy(noise, racing, steps, self.leave(case))
        return Outcome(winners, members, self.value(case, winners, racing), np.zeros(len(noise), bool))

    def play(self, case, row):
        racing = np.flatnonzero(case.racing[row]).tolist()
        twin = self.twin(case, row)
        return lambda choose: interpret(twin, racing, choose)

    def values(self, case, row, winners, runs):
        return self.value(case, winners, np.repeat(case.racing[row : row + 1], len(winners), 0))


class Subset(Chain):
    made = gt.Subset

    def sizes(self, case):
        k = torch.as_tensor(case.settings["k"])
        return k.expand(case.batch).reshape(case.rows).numpy().astype(np.int64)

    def feasible(self, case):
        bound = case.settings.get("most")
        within = case.sizes <= (case.racing.shape[1] if bound is None else bound)
        return (case.racing.sum(1) >= case.sizes) & within

    def twin(self, case, row):
        return algorithms.First(case.racing.shape[1], int(case.sizes[row]))


class Permutation(Chain):
    made = gt.Permutation

    def steps(self, case):
        return case.racing.sum(1)

    def twin(self, case, row):
        return algorithms.First(case.racing.shape[1], case.racing.shape[1])

    def value(self, case, winners, racing):
        """Keys that race fill the places of keys that race, in order; the others stay where they are."""
        items, keys = racing.shape
        order = np.tile(np.arange(keys), (items, 1))
        for item in range(items):
            order[item, racing[item]] = winners[item, winners[item] >= 0]
        if not case.settings.get("matrix"):
            return order
        matrix = np.zeros((items, keys, keys))
        np.put_along_axis(matrix, order[:, :, None], racing[:, :, None], 2)
        return matrix


class Matching(Chain):
    made = gt.Matching

    def dims(self, settings):
        return 2

    def inside(self, shape, settings, lengths):
        n, m = shape
        rows = np.arange(n)[:, None] < lengths[:, None, None]
        columns = np.arange(m) < (lengths[:, None, None] if n == m else m)
        return rows & columns & np.ones((len(lengths), n, m), bool)

    def steps(self, case):
        return np.full(case.rows, case.key_shape[0])

    def leave(self, case):
        return oracles.row_and_column_leave(case.key_shape[1])

    def twin(self, case, row):
        return algorithms.Crossing(*case.key_shape)

    def value(self, case, winners, racing):
        return oracles.ones(winners, racing.shape[1]).reshape(len(winners), *case.key_shape)


class SpanningTree(Chain):
    made = gt.SpanningTree

    def dims(self, settings) -> int:
        return 2

    def ends(self, shape, settings) -> np.ndarray:
        """(2, keys)."""
        return np.stack(np.divmod(np.arange(shape[0] ** 2), max(shape[0], 1)))

    def nodes(self, shape, settings) -> int:
        return shape[0]

    def keys(self, shape, settings):
        u, v = self.ends(shape, settings)
        return u < v

    def steps(self, case):
        return np.maximum(case.sizes - case.settings.get("components", 1), 0)

    def feasible(self, case):
        components = case.settings.get("components", 1)
        parts = oracles.connected(self.ends(case.key_shape, case.settings), case.racing, case.sizes)
        return (parts <= components) & (case.sizes >= components)

    def leave(self, case):
        return oracles.edges_inside_leave(
            self.ends(case.key_shape, case.settings), self.nodes(case.key_shape, case.settings)
        )

    def twin(self, case, row):
        ends = self.ends(case.key_shape, case.settings)
        edges = tuple(map(tuple, ends.T.tolist()))
        return algorithms.Merging(edges, int(case.sizes[row]), case.settings.get("components", 1))

    def value(self, case, winners, racing):
        above = oracles.ones(winners, racing.shape[1]).reshape(len(winners), *case.key_shape)
        return above + above.transpose(0, 2, 1)


class SparseTree(SpanningTree):
    relaxes = False

    def dims(self, settings):
        return 1

    def ends(self, shape, settings):
        return settings["edge_index"].numpy().astype(np.int64)

    def nodes(self, shape, settings):
        return settings["num_nodes"]

    def keys(self, shape, settings):
        u, v = self.ends(shape, settings)
        return u != v

    def longest(self, shape, settings):
        return settings["num_nodes"]

    def inside(self, shape, settings, lengths):
        return (self.ends(shape, settings) < lengths[:, None, None]).all(1)

    def value(self, case, winners, racing):
        return oracles.ones(winners, racing.shape[1])

    def build(self, logits, settings, **more):
        return gt.SpanningTree.from_edges(logits, **settings, **more)

    def call(self, settings, case):
        return f"gt.SpanningTree.from_edges(logits{_arguments(settings)})"
