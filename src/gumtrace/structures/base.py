"""What all structures share: masks and ragged batches, shapes, noise, traces, log-probabilities, conditionals,
validation. `Description` has what differs."""

import warnings
from typing import Any

import torch
from torch import Tensor

from gumtrace.kernels import ops
from gumtrace.kernels.geometry import NOT_A_NUMBER
from gumtrace.kernels.operators import is_traced
from gumtrace.structures import checks
from gumtrace.structures.distinct import WithoutReplacement
from gumtrace.traces import formula
from gumtrace.traces.trace import Trace, _Owner


class Structure(WithoutReplacement):
    """A random structure: the output of an algorithm that reads exponential noise through argmins only.

    Args common to all structures:
        logits: log λ of every key; a higher one wins earlier. -inf: the key does not race.
        mask: bool, the shape of logits: keys that may race.
        lengths: integers (*B,): node or token counts of ragged items; what is behind them is padding and may hold
            anything.
        validate_args: check logits and masks now, results, values and traces later, as torch.distributions does. Checks
            synchronise with the device. With False, values are not read on a GPU, and what would have been an error is
            an incomplete trace or a log-probability without meaning. On the CPU most checks remain: losses and the
            support of values go unchecked, logits are checked when a structure is drawn. torch.compile and torch.func
            need it off: values cannot be read while they trace.

    Methods that draw take a `sample_shape`, () by default: the shape of independent draws for each item. It comes first
    in what they return, then the batch shape, then the shape of a value or of the keys: "sample + batch + keys" below.
    With `generator=` the same draws come again.

    Make a distribution anew in each step of training, as those of torch: with a mask or lengths, of half logits, and of
    several graphs it keeps the logits as they were when it was made.
    """

    def __init__(
        self,
        logits: Tensor,
        event_dim: int,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ):
        name = type(self).__name__
        checks.logits(name, logits, event_dim)
        self.logits = logits
        self._key_dim = event_dim
        shape = torch.Size(logits.shape)  # of some subclasses of Tensor, a tuple
        batch_shape, key_shape = shape[: len(shape) - event_dim], shape[len(shape) - event_dim :]
        x = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        self._validate_args = type(self)._validate_args if validate_args is None else validate_args
        self._lengths = checks.lengths(name, lengths, logits, batch_shape, self._max_length(key_shape), self._may_sync)
        for keep in (checks.mask(name, mask, logits), self._unpadded_mask(key_shape)):
            if keep is not None:
                x = torch.where(keep, x, -torch.inf)
        self._x = x  # (*B, *keys): the logits of keys that race, -inf for the others
        super().__init__(batch_shape, self._value_shape(key_shape), validate_args=validate_args)
        self._layout, sizes = self._trace_layout(key_shape)
        self._sizes = None if sizes is None else sizes.to(torch.int32)
        self._owner = _Owner()
        if self._validate_args:
            self._check_feasible()

    @property
    def arg_constraints(self) -> dict:
        """None for torch to check: padding may hold anything, and the errors here name the item."""
        return {}

    # Shapes ----------------------------------------------------------------------------------------

    def expand(self, batch_shape, _instance=None):
        new: Structure = self._get_checked_instance(type(self), _instance)  # type: ignore[assignment]
        new.__dict__.update(self.__dict__)
        new._batch_shape = torch.Size(batch_shape)
        key_shape = self._x.shape[len(self.batch_shape) :]
        new.logits = self.logits.expand(*new._batch_shape, *key_shape)
        new._x = self._x.expand(*new._batch_shape, *key_shape)
        for name in self._per_item:
            per_item = getattr(self, name)
            if per_item is not None and per_item.dim() > 0:
                setattr(new, name, per_item.expand(new._batch_shape))
        return new

    def with_log_rates(self, x: Tensor) -> "Structure":
        """The same distribution with other log-rates x (*batch, *keys) for the keys that race.

        What estimators need: the gradient with respect to the rates themselves, apart from the graph behind them, and
        many copies of one item (batch dimensions that x has in front of the old ones are new).
        """
        checks.ends_in(type(self).__name__, "log-rates", x.shape, self.key_shape)
        if x.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{type(self).__name__}: log-rates must be float32 or float64, got {x.dtype}")
        new = self.expand(x.shape[: x.dim() - len(self.key_shape)])
        new.logits = new._x = torch.where(self._x.isneginf(), -torch.inf, x)
        return new

    def item(self, index: tuple[int, ...]) -> "Structure":
        """One item of the batch, unbatched; with fewer indices than batch dimensions, a part of the batch."""
        new = self.expand(self.batch_shape)
        new._batch_shape = self.batch_shape[len(index) :]
        new._owner = _Owner()  # traces of the batch are not traces of the item
        new.logits, new._x = self.logits[index], self._x[index]
        for name in self._per_item:
            per_item = getattr(self, name)
            if per_item is not None and per_item.dim() > 0:
                setattr(new, name, per_item[index])
        return new

    def _rows(self) -> Tensor:
        return self._as_rows(self._x)

    def _as_rows(self, x: Tensor) -> Tensor:
        if x.dim() == 2 and self._key_dim == 1:
            return x  # a view of the same shape would be one more node for autograd, here and below
        return x.reshape(self.batch_shape.numel(), self._geometry.keys)

    def _row_sizes(self) -> Tensor | None:
        return None if self._sizes is None else self._sizes.reshape(-1)

    @property
    def _geometry(self) -> Any:
        """Of the keys that are here, as kernels take it: that of the traces, unless other keys are elsewhere."""
        return self._layout.geometry

    def _items(self, sample_shape) -> tuple[torch.Size, int]:
        shape = torch.Size(sample_shape) + self.batch_shape
        return shape, checks.items(type(self).__name__, shape, self._x.device)

    @property
    def log_rates(self) -> Tensor:
        """(*B, *keys): the logits as the algorithm sees them: float32 or float64, -inf under masks and in padding."""
        return self._x

    # Sampling --------------------------------------------------------------------------------------

    def perturb(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Tensor:
        """Perturbed logits G = logits + Gumbel(0, 1), sample + batch + keys; gradients flow to the logits."""
        shape, items = self._items(sample_shape)
        return formula.perturb(self._rows(), self._geometry, items, generator).reshape(shape + self.key_shape)

    def trace(self, noise: Tensor) -> Trace:
        """Run the algorithm on given perturbed logits."""
        return self._trace_rows(*self._noise_rows(noise))

    def _noise_rows(self, noise: Tensor) -> tuple[Tensor, torch.Size]:
        """Given perturbed logits as kernels take them, (items, keys), and sample + batch."""
        shape = self._check_noise(noise)
        if self._validate_args:
            lost = (noise.isneginf() & self.racing).flatten(-len(self.key_shape)).any(-1).flatten().nonzero()
            if len(lost) > 0:
                where = checks.item_name(int(lost[0]), self.batch_shape)
                raise ValueError(f"{type(self).__name__}: the noise of {where} is -inf at a key that races")
        noise = torch.where(self._x.isneginf(), -torch.inf, noise.detach().to(self._x.dtype))
        return noise.reshape(shape.numel(), self._geometry.keys), shape

    def sample_trace(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Trace:
        """Traces of independent runs."""
        shape, items = self._items(sample_shape)
        rows = self._as_rows(self._x.detach())
        seed = ops.new_seed(rows.device, generator)
        return self._finish(shape, *ops.sample(self._geometry, rows, self._row_sizes(), items, seed))

    def sample(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Tensor:  # type: ignore[override]
        """Structures of independent runs."""
        return self.sample_trace(sample_shape, generator=generator).value

    def conditional(self, trace: Trace, *, generator: torch.Generator | None = None) -> Tensor:
        """G given the trace, reparameterised: run again, it gives the trace back."""
        self._check_trace(trace)
        g, failed = formula.conditional(self._rows(), self._row_sizes(), trace, generator)
        if self._may_sync:
            self._warn_of_broken(failed, g.dtype)
        return g.reshape(trace.shape + self.key_shape)

    def _warn_of_broken(self, broken: Tensor, dtype: torch.dtype) -> None:
        if broken.any():
            warnings.warn(
                f"{type(self).__name__}.conditional: {int(broken.sum())} of {broken.numel()} draws do not give their "
                f"trace back: it is too improbable under these logits to be told apart in {dtype}",
                RuntimeWarning,
                stacklevel=3,
            )

    def observe(self, winners: Tensor) -> Trace:
        """The trace of observed winners, for structures that are rankings: `Subset` and `Permutation`."""
        raise NotImplementedError(
            f"{type(self).__name__}.observe: only Subset and Permutation make traces of observed winners; run the "
            "algorithm on noise in the observed order, d.trace(noise)"
        )

    @property
    def mode(self) -> Tensor:
        """The structure of the noiseless run."""
        return self.trace(self._x.detach()).value

    def _trace_rows(self, rows: Tensor, shape: torch.Size) -> Trace:
        return self._finish(shape, *ops.trace(self._geometry, rows, self._row_sizes()))

    def _finish(self, shape: torch.Size, winners: Tensor, links: Tensor, status: Tensor) -> Trace:
        if self._may_sync and status.any():
            self._raise_for_status(status)
        if len(shape) != 1:
            geometry = self._layout.geometry
            winners, links = winners.reshape(*shape, geometry.winner_slots), links.reshape(*shape, geometry.link_slots)
        return Trace(self._layout, winners, links, self._owner)

    # Log-probabilities -----------------------------------------------------------------------------

    def trace_log_prob(self, trace: Trace) -> Tensor:
        """log P(T), sample + batch."""
        self._check_trace(trace)
        log_prob, shape = formula.trace_log_prob(self._rows(), trace), trace.shape
        return log_prob if len(shape) == 1 else log_prob.reshape(shape)

    def decision_log_totals(self, trace: Trace) -> Tensor:
        """log Λ of every decision, sample + batch + decisions; 0 where there was none."""
        self._check_trace(trace)
        return formula.decision_log_totals(self._rows(), trace).reshape(*trace.shape, trace.layout.geometry.decisions)

    def decision_log_prob(self, trace: Trace) -> Tensor:
        """log P of every decision given those before it, sample + batch + decisions; 0 where there was none. Their sum
        is `trace_log_prob`."""
        rows = self._rows()
        return self._decisions(trace, rows, torch.zeros_like(rows))[0]

    def _decision_gains(self, trace: Trace, gains: Tensor) -> tuple[Tensor, Tensor]:
        """`decision_log_prob`, and the mean gain of the keys that raced in each decision, weighted by their chances to
        win it; 0 where there was none. Both are differentiable to the logits, for fixed gains (*batch, *keys)."""
        if not checks.broadcasts(gains.shape, self._x.shape):
            wrong = f"gains of shape {tuple(gains.shape)} do not fit batch + keys {tuple(self._x.shape)}"
            raise ValueError(f"{type(self).__name__}: {wrong}")
        rows = self._rows()
        gains = torch.where(self.racing, gains.detach().to(rows.dtype), 0.0)  # padding may hold anything
        if self._validate_args:
            checks.finite_gains(type(self).__name__, gains, self.batch_shape)
        return self._decisions(trace, rows, gains.reshape(rows.shape))

    def _decisions(self, trace: Trace, rows: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        self._check_trace(trace)
        both = formula.decisions(rows, gains, trace)  # (items, 2, decisions)
        log_prob, means = both.unbind(1)
        return log_prob.reshape(*trace.shape, both.shape[-1]), means.reshape(*trace.shape, both.shape[-1])

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """log p(G): a product of Gumbel densities over the keys that race."""
        self._check_noise(noise)
        racing = self.racing
        t = torch.where(racing, self._x, 0.0) - torch.where(racing, noise, 0.0)
        t = t.clamp(max=torch.finfo(t.dtype).max)  # inf less its exponential would be nan
        density = torch.where(racing, t - t.exp(), 0.0)
        return density.flatten(-self._key_dim).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log P(X) of the structure, exact. Values broadcast against the batch, as in torch.distributions: the result
        has the shape of both, sample + batch.

        A NotImplementedError where no sum over its traces is known (`Arborescence`, `Custom`, graphs given by their
        edges), a ValueError where the sum would take too long (more than 20 edges or rows); both name another way.
        """
        name = type(self).__name__
        if not self.has_log_prob:
            raise NotImplementedError(
                f"{name}: the probability of a structure sums over all its traces and is intractable here; "
                "use trace_log_prob (T-REINFORCE needs no more), or enumerate_traces for small sizes"
            )
        if isinstance(value, Trace):
            raise TypeError(f"{name}: log_prob takes values, such as trace.value; of a trace, take trace_log_prob")
        checks.ends_in(name, "a value", checks.tensor(name, "a value", value).shape, self.event_shape)
        shape = checks.broadcast(name, "values", value.shape[: value.dim() - len(self.event_shape)], self.batch_shape)
        value = value.expand(shape + self.event_shape)
        at = self if shape[len(shape) - len(self.batch_shape) :] == self.batch_shape else self.expand(shape)
        if self._validate_args:
            at._validate_sample(value)
        return at._value_log_prob(value)

    @property
    def racing(self) -> Tensor:
        """(*B, *keys) bool: the keys that race."""
        return self._x.detach() > -torch.inf

    # Validation ------------------------------------------------------------------------------------

    @property
    def _may_sync(self) -> bool:
        """Whether results may be read: always on the CPU; on another device that synchronises, so only for checks."""
        return self._validate_args or (self.logits.device.type == "cpu" and not is_traced([self.logits]))

    def _check_feasible(self) -> None:
        """No nan among the keys that race, and enough of them for the algorithm to end well."""
        rows = self._rows().detach()
        status = ops.check_logits(self._geometry, rows)
        self._raise_for_status(status * (status == NOT_A_NUMBER))
        if status.any():  # some keys are idle: see whether the others are enough
            self._raise_for_status(ops.trace(self._geometry, rows, self._row_sizes())[2])
        elif self._may_be_infeasible:
            some = slice(None) if self._lengths is not None else slice(1)  # without lengths all items are one graph
            self._raise_for_status(ops.trace(self._geometry, rows[some], self._row_sizes())[2])

    def _raise_for_status(self, status: Tensor) -> None:
        bad = status.nonzero()
        if len(bad) == 0:
            return
        where = checks.item_name(int(bad[0]), self.batch_shape)
        if status[bad[0]] == NOT_A_NUMBER:
            raise checks.NotFinite(f"{type(self).__name__}: {where} has a nan or +inf among the keys that race")
        raise ValueError(f"{type(self).__name__}: {where} {self._infeasible_message()}")

    def _check_noise(self, noise: Tensor) -> torch.Size:
        name = type(self).__name__
        checks.ends_in(name, "noise", checks.tensor(name, "noise", noise).shape, self.batch_shape + self.key_shape)
        return torch.Size(noise.shape)[: noise.dim() - len(self.key_shape)]

    def _check_trace(self, trace: Trace) -> None:
        if not isinstance(trace, Trace):
            raise TypeError(f"{type(self).__name__}: expected a trace (see sample_trace), got {type(trace).__name__}")
        name = type(self).__name__
        checks.ends_in(name, "a trace", trace.shape, self.batch_shape)
        if trace.made_by(self._owner):
            return
        checks.same_layout(name, self._layout, trace, self._x.device, self._may_sync)
        keys = trace.layout.geometry.keys  # a trace is a public object, and anyone may write into it
        if self._may_sync and not (checks.within(trace.choices, -1, keys) and self._valid_links(trace)):
            raise ValueError(f"{name}: the trace holds numbers that are not keys or decisions")
        expected = self._decision_counts() if self._validate_args else None
        if expected is not None:
            wrong = (self._count_decisions(trace) != expected).flatten().nonzero()
            if len(wrong) > 0:
                where = checks.item_name(int(wrong[0]), self.batch_shape)
                raise ValueError(f"{name}: the trace of {where} belongs to an item of another size")

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"{type(self).__name__}({shapes}, dtype={self.logits.dtype})"
