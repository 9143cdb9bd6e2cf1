"""Every structure there is; here those that are no chain of races: algorithms that subtract, in plain Python item by
item, and binary trees."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import gumtrace as gt
from gumtrace.fuzz import algorithms, chains, oracles
from gumtrace.fuzz.description import Description, Named, Sum
from gumtrace.fuzz.oracles import Outcome
from gumtrace.fuzz.recursions import Choose, Run, edmonds, interpret
from gumtrace.fuzz.sizes import Rng, side, vector
from gumtrace.fuzz.times import Times

if TYPE_CHECKING:
    from gumtrace.fuzz.cases import Case


class Recursion(Named):
    """Algorithms that subtract: one item after the other, in plain Python."""

    def outcome(self, case, noise, hint=None):
        runs, unsure = [], np.zeros(len(noise), bool)
        for item, g in enumerate(noise.tolist()):
            play = self.play(case, item % case.rows)
            racing = np.flatnonzero(case.racing[item % case.rows]).tolist()
            times = Times(g, racing)
            runs.append(play(times.choose))
            unsure[item] = times.unsure
            if times.unsure and hint is not None:  # a run that could have gone as the library's did
                decided = self.decided(case, racing, *(part[item].tolist() for part in hint.rows()))
                runs[-1] = play(Times(g, racing, decided).choose)
        winners, members = written_out(runs, case.racing.shape[1])
        rows = np.arange(len(noise)) % max(case.rows, 1)
        parts = [self.values(case, int(row), winners[i : i + 1], runs[i : i + 1]) for i, row in enumerate(rows)]
        return Outcome(winners, members, np.concatenate(parts) if parts else self.nothing(case), unsure)

    def decided(self, case: "Case", racing: list[int], choices: list[int], links: list[int]) -> dict[tuple, int]:
        """The winners of a trace of the library, by who raced."""
        raise NotImplementedError

    def nothing(self, case: "Case") -> np.ndarray:
        return np.zeros((0, *case.key_shape))


class Arborescence(Recursion):
    made = gt.Arborescence
    ordered = False
    tractable = False

    def draw(self, rng, sizes):
        n = side(rng, sizes)
        settings = {"root": int(rng.integers(0, n))} if n and rng.random() < 0.7 else {}
        return (n, n), settings, min(sizes.recursion / max(n * n, 6), sizes.affordable(2 * n**3))

    def draw_small(self, rng):
        return (n := int(rng.integers(3, 5)), n), {"root": int(rng.integers(0, n))}

    def sums(self, case, x):
        node, root = np.arange(x.shape[1]), case.settings.get("root", 0)
        entered = (node < case.sizes[:, None]) & (node != root)
        yield Sum("columns", x.sum(1), entered.astype(float))

    def dims(self, settings):
        return 2

    def keys(self, shape, settings):
        u, v = np.divmod(np.arange(shape[0] ** 2), max(shape[0], 1))
        return (u != v) & (v != settings.get("root", 0))

    def feasible(self, case):
        root = case.settings.get("root", 0)
        racing = case.racing.reshape(case.rows, *case.key_shape)
        return oracles.reached(racing, case.sizes, root) & ((case.sizes > root) | (case.sizes == 0))

    def play(self, case, row):
        racing = np.flatnonzero(case.racing[row]).tolist()
        n, nodes, root = case.key_shape[0], int(case.sizes[row]), case.settings.get("root", 0)
        return lambda choose: edmonds(racing, n, nodes, root, choose)

    def decided(self, case, racing, choices, links):
        n = case.key_shape[0]
        inside: dict[int, set[int]] = {slot: {slot} if slot < n else set() for slot in range(len(links))}
        for slot, around in enumerate(links):  # a cycle has a later number than its members
            if around >= 0:
                inside[around] |= inside[slot]
        return {
            tuple(k for k in racing if k % n in inside[slot] and k // n not in inside[slot]): winner
            for slot, winner in enumerate(choices)
            if winner >= 0
        }

    def values(self, case, row, winners, runs):
        value = np.zeros((len(runs), *case.key_shape))
        for tree, run in zip(value, runs, strict=True):
            for key in run.value.values():
                tree[divmod(key, case.key_shape[0])] = 1
        return value


class Custom(Recursion):
    made = gt.Custom
    tractable = False
    tight_support = False
    keyless = False
    slow = True
    has_cuda_kernel = False

    def draw(self, rng, sizes):
        algorithm = _algorithm(rng, int(rng.integers(0, 9)))
        shape = (algorithm.keys,)
        if isinstance(algorithm, algorithms.Crossing):
            shape = (algorithm.rows, algorithm.columns)
        settings = {"algorithm": algorithm, "event_dim": len(shape)}
        return shape, settings, sizes.recursion / 60 / max(algorithm.keys, 4)

    def draw_small(self, rng):
        algorithm = _algorithm(rng, 4)
        return (algorithm.keys,), {"algorithm": algorithm, "event_dim": 1}

    def dims(self, settings):
        return settings["event_dim"]

    def keys(self, shape, settings):
        named = np.zeros(int(np.prod(shape, dtype=np.int64)), bool)
        named[list(settings["algorithm"].start()[0])] = True
        return named

    def play(self, case, row):
        racing = np.flatnonzero(case.racing[row]).tolist()
        return lambda choose: interpret(case.settings["algorithm"], racing, choose)

    def decided(self, case, racing, choices, links):
        """Links are the group of each key, then the group that each group extends, then the decision that it adds."""
        keys = case.racing.shape[1]
        groups = (len(links) - keys) // 2
        raced: list[list[int]] = [[] for _ in choices]
        for key in racing:
            group = links[key]
            while group >= 0:
                raced[links[keys + groups + group]].append(key)
                group = links[keys + group]
        return {tuple(members): winner for members, winner in zip(raced, choices, strict=True)}

    def values(self, case, row, winners, runs):
        if hasattr(case.settings["algorithm"], "combine"):
            return np.stack([np.asarray(run.value) for run in runs])
        return oracles.ones(winners, case.racing.shape[1]).reshape(len(winners), *case.key_shape)


def _algorithm(rng: Rng, keys: int) -> Any:
    edges = [(int(u), int(v)) for u, v in rng.integers(0, max(keys, 1), (2 * keys, 2))]
    return [
        lambda: algorithms.First(keys, int(rng.integers(0, keys + 1))),
        lambda: algorithms.Crossing(int(rng.integers(0, 3)), int(rng.integers(0, 4))),
        lambda: algorithms.Merging(tuple(edges), max(keys, 1), int(rng.integers(1, 3))),
        lambda: algorithms.Gaps(keys),
        lambda: algorithms.Apart(tuple(edge for edge in edges if edge[0] != edge[1]), keys),
        lambda: algorithms.Scramble(keys, int(rng.integers(10**6))),
        lambda: algorithms.Scramble(keys, int(rng.integers(10**6))),
    ][rng.integers(7)]()


class BinaryTree(Named):
    made = gt.BinaryTree
    one_to_one = True

    def draw(self, rng, sizes):
        n = vector(rng, sizes)
        return (n,), {}, sizes.affordable(n * n)

    def draw_small(self, rng):
        return (int(rng.integers(2, 6)),), {}

    def changed(self, entry):
        return torch.where(entry == -2, -1, 0)

    def outcome(self, case, noise, hint=None):
        winners, members, parents = oracles.cartesian(noise, case.of_items(case.racing, len(noise)))
        return Outcome(winners, members, parents, np.zeros(len(noise), bool))

    def play(self, case, row):
        racing = np.flatnonzero(case.racing[row]).tolist()

        def run(choose: Choose) -> Run:
            decisions = interpret(algorithms.Gaps(case.racing.shape[1]), racing, choose).decisions
            parents = np.where(case.racing[row], -1, -2)
            for winner, members in decisions:  # a token hangs below the last that it raced against and lost to
                parents[[k for k in members if k != winner]] = winner
            return Run(sorted(decisions), parents)

        return run

    def values(self, case, row, winners, runs):
        return np.stack([run.value for run in runs])


STRUCTURES: dict[str, Description] = {
    "subset": chains.Subset(),
    "permutation": chains.Permutation(),
    "matching": chains.Matching(),
    "spanning-tree": chains.SpanningTree(),
    "sparse-tree": chains.SparseTree(),
    "arborescence": Arborescence(),
    "binary-tree": BinaryTree(),
    "custom": Custom(),
}


def written_out(runs: list[Run], keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Runs as winners (runs, decisions) and members (runs, decisions, keys)."""
    most = max((len(run.decisions) for run in runs), default=0)
    winners, members = np.full((len(runs), most), -1), np.zeros((len(runs), most, keys), bool)
    for i, run in enumerate(runs):
        for b, (winner, raced) in enumerate(run.decisions):
            winners[i, b] = winner
            members[i, b, list(raced)] = True
    return winners, members
