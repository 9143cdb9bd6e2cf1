"""Random expressions of a given depth, drawn as ListOps draws them, with two changes.

ListOps makes an expression from its root downwards: what comes next is an operator in one case of four and a digit
otherwise, operators have from two to five arguments, and at the greatest depth there are only digits.

- Five arguments are too few: at depth 1 the least length of the paper, ten, takes eight. So the greatest number is
  drawn, first and for each expression apart, between two and what the greatest length holds. Depth 1 then reaches all
  lengths, and deeper expressions are narrow or wide.
- The least of many digits is nearly always 0, and the greatest 9: one could tell the value from the first operator. So
  each operator draws two different digits, and its own digits lie between them, both included.

What is too long, too short or not deep enough is thrown away. numpy draws many expressions at once, one token of each
at a time: nothing has to be compiled, and it takes seconds.
"""

from typing import Any

import numpy as np

from gumtrace_experiments.listops.expressions import CLOSE, OPERATORS, PADDING, depths

SAMPLED = OPERATORS[:3]  # min, max and med
NESTED = 0.25  # the share of operators among arguments; as in ListOps
CHUNK = 20_000  # expressions at a time: their state stays in the cache
PATIENCE = 50  # chunks without a new expression, before it is an error that there are none


def shortest(depth: int) -> int:
    """The least number of tokens: two arguments at each depth, one of them nested.

    >>> [shortest(depth) for depth in (1, 2, 5)]
    [4, 7, 16]
    """
    return 3 * depth + 1


def draw(count: int, depth: int, lengths: tuple[int, int], rng: np.random.Generator, bar: Any) -> np.ndarray:
    """(count, longest) uint8: expressions of this depth, no two alike, in the order they came in."""
    kept = np.empty((0, lengths[1]), np.uint8)
    in_vain = 0
    while len(kept) < count:
        fresh = propose(CHUNK, depth, lengths[1], rng)
        fresh = fresh[np.count_nonzero(fresh, axis=1) >= lengths[0]]
        found = distinct(np.concatenate([kept, fresh[depths(fresh) == depth]]))[:count]
        in_vain = 0 if len(found) > len(kept) else in_vain + 1
        if in_vain == PATIENCE:
            raise ValueError(
                f"listops: found only {len(kept)} different expressions of depth {depth} with {lengths[0]} to "
                f"{lengths[1]} tokens, not {count}"
            )
        bar.update(len(found) - len(kept))
        kept = found
    return kept


def propose(count: int, depth: int, longest: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` expressions of at most this depth; those that end in time, (B, longest) uint8."""
    rows = np.arange(count)
    widest = rng.integers(2, longest - 1, count)  # at most longest - 2 arguments
    level = np.zeros(count, np.int64)  # how many operators are open
    # Of the operator that is open at a level; level 0 is the outside, which lacks one argument, the whole expression.
    lacking = np.zeros((depth + 1, count), np.int64)
    lacking[0] = 1
    low, high = np.zeros_like(lacking), np.zeros_like(lacking)
    tokens = np.empty((longest, count), np.uint8)
    for token in tokens:
        wanting = lacking[level, rows] > 0
        lacking[level, rows] -= wanting
        opens = wanting & (level < depth) & ((rng.random(count) < NESTED) | (level == 0))
        closes = ~wanting & (level > 0)
        digits = 1 + rng.integers(low[level, rows], high[level, rows], endpoint=True)
        token[:] = np.select([closes, wanting], [CLOSE, digits], PADDING)
        level += opens
        level -= closes

        new = np.flatnonzero(opens)
        place = level[new], new
        token[new] = rng.integers(CLOSE + 1, CLOSE + 1 + len(SAMPLED), len(new))
        lacking[place] = rng.integers(2, widest[new], endpoint=True)
        low[place], high[place] = _two_digits(len(new), rng)
    ended = (level == 0) & (lacking[0] == 0)
    return np.ascontiguousarray(tokens[:, ended].T)


def _two_digits(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the higher, (count,) both, of two different digits."""
    one = rng.integers(0, 10, count)
    other = (one + rng.integers(1, 10, count)) % 10
    return np.minimum(one, other), np.maximum(one, other)


def distinct(rows: np.ndarray) -> np.ndarray:
    """The first of all equal rows of a contiguous array, in their order.

    >>> distinct(np.array([[2, 1], [1, 1], [2, 1]], np.uint8)).tolist()
    [[2, 1], [1, 1]]
    """
    _, first = np.unique(rows.view(np.dtype((np.void, rows.shape[1]))), return_index=True)
    return rows[np.sort(first)]
