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
    same_algorithms,
    starting_keys,
)
from gumtrace.structures.replay import Choose, every_run
from gumtrace.structures.runs import NOT_OURS, combined, pack, pad_to_one_size, replays, valid_links
from gumtrace.structures.support import IndicatorSupport
from gumtrace.structures.words import Words
from gumtrace.traces.trace import Layout, Trace, indicator


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
        to_value = partial(combined, value_shape=self.event_shape) if self._combines else indicator
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
            lost = tuple(broken.nonzero()[0])
            self._check_replay(trace[lost] if lost else trace)
            anew = super().conditional(trace, generator=generator)
            g = torch.where(broken[(..., *[None] * self._key_dim)], anew, g)
        self._warn_of_broken(~self.trace(g).equals(trace), g.dtype)
        return g

    def _check_replay(self, trace: Trace) -> None:
        """That a trace which was lost is one that the algorithm would make again."""
        ((run, same),) = replays(trace, self._algorithms)
        check_repeatable(self._algorithms[run.number], set(run.group), run)
        if not same:
            raise ValueError(NOT_OURS)

    def _makes(self, trace: Trace) -> Tensor | bool:
        """(*S) bool: whether the algorithm can make these traces, of keys that race here; it makes its own."""
        if same_algorithms(self._algorithms, trace.layout.algorithms):
            return True
        made = [same for _, same in replays(trace, self._algorithms)]
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
        return super()._stack_traces(pad_to_one_size(traces), batch_shape)

    def _is_complete(self, trace: Trace):
        raise ValueError("Custom: only the algorithm knows which runs are possible when other keys race")

    def _check_trace(self, trace: Trace) -> None:
        super()._check_trace(trace)
        if self._validate_args and not torch.as_tensor(self._makes(trace), device="cpu").all():
            raise ValueError(NOT_OURS)

    def _valid_links(self, trace: Trace) -> bool:
        return valid_links(trace, self._numbers)

    def _pack(self, runs: list[Run], shape: torch.Size) -> Trace:
        return pack(runs, self._layout, shape, self._x.device, self._owner)


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
