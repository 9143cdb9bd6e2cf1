"""Every built-in structure once more, literally as in the paper: hooks for `Custom`. Slow, and obviously right."""

import torch


class Subset:
    def __init__(self, d, k):
        self.d, self.k = d, k

    def start(self):
        return range(self.d), self.k

    def stop(self, K, R):
        return R == 0

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        return K - set(winners), R - 1


class Permutation(Subset):
    def __init__(self, d):
        super().__init__(d, d)

    def stop(self, K, R):
        return not K

    def combine(self, X, K, R, winners):
        order = [] if X is None else X.tolist()
        return torch.tensor([*winners, *order])


class Matching:
    def __init__(self, n, m):
        self.n, self.m = n, m

    def start(self):
        return range(self.n * self.m), None

    def stop(self, K, R):
        return not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        (winner,) = winners
        row, col = divmod(winner, self.m)
        return {k for k in K if k // self.m != row and k % self.m != col}, None


class Kruskal:
    def __init__(self, edges, nodes, components=1):
        """edges: key -> (u, v)."""
        self.edges, self.nodes, self.components = edges, nodes, components

    @classmethod
    def dense(cls, n, nodes=None, components=1):
        edges = {u * n + v: (u, v) for u in range(n) for v in range(u + 1, n)}
        return cls(edges, n if nodes is None else nodes, components)

    def start(self):
        return [k for k, (u, v) in self.edges.items() if u != v], tuple(range(self.nodes))

    def stop(self, K, R):
        return len(set(R)) <= self.components

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        (winner,) = winners
        u, v = (R[node] for node in self.edges[winner])
        R = tuple(u if part == v else part for part in R)
        return {k for k in K if R[self.edges[k][0]] != R[self.edges[k][1]]}, R


class ChuLiuEdmonds:
    """R: the supernode of each node, or None when the winners form a tree. One cycle is contracted at a step."""

    def __init__(self, n, nodes=None, root=0):
        self.n, self.nodes, self.root = n, n if nodes is None else nodes, root

    def start(self):
        keys = [u * self.n + v for u in range(self.nodes) for v in range(self.nodes) if u != v and v != self.root]
        return keys, tuple(range(self.nodes))

    def stop(self, K, R):
        return R is None or len(set(R)) <= 1

    def split(self, K, R):
        return [{k for k in K if R[k % self.n] == s} for s in sorted(set(R) - {R[self.root]})]

    def map(self, K, R, winners):
        into = {R[w % self.n]: R[w // self.n] for w in winners}
        cycle = _find_cycle(into)
        if not cycle:
            return set(), None
        R = tuple(min(cycle) if part in cycle else part for part in R)
        return {k for k in K if R[k // self.n] != R[k % self.n]}, R

    def combine(self, X, K, R, winners):
        """Opens the cycle: every supernode keeps its winner, but those that an outer edge enters take that."""
        value = torch.zeros(self.n, self.n) if X is None else X
        entered = {R[v] for v in value.sum(0).nonzero().flatten().tolist()}
        for winner in winners:
            u, v = divmod(winner, self.n)
            if R[v] not in entered:
                value[u, v] = 1
        return value


def _find_cycle(into):
    for start in into:
        seen = []
        here = start
        while here in into and here not in seen:
            seen.append(here)
            here = into[here]
        if here in seen:
            return set(seen[seen.index(here) :])
    return set()


class BinaryTree:
    """R: the gaps, as lists of tokens."""

    def __init__(self, n):
        self.n = n

    def start(self):
        return range(self.n), (tuple(range(self.n)),)

    def stop(self, K, R):
        return not K

    def split(self, K, R):
        return [[t for t in gap if t in K] for gap in R]

    def map(self, K, R, winners):
        gaps = []
        for gap, winner in zip(R, winners, strict=True):
            if winner is not None:
                gaps += [tuple(t for t in gap if t < winner), tuple(t for t in gap if t > winner)]
        return K - {w for w in winners if w is not None}, tuple(gaps)

    def combine(self, X, K, R, winners):
        """X[t]: the token above t. A winner hangs below those of its gap's tokens that come later."""
        value = torch.full((self.n,), -2) if X is None else X
        for gap, winner in zip(R, winners, strict=False):  # no winners at all if no token races
            if winner is None:
                continue
            value[winner] = -1
            for t in gap:
                if t in K and t != winner and value[t] == -1:
                    value[t] = winner
        return value
