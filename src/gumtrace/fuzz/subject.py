"""A case while it is checked: the distribution, its trace of the given noise, and what the oracle says; and how a
difference between the two is told."""

from collections import Counter
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.oracles import Outcome
from gumtrace.traces.trace import Trace

U = 2.0**-52


class Wrong(Exception):
    """A check that failed.

    Args:
        check: its name.
        message: what was expected and what came.
        item: the first item that is wrong, where it is known.
        show: lines of code, behind those that build the distribution, that show it.
        case: what `show` is about, where it is only a part of the case.
    """

    def __init__(
        self, check: str, message: str, item: int | None = None, show: tuple[str, ...] = (), case: Case | None = None
    ):
        super().__init__(message)
        self.check, self.message, self.item, self.show, self.case = check, message, item, show, case
        self.found_by: Callable | None = None


class Subject:
    """Everything is computed when it is first asked for; `tally` counts the items that each check went through."""

    def __init__(self, case: Case, tally: Counter):
        self.case, self.tally = case, tally
        self.logits = case.leaf()
        self.d = case.build(self.logits)
        self.dtype = self.d.log_rates.dtype
        self.eps = torch.finfo(self.dtype).eps
        self.keys = case.racing.shape[1]

    @cached_property
    def noise(self) -> Tensor:
        return self.case.noise.to(self.case.device)

    @cached_property
    def trace(self) -> Trace:
        return self.d.trace(self.noise)

    @cached_property
    def outcome(self) -> Outcome:
        """The oracle on the given noise."""
        return self.oracle(self.case.noise, self.trace)

    @cached_property
    def x(self) -> np.ndarray:
        """(items, keys) float64."""
        return self.case.of_items(self.case.x)

    @cached_property
    def held(self) -> np.ndarray:
        """The same as sums of rates take them: on CUDA larger ones count as the largest."""
        return np.clip(self.x, -self.largest, self.largest, out=self.x.copy(), where=self.racing)

    @property
    def on_device(self) -> bool:
        """Whether kernels for CUDA serve it, which others do by those for the CPU."""
        return self.case.device != "cpu" and self.case.kind.has_cuda_kernel

    @property
    def largest(self) -> float:
        if not self.on_device:
            return np.inf
        return 2.0**22 if self.dtype == torch.float32 else 2.0**28

    @cached_property
    def rounding(self) -> np.ndarray:
        """(rows,): how far off a difference of logarithms may be where the log-rates are large. From 2^16 on
        CPU kernels keep what is small in a logarithm apart; those for CUDA know ln 2 to so many digits."""
        if not self.on_device:
            return 8 * U * np.minimum(self.size, 2.0**16)
        return (2e-11 if self.dtype == torch.float32 else 8 * U) * np.minimum(self.size, self.largest)

    @cached_property
    def racing(self) -> np.ndarray:
        return self.case.of_items(self.case.racing)

    @cached_property
    def spread(self) -> np.ndarray:
        """(items,): how far apart the log-rates of an item are."""
        return _extent(self.x, self.racing)

    @cached_property
    def size(self) -> np.ndarray:
        """(rows,): the largest log-rate, without its sign."""
        return np.abs(np.where(self.case.racing, self.case.x, 0.0)).max(1, initial=0.0)

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """Code that makes `trace` from the given noise."""
        return (self.case.noise_line(), "trace = d.trace(noise)")

    def oracle(self, noise: Tensor, hint: Trace) -> Outcome:
        g = np.where(self.racing, self.rows(noise), -np.inf)
        return self.case.kind.outcome(self.case, g, hint)

    def rows(self, x: Tensor) -> np.ndarray:
        """(*samples, *batch, ...) as float64 (items, ...), what is behind the items flattened."""
        width = x.shape[len(self.case.samples) + len(self.case.batch) :].numel()
        return x.detach().to("cpu", torch.float64).reshape(self.case.items, width).numpy()

    def each(self, x: Tensor) -> np.ndarray:
        """(*samples, *batch) as (items,)."""
        return self.rows(x)[:, 0]

    def winners(self, trace: Trace) -> np.ndarray:
        width = trace.winners.shape[-1]
        return trace.winners.cpu().reshape(self.case.items, width).numpy()

    def weights(self, *shape: int, seed: int = 0) -> np.ndarray:
        """To sum with; not small, so that no error hides."""
        drawn = np.random.default_rng([self.case.seed, seed]).uniform(0.5, 2, shape)
        return np.where(drawn > 1.25, drawn, -drawn)

    def compare(self, check: str, ours: np.ndarray, expected: np.ndarray, tolerance, show: tuple[str, ...]) -> None:
        """Numbers (items, ...) within a tolerance that broadcasts to them. What does not fit into the dtype may be
        infinite."""
        self.tally[check] += len(ours)
        most = torch.finfo(self.dtype).max
        with np.errstate(invalid="ignore", over="ignore"):
            beyond = (
                (np.abs(expected) > most * (1 - 1e-5))
                & (np.sign(ours) == np.sign(expected))
                & (np.abs(ours) > most / 2)
            )
            bad = ~((np.abs(ours - expected) <= tolerance) | (ours == expected) | beyond)
        if bad.any():
            item = int(flat(bad, len(bad)).any(1).argmax())
            place = tuple(np.argwhere(bad)[np.argwhere(bad)[:, 0] == item][0])
            allowed = float(np.broadcast_to(tolerance, ours.shape)[place])
            message = f"expected {expected[place]!r} at {place[1:]}, within {allowed:.2g}; got {ours[place]!r}"
            raise Wrong(check, f"{message}: {_short(ours[item])} for {_short(expected[item])}", item, show)

    def same(self, check: str, ours: np.ndarray, expected: np.ndarray, show: tuple[str, ...]) -> None:
        """Equal arrays (items, ...)."""
        self.tally[check] += len(ours)
        if ours.shape != expected.shape:
            raise Wrong(check, f"expected shape {expected.shape}, got {ours.shape}", None, show)
        bad = flat(ours != expected, len(ours)).any(1)
        if bad.any():
            item = int(bad.argmax())
            raise Wrong(check, f"expected {_short(expected[item])}, got {_short(ours[item])}", item, show)

    def holds(self, check: str, good: np.ndarray, message: str, show: tuple[str, ...]) -> None:
        """True for all items, (items, ...)."""
        self.tally[check] += len(good)
        bad = ~flat(good, len(good)).all(1)
        if bad.any():
            raise Wrong(check, message, int(bad.argmax()), show)


def flat(x: np.ndarray, items: int) -> np.ndarray:
    """(items, all the rest); reshape does not know -1 where there is nothing."""
    return x.reshape(items, x.size // max(items, 1))


def padded(a: np.ndarray, b: np.ndarray, fill: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Winners or totals (items, decisions) with as many columns as each other."""
    width = max(a.shape[1], b.shape[1])
    a, b = (np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=fill) for x in (a, b))
    return a, b


def _extent(x: np.ndarray, racing: np.ndarray) -> np.ndarray:
    high = np.where(racing, x, -np.inf).max(1, initial=-np.inf)
    low = np.where(racing, x, np.inf).min(1, initial=np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(high >= low, high - low, 0.0)


def _short(x: np.ndarray) -> str:
    text = np.array2string(np.asarray(x), threshold=60, max_line_width=10_000, separator=", ")
    return " ".join(text.split())
