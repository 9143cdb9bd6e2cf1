"""The language of ListOps: prefix expressions such as `[MIN 3 [MED 3 5 4 ] 2 ]`, and trees over all of their tokens.

A token is a number, its place in `VOCABULARY`. `parse` and `evaluate` are for one expression, and simple enough to
check by reading. `heads`, `depths` and `answers` do the same for many at once, rows of a (B, n) array padded with 0.
"""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

# The paper uses the first three. The original files have the others too: the sum and the product modulo ten, and the
# first and the last argument.
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM", "[PM", "[FIRST", "[LAST")
VOCABULARY = ("", *"0123456789", "]", *OPERATORS)
PADDING = 0
CLOSE = VOCABULARY.index("]")  # digits have lower numbers, operators higher ones
ROOT, NO_HEAD = -1, -2  # in place of a head, for the first token and for padding

_NUMBERS = {text: number for number, text in enumerate(VOCABULARY) if text}
_FUNCTIONS: tuple[Callable[[list[int]], int], ...] = (
    min,
    max,
    lambda arguments: int(statistics.median(arguments)),  # of two in the middle their mean, rounded down
    lambda arguments: sum(arguments) % 10,
    lambda arguments: math.prod(arguments) % 10,
    lambda arguments: arguments[0],
    lambda arguments: arguments[-1],
)


class Expression(NamedTuple):
    tokens: np.ndarray  # (n,) uint8
    heads: np.ndarray  # (n,) int16: for each token the place of the operator it hangs from, ROOT for the first
    depth: int  # edges on the longest path from the root: 1 for an operator with digits only, 0 for a digit


def parse(text: str, where: str = "") -> Expression:
    """Read one expression. The round brackets of the original files repeat its structure: they have to be balanced,
    and are left out.

    Args:
        where: the file and the line, for errors. They count tokens and characters from 1.

    >>> parse("( ( ( [MIN 3 ) ( ( ( ( [MED 3 ) 5 ) 4 ) ] ) ) ] )").heads
    array([-1,  0,  0,  2,  2,  2,  2,  0], dtype=int16)
    >>> parse("[MIN 3 [MED ] ]", where="test.tsv, line 7")
    Traceback (most recent call last):
    ...
    ValueError: test.tsv, line 7: column 13, token 4 of 5, ']': the operator before it has no arguments
    """
    words = _words(text, where)
    if not words:
        raise ValueError(_joined(where, "the line has no expression"))
    tokens: list[int] = []
    heads: list[int] = []
    still_open: list[int] = []  # the places of operators
    depth = 0
    for place, (word, _) in enumerate(words):
        if reason := _objection(word, tokens, still_open):
            raise _malformed(where, words, place, reason)
        # An arborescence over all tokens needs a head for a bracket as well, although it is no argument. Its operator
        # is the one choice that adds no depth and leaves each list a star around its operator.
        heads.append(still_open[-1] if still_open else ROOT)
        tokens.append(_NUMBERS[word])
        if tokens[-1] > CLOSE:
            still_open.append(place)
            depth = max(depth, len(still_open))
        elif tokens[-1] == CLOSE:
            still_open.pop()
    if still_open:
        raise _malformed(where, words, still_open[-1], "it is never closed")
    return Expression(np.array(tokens, np.uint8), np.array(heads, np.int16), depth)


def _words(text: str, where: str) -> list[tuple[str, int]]:
    """Each with its column, without round brackets."""
    found = [(match[0], match.start() + 1) for match in re.finditer(r"\S+", text)]
    round_open: list[int] = []  # their columns
    for word, column in found:
        if word == "(":
            round_open.append(column)
        elif word == ")":
            if not round_open:
                raise ValueError(_joined(where, f"column {column}, ')'", "no round bracket is open"))
            round_open.pop()
    if round_open:
        raise ValueError(_joined(where, f"column {round_open[-1]}, '('", "it is never closed"))
    return [(word, column) for word, column in found if word not in ("(", ")")]


def _objection(word: str, tokens: list[int], still_open: list[int]) -> str:
    """What is wrong with a word after these tokens; nothing if it may stand there."""
    if word not in _NUMBERS:
        return "unknown"
    if tokens and not still_open:
        return "the expression ends before it"
    if word == "]" and not still_open:
        return "no operator is open"
    if word == "]" and tokens[-1] > CLOSE:
        return "the operator before it has no arguments"
    return ""


def _malformed(where: str, words: list[tuple[str, int]], place: int, reason: str) -> ValueError:
    word, column = words[place]
    return ValueError(_joined(where, f"column {column}, token {place + 1} of {len(words)}, {word!r}", reason))


def _joined(*parts: str) -> str:
    return ": ".join(filter(None, parts))


def unparse(tokens: Sequence[int] | np.ndarray) -> str:
    """The expression as text.

    >>> unparse(parse("( ( [MAX 1 ) ] )").tokens)
    '[MAX 1 ]'
    """
    return " ".join(VOCABULARY[token] for token in tokens if token != PADDING)


def evaluate(tokens: Sequence[int] | np.ndarray) -> int:
    """The value of one expression, as `parse` returns it.

    >>> evaluate(parse("[MIN 3 [MED 3 5 4 ] 2 ]").tokens)
    2
    """
    lists: list[list[int]] = [[]]  # the arguments so far: of the outside, and of each operator that is open
    operators: list[int] = []
    for token in np.asarray(tokens).tolist():
        if token > CLOSE:
            operators.append(token)
            lists.append([])
        elif token == CLOSE:
            arguments = lists.pop()
            lists[-1].append(_FUNCTIONS[operators.pop() - CLOSE - 1](arguments))
        elif token != PADDING:
            lists[-1].append(token - 1)
    return lists[0][0]


def depths(tokens: np.ndarray) -> np.ndarray:
    """(B,), of the expressions in (B, n)."""
    return _levels(tokens)[0].max(1, initial=0)


def heads(tokens: np.ndarray) -> np.ndarray:
    """(B, n) int16: where the head of each token of (B, n) is; ROOT for first tokens, NO_HEAD for padding.

    >>> heads(np.stack([parse("[MAX 1 [MIN 2 ] ]").tokens, np.array([3, 0, 0, 0, 0, 0])]))
    array([[-1,  0,  0,  2,  2,  0],
           [-1, -2, -2, -2, -2, -2]], dtype=int16)
    """
    still_open, level = _levels(tokens)
    found = np.where(tokens == PADDING, NO_HEAD, ROOT).astype(np.int16)
    places = np.arange(tokens.shape[1], dtype=np.int16)
    for depth in range(1, int(still_open.max(initial=0)) + 1):
        opened = np.where((tokens > CLOSE) & (still_open == depth), places, 0)  # (B, n)
        np.copyto(found, np.maximum.accumulate(opened, axis=1), where=level == depth)  # the last one before
    return found


def answers(tokens: np.ndarray) -> np.ndarray:
    """(B,) int64: the values of the expressions in (B, n), from the innermost operators to the outermost."""
    still_open, level = _levels(tokens)
    head = heads(tokens) + tokens.shape[1] * np.arange(len(tokens))[:, None]  # a place in the flattened array
    value = tokens.astype(np.int64) - 1  # right for digits
    for depth in range(int(still_open.max(initial=0)), 0, -1):
        argument = (level == depth) & (tokens != CLOSE)
        # Arguments of one operator lie together: between them no other operator of this depth is open.
        operators, starts = np.unique(head[argument], return_index=True)
        value.flat[operators] = _apply(tokens.flat[operators], value[argument], starts)
    return value[:, 0].copy()  # a view would keep all of it, in memory and in files


def _levels(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, n) both: how many operators are open after a token, and how many the token itself hangs below."""
    opens, closes = tokens > CLOSE, tokens == CLOSE
    still_open = np.cumsum(opens.astype(np.int8) - closes, axis=1, dtype=np.int16)
    return still_open, still_open - opens + closes


def _apply(operators: np.ndarray, arguments: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The values, (k,), of k operators whose arguments stand one list after the other."""
    sizes = np.diff(starts, append=len(arguments))
    # Arguments are digits, so how often each occurs says all but their order.
    cells = np.repeat(10 * np.arange(len(starts)), sizes) + arguments
    counts = np.bincount(cells, minlength=10 * len(starts)).reshape(-1, 10)
    up_to = counts.cumsum(1)

    def ranked(rank: np.ndarray | int) -> np.ndarray:
        """The argument with so many before it in order, (k,)."""
        return (up_to <= np.reshape(rank, (-1, 1))).sum(1)

    digits = np.arange(10)
    exponents = np.where(counts > 4, (counts - 1) % 4 + 1, counts)  # last digits of powers repeat after four
    results = (
        ranked(0),
        ranked(sizes - 1),
        (ranked((sizes - 1) // 2) + ranked(sizes // 2)) // 2,
        counts @ digits % 10,
        (digits**exponents % 10).prod(1) % 10,
        arguments[starts],
        arguments[starts + sizes - 1],
    )
    return np.choose(operators - (CLOSE + 1), results)
