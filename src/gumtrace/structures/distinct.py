"""Different traces of an item, drawn without replacement: beams and candidate sets.

All traces race, each at the rate of its probability, and the first `count` to arrive are drawn: what stochastic beam
search finds, decision by decision and without a beam. Traces that were not drawn yet lie in branches; see `_Item`.
A structure arrives with the first of its traces, so different structures are found by leaving out repetitions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from gumtrace.kernels import ops
from gumtrace.kernels.geometry import NOT_A_NUMBER, OK
from gumtrace.structures import checks
from gumtrace.structures.finite import Finite, TooManyTraces, group_by_value
from gumtrace.structures.recursion import unrepeatable
from gumtrace.traces.trace import Trace

if TYPE_CHECKING:
    from gumtrace.structures.base import Structure

MOST_TRACES = 2**12  # of an item, to find different structures among


@dataclass(frozen=True)
class Distinct:
    """Different traces of each item, or traces of different structures, first the one that arrived first. No autograd
    state: for a gradient, take `dist.trace_log_prob(drawn.traces)` or `dist.log_prob(drawn.value)`.

    Where an item has fewer than were asked for, `found` is False behind the last one; there the first trace is
    repeated, and its numbers are -inf.
    """

    traces: Trace
    """(count, *batch)."""
    log_prob: Tensor
    """(count, *batch): of the traces, or of the structures."""
    perturbed_log_prob: Tensor
    """(count, *batch): log-probability + Gumbel noise, in descending order: the largest of all."""
    log_rest: Tensor
    """(count, *batch): log of the probability of all that come behind; -inf if there are none. Of traces it is exact
    however little is left, of structures to the precision of the dtype."""
    found: Tensor
    """(count, *batch) bool."""

    @property
    def value(self) -> Tensor:
        """The structures, (count, *batch, *event)."""
        return self.traces.value

    def __len__(self) -> int:
        return len(self.traces)

    def __repr__(self) -> str:
        return f"Distinct(shape={tuple(self.traces.shape)}, found={int(self.found.sum())} of {self.found.numel()})"


class WithoutReplacement(Finite):
    """Draws that are all different."""

    def distinct_traces(self, count: int, *, generator: torch.Generator | None = None) -> Distinct:
        """`count` different traces of each item, (count, *batch), drawn without replacement, with their
        log-probabilities; `found` is False where an item has no more.

        Different traces of a `Permutation` or a `BinaryTree` are different structures. Elsewhere a trace says more than
        its structure, so several of them may give the same one: see `distinct_values`.

        >>> from gumtrace import Permutation
        >>> drawn = Permutation(torch.tensor([0.0, 9.0])).distinct_traces(3)
        >>> drawn.value[:2].sort(0).values, drawn.found
        (tensor([[0, 0],
                [1, 1]]), tensor([ True,  True, False]))
        """
        return distinct_traces(cast(Any, self), count, generator)

    def distinct_values(self, count: int, *, generator: torch.Generator | None = None) -> Distinct:
        """`count` different structures of each item, drawn without replacement, with their log-probabilities; a
        `NotImplementedError` where `log_prob` of a structure is not known.

        A structure arrives with the first of its traces, so traces are drawn until there are enough structures; a
        `TooManyTraces` where the same ones come in thousands of orders.

        >>> from gumtrace import Subset
        >>> Subset(torch.tensor([0.0, 50.0, 50.0]), 2).distinct_values(2).value[0]
        tensor([0., 1., 1.])
        """
        if not self.has_log_prob:
            raise NotImplementedError(
                f"{type(self).__name__}.distinct_values: the probability of a structure sums over all its traces and "
                "is intractable here; distinct_traces draws different traces, of which several may give one structure"
            )
        return distinct_values(cast(Any, self), count, generator)


def distinct_traces(dist: "Structure", count: int, generator: torch.Generator | None) -> Distinct:
    """By a kernel where there is one, otherwise item by item in Python."""
    _check_count(f"{type(dist).__name__}.distinct_traces", count)
    return _draw(dist, count, ops.new_seed(dist.log_rates.device, generator))


def distinct_values(dist: "Structure", count: int, generator: torch.Generator | None) -> Distinct:
    """The first trace of each structure to arrive. More traces are drawn until there are enough structures; the first
    of them stay the same."""
    name = f"{type(dist).__name__}.distinct_values"
    _check_count(name, count)
    seed, traces = ops.new_seed(dist.log_rates.device, generator), count
    drawn = _draw(dist, traces, seed)
    new = _is_new(drawn)
    while bool(((new.sum(0) < count) & drawn.found[-1]).any()):
        if traces >= MOST_TRACES:
            short = int(((new.sum(0) < count) & drawn.found[-1]).flatten().nonzero()[0])
            raise TooManyTraces(
                f"{name}: of the first {traces:,} traces of {checks.item_name(short, dist.batch_shape)}, which differ, "
                f"only {int(new.sum(0).flatten()[short])} have different structures: the same ones come in too many "
                "orders; distinct_traces draws different traces"
            )
        traces = min(4 * traces, MOST_TRACES)
        drawn = _draw(dist, traces, seed)
        new = _is_new(drawn)
    return _keep(dist, drawn, new, count)


def _check_count(name: str, count: int) -> None:
    if checks.integer(name, "count", count) < 1:
        raise ValueError(f"{name}: count must be at least 1, got {count}")


def _is_new(drawn: Distinct) -> Tensor:
    """(traces, *batch) bool: the first trace of its structure."""
    dims = drawn.found.dim()
    values = drawn.value.reshape(drawn.found.numel(), drawn.value.shape[dims:].numel())
    item = torch.arange(len(values), device=values.device) % max(drawn.found[0].numel(), 1)
    first, _ = group_by_value(torch.cat([item[:, None].double(), values.double()], -1))
    new = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    new[first] = True
    return new.reshape(drawn.found.shape) & drawn.found


def _keep(dist: "Structure", drawn: Distinct, new: Tensor, count: int) -> Distinct:
    """The new ones of each item; where there are fewer than `count`, its first trace again."""
    place = (~new).byte().argsort(dim=0, stable=True)[:count]
    found = new.gather(0, place)
    place = torch.where(found, place, 0)
    slots = (drawn.traces.choices, drawn.traces.links)
    choices, links = (x.gather(0, place[..., None].expand(*place.shape, x.shape[-1])) for x in slots)
    trace = Trace(drawn.traces.layout, choices, links, dist._owner)
    with torch.no_grad():
        log_prob = torch.where(found, dist.log_prob(trace.value), -torch.inf)
    rest = (-log_prob.double().exp().cumsum(0)).clamp(min=-1.0).log1p().to(log_prob.dtype)
    more = found.roll(-1, 0)
    more[-1] = found[-1] & (drawn.log_rest[-1] > -torch.inf)
    perturbed = torch.where(found, drawn.perturbed_log_prob.gather(0, place), -torch.inf)
    return Distinct(trace, log_prob, perturbed, torch.where(more, rest, -torch.inf), found)


def _draw(dist: "Structure", count: int, seed: Tensor) -> Distinct:
    return _by_kernel(dist, count, seed) if dist.has_distinct_kernel else by_recursion(dist, count, seed)


def _by_kernel(dist: "Structure", count: int, seed: Tensor) -> Distinct:
    shape = torch.Size([count]) + dist.batch_shape
    rows = dist._rows().detach()
    winners, links, *numbers, status = ops.distinct(dist._geometry, rows, dist._row_sizes(), shape.numel(), seed)
    wrong = torch.where(status == NOT_A_NUMBER, status, OK)  # STUCK: there are no more
    log_prob, perturbed, log_rest = (x.reshape(shape) for x in numbers)
    trace = dist._finish(shape, winners, links, wrong)
    return Distinct(trace, log_prob, perturbed, log_rest, (status == OK).reshape(shape))


def by_recursion(dist: "Structure", count: int, seed: Tensor) -> Distinct:
    """For every structure: its algorithm runs with choices in place of argmins, a trace at a time."""
    streams = (Random(f"{seed.tolist()} {i}") for i in range(dist.batch_shape.numel()))  # whatever `count` is
    items = [_Item(dist.item(index), next(streams)) for index in product(*map(range, dist.batch_shape))]
    for item in items:
        item.draw(count)
    runs = [item.runs[s if s < len(item.runs) else 0] for s in range(count) for item in items]
    shape = torch.Size([count]) + dist.batch_shape

    def numbers(which: int) -> Tensor:
        rows = [[*item.numbers[which], *[-math.inf] * (count - len(item.runs))] for item in items]
        flat = torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(len(items), count).T
        return flat.to(dist.log_rates).reshape(shape)

    there = [[s < len(item.runs) for item in items] for s in range(count)]
    found = torch.tensor(there, dtype=torch.bool, device=dist.log_rates.device).reshape(shape)
    return Distinct(dist._pack_runs(runs, shape), numbers(0), numbers(1), numbers(2), found)


@dataclass
class _Branch:
    """Traces that begin with the same winners, and whose next one is not among those taken; their log-probability."""

    winners: list[int]
    fields: list[dict[int, float]]  # the log-rates of the keys that race in their decisions, and in the next one
    taken: frozenset[int]
    log_mass: float


@dataclass
class _Item:
    """One item, and the traces drawn of it. Branches hold all others, each once."""

    dist: "Structure"
    random: Random
    runs: list[Any] = field(default_factory=list)
    numbers: tuple[list[float], ...] = field(default_factory=lambda: ([], [], []))  # see `Distinct`

    def draw(self, count: int) -> None:
        branches, rest, log_time = [_Branch([], [], frozenset(), 0.0)], 0.0, -math.inf
        while branches and len(self.runs) < count:
            log_time = _log_sum([log_time, self._log_exponential() - rest])
            chosen = self._pick({i: branch.log_mass for i, branch in enumerate(branches)})
            run, log_prob, new = self._follow(branches.pop(chosen))
            branches += new
            rest = _log_sum([branch.log_mass for branch in branches])
            self.runs.append(run)
            for row, number in zip(self.numbers, (log_prob, -log_time, rest), strict=True):
                row.append(number)

    def _follow(self, branch: _Branch) -> tuple[Any, float, list[_Branch]]:
        """A run in a branch, its log-probability, and the branches that the others fall into."""
        decisions: list[tuple[int, dict[int, float]]] = []  # the winner, and the log-rates of all that raced

        def choose(keys: Sequence[int], log_rates: Sequence[float]) -> int:
            step, racing = len(decisions), {key: log_rates[key] for key in keys}
            if step < len(branch.fields) and racing != branch.fields[step]:
                raise ValueError(unrepeatable("a hook"))  # only an algorithm of a user's can do so
            if step < len(branch.winners):
                winner = branch.winners[step]
            else:
                taken = branch.taken if step == len(branch.winners) else ()
                winner = self._pick({key: x for key, x in racing.items() if key not in taken})
            decisions.append((winner, racing))
            return winner

        run = self.dist._run_on_rates(choose)
        log_prob, new = 0.0, []
        winners, fields = [winner for winner, _ in decisions], [racing for _, racing in decisions]
        for step, (winner, racing) in enumerate(decisions):
            total = _log_sum(racing.values())
            if step >= len(branch.winners):
                taken = {winner} | (branch.taken if step == len(branch.winners) else set())
                if left := [x for key, x in racing.items() if key not in taken]:
                    log_mass = log_prob + _log_sum(left) - total
                    new.append(_Branch(winners[:step], fields[: step + 1], frozenset(taken), log_mass))
            log_prob += racing[winner] - total
        return run, log_prob, new

    def _pick(self, log_weights: dict[int, float]) -> int:
        """One, with a chance proportional to its weight: the first to arrive."""
        return max(log_weights, key=lambda i: log_weights[i] - self._log_exponential())

    def _log_exponential(self) -> float:
        return math.log(max(self.random.expovariate(1.0), 1e-300))


def _log_sum(x: Any) -> float:
    x = list(x)
    top = max(x, default=-math.inf)
    return top if top == -math.inf else top + math.log(sum(math.exp(each - top) for each in x))
