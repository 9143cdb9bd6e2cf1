"""Any algorithm that reads noise through argmins only, written as four hooks: the paper's general algorithm over a
batch.

stop, split, map, combine:  the user's
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from gumtrace.kernels import ops
from gumtrace.kernels.geometry import ATTEMPTS, NOT_A_NUMBER, recursion
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.recursion import (
    Algorithm,
    Run,
    argmin_of,
    check_repeatable,
    checked_algorithms,
    combines,
    execute,
    execute_along,
    same_algorithms,
    starting_keys,
)
from gumtrace.structures.replay import Choose, every_run
from gumtrace.structures.support import IndicatorSupport
from gumtrace.structures.words import Words
from gumtrace.traces.trace import Layout, Trace, indicator

NOT_OURS = (
    "Custom: the algorithm does not make this trace: it is of another one, it was written into, or a hook depends on "
    "more than its arguments"
)


class Custom(Structure):
    """A structure of one's own: samples, log-probabilities of traces and E | T follow from the algorithm's hooks, and
    with them the estimators that need neither a relaxation nor `log_prob` of the structure.

    Args:
        logits: (*B, *event); keys are indices into the flattened event.
        algorithm: an object with `start`, `stop`, `split`, `map` and optionally `combine`; see
            `gumtrace.structures.recursion.Algorithm`. Or a list of them, one for each item of the last batch dimension:
            all with `combine`, for values of one shape, or none.
        event_dim: how many of the last dimensions of logits are the event; by default all of them, but for one if
            there are several algorithms.
        mask, lengths, validate_args: as of all structures, see `gumtrace.structures.Structure`.

    The value is what `combine` returns, as a tensor; without `combine` it is 0/1 over the keys, 1 = winner. Each item
    runs in Python: right for any size, fast for none. Keys that do not race are taken out of K before the first step.

    >>> class First:  # the first key to arrive, as a categorical variable
    ...     def start(self):
    ...         return range(3), None
    ...     def stop(self, K, R):
    ...         return not K
    ...     def split(self, K, R):
    ...         return [K]
    ...     def map(self, K, R, winners):
    ...         return [], None
    >>> d = Custom(torch.tensor([0.0, 3.0, 1.0]), First())
    >>> d.mode
    tensor([0., 1., 0.])
    >>> torch.allclose(d.trace_log_prob(d.enumerate_traces()), d.logits.log_softmax(-1))
    True
    >>> class FirstOfTwo(First):
    ...     def start(self):
    ...         return range(2), None
    >>> Custom(torch.tensor([[0.0, 3.0, 9.0], [0.0, 3.0, 9.0]]), [First(), FirstOfTwo()]).mode
    tensor([[0., 0., 1.],
            [0., 1., 0.]])
    """

    _per_item = ("_sizes", "_lengths", "_numbers")
    story = "gumtrace.explore.rows:IndependentSetStory"

    def __init__(
        self,
        logits: Tensor,
        algorithm: Algorithm | list[Algorithm] | tuple[Algorithm, ...],
        *,
        event_dim: int | None = None,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args=None,
    ):
        several = isinstance(algorithm, (list, tuple))
        self.algorithm = algorithm
        self._algorithms = checked_algorithms(algorithm if isinstance(algorithm, (list, tuple)) else [algorithm])
        self._unchecked = True  # whether its hooks are repeatable: once on the logits, and once on noise
        if event_dim is None:
            event_dim = logits.dim() - several if torch.is_tensor(logits) else 0
        if event_dim < 0:
            raise ValueError(f"Custom: event_dim must not be negative, got {event_dim}")
        checks.logits("Custom", logits, event_dim + several)
        batch_shape = logits.shape[: logits.dim() - event_dim]
        if several and len(self._algorithms) != batch_shape[-1]:
            raise ValueError(
                f"Custom: {len(self._algorithms)} algorithms do not fit the last dimension of batch shape "
                f"{tuple(batch_shape)}"
            )
        numbers = torch.arange(len(self._algorithms), device="cpu")
        self._numbers = numbers.expand(batch_shape) if several else numbers[0]
        starting = starting_keys(self._algorithms, logits, event_dim)  # (algorithms, *event)
        starting = starting if several else starting[0]
        mask = checks.mask("Custom", mask, logits)
        super().__init__(logits, event_dim, starting if mask is None else mask & starting, lengths, validate_args)

    @property
    def support(self):  # type: ignore[override]
        if self._combines:
            raise NotImplementedError("Custom: only the algorithm knows which values its combine can give")
        return IndicatorSupport(self._key_dim)

    @classmethod
    def words(cls, trace, names=None):
        return CustomWords(trace, names)

    @property
    def is_indicator(self) -> bool:  # type: ignore[override]
        return not self._combines

    @property
    def _combines(self) -> bool:
        return any(map(combines, self._algorithms))

    def _value_shape(self, key_shape):
        if not self._combines:
            return key_shape
        rows = self._x.detach().reshape(-1, key_shape.numel()) if self._x.numel() else []
        shapes = []
        for number, algorithm in enumerate(self._algorithms):  # an item of each
            noise = _noise(rows[number]) if len(rows) else np.zeros(key_shape.numel())
            shapes.append(self._run(noise, number).value(algorithm).shape)
        if len(set(shapes)) > 1:
            other = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
            wrong = f"of shape {tuple(shapes[other])}, algorithm 0 {tuple(shapes[0])}"
            raise ValueError(f"Custom: combine of algorithm {other} gives a value {wrong}: all must have one shape")
        return shapes[0]

    def _trace_layout(self, key_shape):
        geometry = recursion(key_shape.numel())
        combined = partial(_combined, value_shape=self.event_shape)
        to_value = combined if self._combines else indicator
        layout = Layout(type(self), geometry, key_shape, self.logits.dtype, to_value, self._algorithms)
        return layout, None

    def _check_feasible(self) -> None:
        status = ops.check_logits(self._geometry, self._rows().detach())
        self._raise_for_status(status * (status == NOT_A_NUMBER))
        if self.batch_shape.numel() > 0:
            for number, row in enumerate(self._rows()[: len(self._algorithms)]):
                self._run(_noise(row), number, check=True)

    def _run(self, noise: np.ndarray, number: int, check: bool = False) -> Run:
        """The run of the algorithm of this number."""
        racing = set(np.flatnonzero(noise > -np.inf).tolist())
        run = replace(execute(self._algorithms[number], racing, argmin_of(noise)), number=number)
        if check:
            check_repeatable(self._algorithms[number], racing, run)
        return run

    def sample_trace(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Trace:
        """Traces of independent runs, one after the other."""
        shape, items = self._items(sample_shape)
        seed = ops.new_seed(self._x.device, generator)
        return self._trace_rows(ops.perturb(self._geometry, self._rows().detach(), items, seed), shape)

    def _trace_rows(self, rows: Tensor, shape: torch.Size) -> Trace:
        noise = [_noise(row) for row in rows]
        status = ops.check_logits(self._geometry, rows)
        self._raise_for_status(status * (status == NOT_A_NUMBER))
        check, self._unchecked = self._unchecked and self._validate_args, False
        numbers = self._numbers.expand(shape).flatten().tolist()
        first = len(self._algorithms) if check else 0  # a run of each
        runs = [self._run(row, number, i < first) for i, (row, number) in enumerate(zip(noise, numbers, strict=True))]
        return self._pack(runs, shape)

    def conditional(self, trace: Trace, *, generator: torch.Generator | None = None) -> Tensor:
        """G given the trace. An algorithm may subtract in any way, so each draw is run again, and those that lost
        their trace are redrawn."""
        g = super().conditional(trace, generator=generator)
        for _ in range(ATTEMPTS):
            broken = ~self.trace(g).equals(trace)
            if not broken.any():
                return g
            self._check_replay(trace, int(broken.flatten().nonzero()[0]))
            anew = super().conditional(trace, generator=generator)
            g = torch.where(broken[(..., *[None] * self._key_dim)], anew, g)
        self._warn_of_broken(~self.trace(g).equals(trace), g.dtype)
        return g

    def _check_replay(self, trace: Trace, item: int) -> None:
        """That a trace which was lost is one that the algorithm would make again."""
        run, same = self._replay(trace, item)
        check_repeatable(self._algorithms[run.number], set(run.group), run)
        if not same:
            raise ValueError(NOT_OURS)

    def _replay(self, trace: Trace, item: int) -> tuple[Run, bool]:
        """The run along the winners of a trace, and whether it is the same."""
        keys = self._layout.geometry.keys
        winners, links = (rows[item].tolist() for rows in trace.rows())
        groups = {key: group for key, group in enumerate(links[:keys]) if group > -2}
        run = execute_along(self._algorithms[links[-1]], set(groups), winners)
        same = run.winners == [winner for winner in winners if winner >= 0] and run.group == groups
        return replace(run, number=links[-1]), same

    def _makes(self, trace: Trace) -> Tensor:
        """(*S) bool: whether the algorithm can make these traces, of keys that race here; it makes its own."""
        if same_algorithms(self._algorithms, trace.layout.algorithms):
            return torch.ones(trace.shape, dtype=torch.bool, device=trace.device)
        made = [self._replay(trace, item)[1] for item in range(trace.shape.numel())]
        return torch.tensor(made, dtype=torch.bool, device=trace.device).reshape(trace.shape)

    def enumerate_traces(self) -> Trace:
        """Every trace of an unbatched distribution: all ways that the hooks can go."""
        if self.batch_shape:
            raise ValueError(
                f"Custom.enumerate_traces works on one item, this batch has shape {tuple(self.batch_shape)}"
            )
        racing, runs = self._racing_keys(), list(every_run(self._run_with))
        for i, run in enumerate(runs):
            check_repeatable(self._algorithms[run.number], racing, run, copy=i == 0)
        return self._pack(runs, torch.Size([len(runs)]))

    def _run_with(self, choose: Choose) -> Run:
        number = int(self._numbers)
        run = execute(self._algorithms[number], self._racing_keys(), lambda part: choose(sorted(part)))
        return replace(run, number=number)

    def _racing_keys(self) -> set[int]:
        """Of an unbatched item."""
        return set(self.racing.flatten().nonzero().flatten().tolist())

    def _stack_traces(self, traces: Sequence[Trace], batch_shape: torch.Size) -> Trace:
        """Of items whose runs differ in their numbers of decisions and groups."""
        keys = self._layout.geometry.keys
        counts = [(trace.links.shape[-1] - keys - 1) // 2 for trace in traces]
        groups, decisions = max(counts), max(trace.choices.shape[-1] for trace in traces)
        layout = replace(self._layout, geometry=recursion(keys, decisions, groups))
        padded = []
        for trace, count in zip(traces, counts, strict=True):
            of_key, *of_groups, number = trace.links.split([keys, count, count, 1], -1)
            of_groups = [pad(part, (0, groups - count), value=-1) for part in of_groups]
            links = torch.cat([of_key, *of_groups, number], -1)
            choices = pad(trace.choices, (0, decisions - trace.choices.shape[-1]), value=-1)
            padded.append(Trace(layout, choices, links))
        return super()._stack_traces(padded, batch_shape)

    def _is_complete(self, trace: Trace):
        raise ValueError("Custom: only the algorithm knows which runs are possible when other keys race")

    def _check_trace(self, trace: Trace) -> None:
        super()._check_trace(trace)
        if self._validate_args and not bool(self._makes(trace).all()):
            raise ValueError(NOT_OURS)

    def _valid_links(self, trace: Trace) -> bool:
        """The group of each key, then for each group the one it extends, an earlier one, and its decision; last the
        number of the algorithm."""
        g = trace.layout.geometry
        groups = (g.link_slots - g.keys) // 2
        of_key, parent, decision, number = trace.links.split([g.keys, groups, groups, 1], -1)
        return (
            checks.within(of_key, -2, groups)
            and checks.within(parent, -1, groups)
            and bool((parent < torch.arange(groups, device=trace.device)).all())
            and checks.within(decision, -1, g.decisions)
            and bool((number[..., 0].cpu() == self._numbers).all())
        )

    def _pack(self, runs: list[Run], shape: torch.Size) -> Trace:
        """Runs differ in their numbers of decisions and groups: short ones are filled up with -1."""
        keys = self._layout.geometry.keys
        decisions = max((len(run.winners) for run in runs), default=0)
        groups = max((len(run.parents) for run in runs), default=0)
        winners = np.full((len(runs), decisions), -1, np.int32)
        links = np.full((len(runs), keys + 2 * groups + 1), -1, np.int32)
        links[:, :keys] = -2  # does not race
        for i, run in enumerate(runs):
            winners[i, : len(run.winners)] = run.winners
            links[i, list(run.group)] = list(run.group.values())
            links[i, keys : keys + len(run.parents)] = run.parents
            links[i, keys + groups : keys + groups + len(run.decisions)] = run.decisions
            links[i, -1] = run.number
        layout = replace(self._layout, geometry=recursion(keys, decisions, groups))
        device = self._x.device
        return Trace(
            layout,
            torch.from_numpy(winners).reshape(*shape, decisions).to(device),
            torch.from_numpy(links).reshape(*shape, links.shape[1]).to(device),
            self._owner,
        )


class CustomWords(Words):
    """Keys are indices into an event of any shape."""

    def key(self, key):
        shape = self.trace.layout.event_shape
        if len(shape) <= 1:
            return self.name(key)
        return f"({', '.join(self.name(int(i)) for i in np.unravel_index(key, shape))})"

    def race(self, decision, keys):
        return ", ".join(map(self.key, keys))


def _noise(row: Tensor) -> np.ndarray:
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            "Custom: torch.func cannot transform its hooks, which run in Python; differentiate with backward or "
            "torch.autograd.grad, and batch with logits of more dimensions"
        )
    return row.detach().cpu().contiguous().numpy()


def _combined(trace: Trace, value_shape: torch.Size) -> Tensor:
    """The values of a batch of runs, by running the algorithm along the recorded winners."""
    keys, algorithms = trace.layout.geometry.keys, trace.layout.algorithms
    values = []
    for winners, links in zip(*(rows.tolist() for rows in trace.rows()), strict=True):
        if not 0 <= links[-1] < len(algorithms):
            raise ValueError(NOT_OURS)
        algorithm = algorithms[links[-1]]
        racing = {key for key, group in enumerate(links[:keys]) if group > -2}
        run = execute_along(algorithm, racing, winners)
        if run.winners != [winner for winner in winners if winner >= 0]:
            raise ValueError(NOT_OURS)
        values.append(run.value(algorithm))
    others = [value for value in values if value.shape != values[0].shape]
    if others:
        shapes = f"{tuple(values[0].shape)} and {tuple(others[0].shape)}"
        raise ValueError(f"Custom: combine returned values of shapes {shapes}: all must have one shape")
    stacked = torch.stack(values) if values else torch.empty(0, *value_shape)
    return stacked.reshape(trace.shape + stacked.shape[1:]).to(trace.device)
