"""What a structure is to the fuzzer, in a few plain words: sizes to draw, which keys race, when it can be completed,
its algorithm, its value, how it is built. All of them are in `structures`."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from gumtrace.fuzz import oracles
from gumtrace.fuzz.numbers import literal
from gumtrace.fuzz.oracles import Outcome
from gumtrace.fuzz.recursions import Choose, Run, interpret
from gumtrace.fuzz.sizes import Rng, Sizes
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace

if TYPE_CHECKING:
    from gumtrace.fuzz.cases import Case

Settings = dict[str, Any]


class Sum(NamedTuple):
    """What is added up, what it makes, and what it should."""

    name: str
    ours: np.ndarray
    expected: np.ndarray
    exact: bool = True  # else at most so much


class Description:
    """Rows are items of the batch; arrays have one line for each."""

    ordered = True  # decisions come in an order; else they are compared as sets
    tractable = True  # it has `log_prob` of a value
    one_to_one = False  # that is the log-probability of the one trace with the value
    tight_support = True  # no value stays in the support with one entry changed
    keyless = True  # an item may have no keys
    slow = False  # the library runs it in Python, item by item
    has_cuda_kernel = True

    def draw(self, rng: Rng, sizes: Sizes) -> tuple[tuple[int, ...], Settings, float]:
        """The shape of the keys, the settings, and how many items are worth their time."""
        raise NotImplementedError

    def draw_small(self, rng: Rng) -> tuple[tuple[int, ...], Settings]:
        """Of an item with few traces."""
        raise NotImplementedError

    def by_item(self, rng: Rng, batch: tuple[int, ...], settings: Settings) -> Settings:
        """Settings that may differ from item to item."""
        return settings

    def cuts(self, shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """What can be left out to make an item smaller: an index, and the dimensions from which it goes."""
        for index in reversed(range(shape[0] if shape else 0)):
            yield index, tuple(range(-len(shape), 0))

    def sums(self, case: "Case", x: np.ndarray) -> Iterator[Sum]:
        """The sums that the polytope fixes, of soft values (rows, *event)."""
        return iter(())

    def changed(self, entry: Tensor) -> Tensor:
        """The first entry of values, made wrong."""
        return 1 - entry

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


def arguments(settings: Settings) -> str:
    return "".join(f", {name}={literal(x)}" for name, x in settings.items())


class Named(Description):
    """A class of the library that takes logits first and all settings by name."""

    made: Callable[..., Structure]

    def build(self, logits, settings, **more):
        return type(self).made(logits, **settings, **more)

    def call(self, settings, case):
        return f"gt.{type(self).made.__name__}(logits{arguments(settings)})"


class Chain(Named):
    """One race after another, of all keys that are left."""

    def steps(self, case: "Case") -> np.ndarray:
        return case.sizes

    def leave(self, case: "Case") -> oracles.Leave:
        return oracles.winner_leaves

    def reference(self, case: "Case", row: int) -> Any:
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
        reference = self.reference(case, row)
        return lambda choose: interpret(reference, racing, choose)

    def values(self, case, row, winners, runs):
        return self.value(case, winners, np.repeat(case.racing[row : row + 1], len(winners), 0))
