"""Subsets of keys that are on the ranks of a process group: each races its own, and their first k race once more.

stop:  k keys were chosen        split:  one race of all keys left, on all ranks
map:   the winner leaves         combine:  the winners that are here
"""

import zlib
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from gumtrace.kernels import geometry, ops
from gumtrace.kernels.geometry import NOT_A_NUMBER, OK, STUCK, SubsetShardGeometry
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.replay import Choose
from gumtrace.traces import sharded
from gumtrace.traces.process_group import Ranks
from gumtrace.traces.trace import Layout, Trace

SAME = 1e-4  # losses of two ranks that differ by less, relative to the largest, differ by rounding


class ShardedSubset(Structure):
    """A k-subset of keys that are split over the ranks of a process group, in the order of the ranks: a `Subset` of
    which every rank has its piece.

    From the same seed the trace is that of `Subset`, bit for bit: `trace.winners` are numbers among all keys. Logits,
    noise and values are the pieces (*B, d) of this rank. All methods but `expand` and `item` exchange numbers, O(k) for
    each row and none of them the size of d: all ranks have to call them, in the same order. Draws come from the
    generator of rank 0.

    Log-probabilities are those of the whole subset, the same on all ranks. Each calls `backward` on the loss that they
    all have, and gets the gradient for its own logits.

    Args:
        logits: (*B, d), d and mask of this rank: they may differ between ranks, B and the dtype may not. On the CPU.
        k: how many, an int.
        group: of torch.distributed, one that carries CPU tensors; the default group for None.
        mask, validate_args: as of all structures, see `gumtrace.structures.Structure`.
        lengths: only None: keys in the padding are masked on the ranks that have them.
    """

    settings = ("k",)
    is_sharded = True
    has_enumerate_support = False
    k: int

    def __init__(
        self,
        logits: Tensor,
        k: int,
        *,
        group: Any = None,
        mask: Tensor | None = None,
        lengths: None = None,
        validate_args: bool | None = None,
    ):
        self._ranks = Ranks("ShardedSubset", group)
        init = partial(super().__init__, logits, 1, mask, None, validate_args)

        def prepare():
            self.k = _checked_k(k)
            if lengths is not None:
                raise TypeError("ShardedSubset: it takes no lengths; pass mask=, False at the keys of the padding here")
            checks.logits("ShardedSubset", logits, 1)
            if hasattr(logits, "to_local"):
                raise TypeError("ShardedSubset: logits must be the piece of this rank: logits.to_local() of a DTensor")
            if logits.device.type != "cpu":
                raise NotImplementedError(f"ShardedSubset: logits must be on the CPU, got {logits.device}")
            init()
            facts = {
                "k": self.k,
                "the batch shape": tuple(self.batch_shape),
                "the dtype": str(self._x.dtype),
                "validate_args": self._validate_args,
            }
            return facts, (self.key_shape[0], not bool(self.racing.all())), None

        _, told = self._ranks.agree("ShardedSubset", prepare)
        sizes = [size for size, _ in told]
        total = sum(sizes)
        if self.k > total:
            raise ValueError(f"ShardedSubset: k = {self.k} is more than the {total} keys that all ranks have together")
        if total > checks.MOST_KEYS:
            most = checks.MOST_KEYS
            raise ValueError(f"ShardedSubset: {total} keys are more than {most}, the most that traces can number")
        self._layout = self._lay_out(sizes[self._ranks.rank], sum(sizes[: self._ranks.rank]), total)
        if self._validate_args and any(idle for _, idle in told):
            racing = self._ranks.total(self.racing.sum(-1).flatten())
            self._raise_for_status(torch.where(racing < self.k, STUCK, OK))

    def _trace_layout(self, key_shape):
        return self._lay_out(key_shape[0], 0, key_shape[0]), None  # until the other ranks told how many they have

    def _lay_out(self, keys: int, first: int, total: int) -> Layout:
        self._shard = geometry.subset_shard(keys, self.k, first, total)
        whole = geometry.subset(total, self.k)
        return Layout(type(self), whole, torch.Size([keys]), self.logits.dtype, partial(_piece, self._shard))

    @property
    def _geometry(self) -> SubsetShardGeometry:
        return self._shard

    @property
    def offset(self) -> int:
        """The number, among all keys, of the first one here."""
        return self._shard.first

    @property
    def total_keys(self) -> int:
        """How many keys there are on all ranks."""
        return self._shard.total

    @property
    def support(self):  # type: ignore[override]
        """0/1 over the keys of this rank: how many ones are elsewhere is not known here."""
        return constraints.independent(constraints.boolean, 1)

    # Sampling --------------------------------------------------------------------------------------

    def perturb(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Tensor:
        """Perturbed logits of the keys here: a piece of what `Subset` draws."""
        shape, seed = self._agree_on_draw("perturb", sample_shape, generator)
        g = ops.perturb(self._geometry, self._rows(), shape.numel(), seed)
        return g.reshape(shape + self.key_shape)

    def sample_trace(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Trace:
        shape, seed = self._agree_on_draw("sample_trace", sample_shape, generator)
        found = ops.sample(self._geometry, self._rows().detach(), None, shape.numel(), seed)
        return self._merge(shape, *found)

    def _agree_on_draw(self, call: str, sample_shape, generator: torch.Generator | None) -> tuple[torch.Size, Tensor]:
        def prepare():
            shape, _ = self._items(sample_shape)
            return {"sample + batch shape": tuple(shape)}, ops.new_seed(self._x.device, generator).tolist(), shape

        shape, (seed, *_) = self._ranks.agree(call, prepare)
        return shape, torch.tensor(seed)

    def trace(self, noise: Tensor) -> Trace:
        """Run the algorithm on given perturbed logits, of which every rank passes its piece."""

        def prepare():
            rows, shape = self._noise_rows(noise)
            return {"the shape of noise before its keys": tuple(shape)}, (), (rows, shape)

        (rows, shape), _ = self._ranks.agree("trace", prepare)
        return self._merge(shape, *ops.trace(self._geometry, rows, None))

    def _merge(self, shape: torch.Size, winners: Tensor, links: Tensor, status: Tensor) -> Trace:
        """The trace, from the first k of every rank with their G, in one exchange."""
        keys = torch.where(winners < 0, -1, winners.long() + self.offset)
        best = links.reshape(len(links), self.k, 2).view(torch.int64)[..., 0]
        told = self._ranks.gather(torch.cat([status[:, None].long(), keys, best], -1))
        # Ranks stand side by side in their order, and a stable sort keeps it: of equal G the lower key is first.
        told = told.transpose(0, 1)  # (items, ranks, 1 + 2 k)
        keys, g = (x.flatten(1) for x in (told[..., 1 : 1 + self.k], told[..., 1 + self.k :]))
        first = g.view(torch.float64).sort(dim=-1, descending=True, stable=True).indices[:, : self.k]
        winners = keys.gather(-1, first).int()
        status = torch.where((winners < 0).any(-1), STUCK, OK)
        status = torch.where((told[..., 0] == NOT_A_NUMBER).any(-1), NOT_A_NUMBER, status)
        return self._finish(shape, winners, winners.new_empty(len(winners), 0), status)

    def conditional(self, trace: Trace, *, generator: torch.Generator | None = None) -> Tensor:
        """G given the trace at the keys here, reparameterised: run again, it gives the trace back."""
        seed = self._agree_on_trace("conditional", trace, generator)
        g = sharded.conditional(self._rows(), self._shard, trace.rows()[0], seed, self._ranks)
        return g.reshape(trace.shape + self.key_shape)

    # Log-probabilities -----------------------------------------------------------------------------

    def trace_log_prob(self, trace: Trace) -> Tensor:
        """log P(T), sample + batch, the same on all ranks."""
        return self.decision_log_prob(trace).sum(-1)

    def decision_log_prob(self, trace: Trace) -> Tensor:
        self._agree_on_trace("decision_log_prob", trace)
        log_prob = sharded.decision_log_prob(self._rows(), self._shard, trace.rows()[0], self._ranks)
        return log_prob.reshape(*trace.shape, self.k)

    def decision_log_totals(self, trace: Trace) -> Tensor:
        self._agree_on_trace("decision_log_totals", trace)
        totals = sharded.decision_log_totals(self._rows(), self._shard, trace.rows()[0], self._ranks)
        return totals.reshape(*trace.shape, self.k)

    def _decision_gains(self, trace: Trace, gains: Tensor):
        raise NotImplementedError(
            "ShardedSubset: gains of keys that did not win are on other ranks; take DecisionTerms or TraceREINFORCE"
        )

    def _agree_on_trace(self, call: str, trace: Trace, generator: torch.Generator | None = None) -> Tensor:
        """All ranks have the same trace. Returns a seed."""

        def prepare():
            self._check_trace(trace)
            winners = zlib.crc32(trace.choices.numpy().tobytes())
            facts = {"the shape of the trace": tuple(trace.shape), "the trace (a checksum)": winners}
            if call != "conditional":
                return facts, (), None
            # Its gradient is a sum over ranks: one that computes none would keep the others waiting.
            facts["whether logits need a gradient"] = self._x.requires_grad and torch.is_grad_enabled()
            return facts, ops.new_seed(self._x.device, generator).tolist(), None

        _, (seed, *_) = self._ranks.agree(call, prepare)
        return torch.tensor(seed)

    def log_prob(self, value: Tensor) -> Tensor:
        raise _no_rank_has_all_keys()

    def enumerate_traces(self) -> Trace:
        raise _no_rank_has_all_keys()

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """log p(G) of the noise of all ranks, of which every rank passes its piece."""

        def prepare():
            here = Structure.noise_log_prob(self, noise)
            return {"the shape of noise before its keys": tuple(here.shape)}, (), here

        here, _ = self._ranks.agree("noise_log_prob", prepare)
        return self._ranks.total(here)

    # Objectives ------------------------------------------------------------------------------------

    def sum_ranks(self, x: Tensor) -> Tensor:
        """The sum of x over the ranks, which is the same on all: what an objective does with the part of a loss that it
        has from the keys here. Its gradient is that of each summand.

        Args:
            x: of the same shape on all ranks.
        """

        def prepare():
            return {"the shape of what is summed": tuple(x.shape), "its dtype": str(x.dtype)}, (), None

        self._ranks.agree("sum_ranks", prepare)
        return self._ranks.total(x)

    def _check_losses(self, name: str, loss: Tensor) -> None:
        def prepare():
            return {"the shape of losses": tuple(loss.shape)}, (), None

        self._ranks.agree("losses", prepare)
        told = self._ranks.gather(loss.detach().double()).flatten(1)
        scale = told.nan_to_num(posinf=0.0, neginf=0.0).abs().amax().item() if told.numel() else 0.0
        bad = torch.isclose(told, told[:1], rtol=0.0, atol=SAME * scale, equal_nan=True).logical_not().nonzero()
        if len(bad) > 0:
            rank, place = bad[0].tolist()
            index = tuple(int(i) for i in np.unravel_index(place, tuple(loss.shape)))
            raise ValueError(
                f"{name}: the loss {index} is {told[0, place]:.6g} on rank 0 and {told[rank, place]:.6g} on rank "
                f"{rank}; the objective must return the loss of the whole subset on every rank: dist.sum_ranks adds "
                "what the ranks have of it"
            )

    # Description -----------------------------------------------------------------------------------

    def _decision_counts(self) -> Tensor:
        return torch.tensor(self.k)

    def _check_feasible(self) -> None:
        """What this rank can see: that its logits are numbers."""
        status = ops.check_logits(self._geometry, self._rows().detach())
        self._raise_for_status(status * (status == NOT_A_NUMBER))

    def _infeasible_message(self) -> str:
        return "has fewer than k keys that race, on all ranks together"

    def _run_with(self, choose: Choose):
        raise _no_rank_has_all_keys()


def _no_rank_has_all_keys() -> NotImplementedError:
    return NotImplementedError(
        "ShardedSubset: no rank has all keys, which this needs; take trace_log_prob (T-REINFORCE needs no more), or "
        "Subset for few keys"
    )


def _checked_k(k) -> int:
    k = checks.integer("ShardedSubset", "k", k)
    if k < 0:
        raise ValueError(f"ShardedSubset: k must be at least 0, got {k}")
    return k


def _piece(shard: SubsetShardGeometry, trace: Trace) -> Tensor:
    """0/1 over the keys here: 1 = winner."""
    winners = sharded.winners_here(shard, trace.rows()[0])
    rows = ops.indicator(shard, winners, trace.layout.dtype)
    return rows.reshape(*trace.shape, shard.keys)
