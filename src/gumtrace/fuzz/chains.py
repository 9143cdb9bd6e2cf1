"""Structures that are one race after another, for the fuzzer."""

import numpy as np
import torch

import gumtrace as gt
from gumtrace.fuzz import algorithms, oracles
from gumtrace.fuzz.description import Chain, Settings, Sum, arguments
from gumtrace.fuzz.sizes import INTEGERS, side, vector


class Subset(Chain):
    made = gt.Subset

    def draw(self, rng, sizes):
        d = vector(rng, sizes)
        k = [0, d, max(d - 1, 0), int(rng.integers(0, d + 1)), int(rng.integers(0, min(d, 4) + 1))][rng.integers(5)]
        return (d,), {"k": k}, sizes.affordable((k + 1) * d)

    def draw_small(self, rng):
        return (int(d := rng.integers(2, 6)),), {"k": int(rng.integers(1, d))}

    def by_item(self, rng, batch, settings):
        """Its k for each item, now and then."""
        if rng.random() > 0.35:
            return settings
        most = settings["k"]
        k = torch.as_tensor(rng.integers(0, most + 1, batch)).to(INTEGERS[rng.integers(3)])
        return {"k": k, "most": most + int(rng.integers(0, 2))} if rng.random() < 0.4 else {"k": k}

    def sums(self, case, x):
        yield Sum("the sum", x.sum(1), case.sizes.astype(float))
        yield Sum("keys that do not race", np.where(case.racing, 0.0, x), np.zeros(x.shape))

    def sizes(self, case):
        k = torch.as_tensor(case.settings["k"])
        return k.expand(case.batch).reshape(case.rows).numpy().astype(np.int64)

    def feasible(self, case):
        bound = case.settings.get("most")
        within = case.sizes <= (case.racing.shape[1] if bound is None else bound)
        return (case.racing.sum(1) >= case.sizes) & within

    def reference(self, case, row):
        return algorithms.First(case.racing.shape[1], int(case.sizes[row]))


class Permutation(Chain):
    made = gt.Permutation
    one_to_one = True

    def draw(self, rng, sizes):
        d = vector(rng, sizes)
        matrix = bool(rng.random() < 0.35 and d <= 64)
        return (d,), {"matrix": True} if matrix else {}, sizes.affordable(d * d)

    def draw_small(self, rng):
        return (int(rng.integers(2, 5)),), {"matrix": True} if rng.random() < 0.5 else {}

    def sums(self, case, x):
        yield Sum("rows", x.sum(2), case.racing.astype(float))
        yield Sum("columns", x.sum(1), case.racing.astype(float))

    def changed(self, entry):
        return 1 - entry if entry.is_floating_point() else entry + 1

    def steps(self, case):
        return case.racing.sum(1)

    def reference(self, case, row):
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

    def draw(self, rng, sizes):
        n = side(rng, sizes, 33)
        m = n if rng.random() < 0.6 else n + int(rng.integers(1, 5))
        return (n, m), {}, sizes.affordable(n * n * m)

    def draw_small(self, rng):
        return (2, 3) if rng.random() < 0.5 else (3, 3), {}

    def cuts(self, shape):
        n, m = shape
        if n:
            yield n - 1, (-2,)
        if m > n:
            yield m - 1, (-1,)
        if n == m and n:
            yield n - 1, (-2, -1)

    def sums(self, case, x):
        grid = case.racing.reshape(x.shape)
        full = bool(grid.all())
        yield Sum("rows", x.sum(2), grid.any(2).astype(float), full)
        yield Sum("columns", x.sum(1), grid.any(1).astype(float), full and x.shape[1] == x.shape[2])

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

    def reference(self, case, row):
        return algorithms.Crossing(*case.key_shape)

    def value(self, case, winners, racing):
        return oracles.ones(winners, racing.shape[1]).reshape(len(winners), *case.key_shape)


class SpanningTree(Chain):
    made = gt.SpanningTree
    keyless = False

    def draw(self, rng, sizes) -> tuple[tuple[int, ...], Settings, float]:
        n = side(rng, sizes)
        components = 1 if rng.random() < 0.7 else int(rng.integers(1, n + 2))
        settings = {"components": components} if components > 1 or rng.random() < 0.1 else {}
        return (n, n), settings, sizes.affordable(n**3)

    def draw_small(self, rng) -> tuple[tuple[int, ...], Settings]:
        return (4, 4), {"components": int(rng.integers(1, 3))}

    def sums(self, case, x):
        yield Sum("the other triangle", x, x.transpose(0, 2, 1))
        yield Sum("the sum", x.sum((1, 2)) / 2, case.sizes - 1.0)

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

    def reference(self, case, row):
        ends = self.ends(case.key_shape, case.settings)
        edges = tuple(map(tuple, ends.T.tolist()))
        return algorithms.Merging(edges, int(case.sizes[row]), case.settings.get("components", 1))

    def value(self, case, winners, racing):
        above = oracles.ones(winners, racing.shape[1]).reshape(len(winners), *case.key_shape)
        return above + above.transpose(0, 2, 1)


class SparseTree(SpanningTree):
    tractable = False

    def draw(self, rng, sizes):
        nodes = int(rng.integers(0, 9)) if rng.random() < sizes.small else int(rng.choice([16, 17, 33, 64, 100]))
        extra = int(rng.integers(0, 2 * nodes + 2)) if nodes else 0
        edges = rng.integers(0, max(nodes, 1), (2, extra))
        if rng.random() < 0.9 and nodes > 1:
            place = rng.permutation(nodes)
            tree = np.stack([place[1:], place[rng.integers(0, np.arange(1, nodes))]])
            edges = np.concatenate([edges, tree], 1)[:, rng.permutation(extra + nodes - 1)]
        index = torch.from_numpy(np.ascontiguousarray(edges)).to(INTEGERS[rng.integers(3)])
        settings: Settings = {"edge_index": index, "num_nodes": nodes}
        if rng.random() < 0.3:
            settings["components"] = int(rng.integers(1, max(nodes, 1) + 1))
        return (edges.shape[1],), settings, sizes.affordable(nodes * edges.shape[1])

    def draw_small(self, rng):
        edges = torch.tensor([[0, 1, 2, 0, 2, 1], [1, 2, 3, 3, 2, 2]])  # one loop, one parallel edge
        return (6,), {"edge_index": edges, "num_nodes": 4, "components": int(rng.integers(1, 3))}

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
        return f"gt.SpanningTree.from_edges(logits{arguments(settings)})"
