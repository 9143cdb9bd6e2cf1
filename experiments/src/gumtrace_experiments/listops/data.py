"""The data of the ListOps experiment: expressions, their values, and the trees behind them.

`generate` makes the paper's sets, `load` keeps them in a file, `read` reads an original file and `read_folder` a
training set and a test set of original files.
"""

import lzma
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gumtrace.extras import require
from gumtrace.structures import checks
from gumtrace_experiments.listops import expressions
from gumtrace_experiments.listops.expressions import OPERATORS, VOCABULARY, Expression, evaluate, parse
from gumtrace_experiments.listops.sampling import SAMPLED, distinct, draw, shortest
from gumtrace_experiments.store import caches

FRESH = 10  # of so many expressions of an original training set one is for validation
FORMAT = 1  # of cache files; a change of what is in them, or of how it is computed, makes it one more


class Split(NamedTuple):
    """Expressions of up to n tokens. Their integers are short: all of them stay in memory, and batches are widened."""

    tokens: Tensor  # (B, n) uint8, places in VOCABULARY; 0 is padding
    lengths: Tensor  # (B,) int64
    answers: Tensor  # (B,) int64, digits
    heads: Tensor  # (B, n) int16, the place of each token's operator; -1 for the root, -2 for padding

    def to(self, device: torch.device | str) -> "Split":
        return Split(*(tensor.to(device) for tensor in self))


@dataclass(frozen=True)
class ListOps:
    """The three splits. They have no expression in common."""

    train: Split
    valid: Split
    test: Split

    def to(self, device: torch.device | str) -> "ListOps":
        return ListOps(self.train.to(device), self.valid.to(device), self.test.to(device))


def generate(
    sizes: Sequence[int] = (100_000, 20_000, 20_000),
    seed: int = 0,
    lengths: tuple[int, int] = (10, 50),
    depths: Sequence[int] = (1, 2, 3, 4, 5),
    progress: bool = True,
) -> ListOps:
    """Draw different expressions, in each split as many of every depth. `sampling` says how.

    Args:
        sizes: how many expressions to train, validate and test with.
        lengths: the least and the greatest number of tokens, brackets included.
        progress: show a bar if stderr is a terminal.

    >>> generate(sizes=(10, 5, 5)).train.tokens.shape
    torch.Size([10, 50])
    """
    sizes, seed, lengths, depths = _checked(sizes, seed, lengths, depths)
    parts: list[list[np.ndarray]] = [[], [], []]  # of each split, for every depth
    with require("tqdm", "cli").tqdm(total=sum(sizes), desc="listops", disable=None if progress else True) as bar:
        for rank, depth in enumerate(depths):
            shares = [(size + len(depths) - 1 - rank) // len(depths) for size in sizes]
            # Streams of their own: the expressions of a depth do not depend on which other depths there are.
            found = draw(sum(shares), depth, lengths, np.random.default_rng([seed, depth]), bar)
            for part, rows in zip(parts, np.split(found, np.cumsum(shares)[:-1]), strict=True):
                part.append(rows)
    mix = np.random.default_rng([seed, 0])
    return ListOps(*(_split(mix.permutation(np.concatenate(part))) for part in parts))


def load(
    folder: str | Path,
    sizes: Sequence[int] = (100_000, 20_000, 20_000),
    seed: int = 0,
    lengths: tuple[int, int] = (10, 50),
    depths: Sequence[int] = (1, 2, 3, 4, 5),
    progress: bool = True,
) -> ListOps:
    """What `generate` returns, kept in a file of `folder` that is named after the arguments."""
    sizes, seed, lengths, depths = _checked(sizes, seed, lengths, depths)
    arguments = {"sizes": sizes, "seed": seed, "lengths": lengths, "depths": depths}
    counts, ends, levels = ("-".join(map(str, numbers)) for numbers in (sizes, lengths, depths))
    path = Path(folder) / f"listops-{ends}-tokens-depth-{levels}-{counts}-seed-{seed}.pt"
    names = ("train", "valid", "test")
    if caches.exists(path):
        like = {name: _empty(size, lengths[1])._asdict() for name, size in zip(names, sizes, strict=True)}
        found = [Split(**split) for split in caches.read(path, FORMAT, arguments, like).values()]
        caches.require(path, all(map(_possible, found)), "expressions")
        return ListOps(*found)
    made = generate(**arguments, progress=progress)
    caches.write(path, FORMAT, arguments, {name: getattr(made, name)._asdict() for name in names})
    return made


def read(path: str | Path, operators: Collection[str] = OPERATORS, max_length: int | None = None) -> Split:
    """An original file, `.tsv` or `.tsv.xz`: one expression a line, after its value and a tab.

    Every line is parsed and its value checked. How many are left out is reported on stderr.

    Args:
        operators: expressions with others are left out; `sampling.SAMPLED` are the paper's.
        max_length: longer expressions are left out, and the others padded to it. None: all are padded to the longest.
    """
    if unknown := [name for name in operators if name not in OPERATORS]:
        raise ValueError(f"listops: unknown operator {unknown[0]!r}: choose from {' '.join(OPERATORS)}")
    others = [VOCABULARY.index(name) for name in OPERATORS if name not in operators]
    found = [expression.tokens for expression in _lines(Path(path))]
    kept = [tokens for tokens in found if not np.isin(tokens, others).any()]
    kept = [tokens for tokens in kept if max_length is None or len(tokens) <= max_length]
    if not kept:
        raise ValueError(f"{path}: none of {len(found)} expressions is left")
    if left_out := len(found) - len(kept):
        names = " ".join(name for name in OPERATORS if name in operators)
        limit = f" and at most {max_length} tokens" if max_length is not None else ""
        says = f"{path}: {left_out:,} of {len(found):,} expressions are left out; the others have only {names}{limit}"
        print(says, file=sys.stderr)
    padded = np.zeros((len(kept), max_length or max(map(len, kept))), np.uint8)
    for row, tokens in zip(padded, kept, strict=True):
        row[: len(tokens)] = tokens
    return _split(padded)


def read_folder(folder: str | Path, longest: int) -> ListOps:
    """The original training set and test set in a folder, files train*.tsv and test*.tsv (or .tsv.xz), one of each:
    their expressions of the paper's operators and of at most `longest` tokens, padded to that.

    There is no validation set among them. Every tenth expression to train with becomes one, after those were left out
    that occur twice, or in the test set.
    """
    files = [_only(Path(folder), part) for part in ("train", "test")]  # both of them, before one is read
    train, test = (read(file, SAMPLED, longest) for file in files)
    both = np.concatenate([test.tokens.numpy(), train.tokens.numpy()])
    rest = distinct(both)[len(distinct(test.tokens.numpy())) :]
    if len(rest) < 2:
        raise ValueError(f"{files[0]}: of its expressions only {len(rest)} can be trained and validated with")
    valid = np.arange(len(rest)) % FRESH == 0
    return ListOps(_split(rest[~valid]), _split(rest[valid]), test)


def _empty(size: int, longest: int) -> Split:
    """The dtypes and shapes of a split alone."""
    dtypes = (torch.uint8, torch.int64, torch.int64, torch.int16)
    shapes = ((size, longest), (size,), (size,), (size, longest))
    return Split(*(torch.empty(shape, dtype=x, device="meta") for shape, x in zip(shapes, dtypes, strict=True)))


def _possible(split: Split) -> bool:
    """Whether all numbers are within their bounds; they are places in tables."""
    ends = (len(VOCABULARY) - 1, split.tokens.shape[-1], 9, split.tokens.shape[-1] - 1)
    starts = (0, 1, 0, expressions.NO_HEAD)
    within = [((low <= x) & (x <= high)).all() for x, low, high in zip(split, starts, ends, strict=True)]
    return bool(torch.stack(within).all())


def _only(folder: Path, part: str) -> Path:
    found = sorted({*folder.glob(f"{part}*.tsv"), *folder.glob(f"{part}*.tsv.xz")})
    if len(found) > 1:
        raise ValueError(f"listops: found several files {part}*.tsv: {', '.join(map(str, found))}; keep one")
    if not found:
        raise ValueError(
            f"listops: {folder} has no {part}*.tsv (or .tsv.xz): give the folder of the original files as --data, or "
            "leave out --original to train on generated expressions"
        )
    return found[0]


def _lines(path: Path) -> Iterator[Expression]:
    opener = lzma.open if path.suffix == ".xz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:  # with a byte order mark or without
            for number, line in enumerate(file, 1):
                text = str(line).rstrip("\n")
                if not text and not file.read().strip():  # nothing comes after it
                    return
                yield _row(text, f"{path}, line {number}")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged after line {number}: {error}") from error


def _row(line: str, where: str) -> Expression:
    answer, tab, _ = line.partition("\t")
    if not tab or len(answer) != 1 or answer not in "0123456789":
        raise ValueError(f"{where}: expected a digit, a tab and an expression, got {line[:40]!r}")
    expression = parse("  " + line[2:], where)  # columns are those of the line
    if (value := evaluate(expression.tokens)) != int(answer):
        raise ValueError(f"{where}: the value of the expression is {value}, not {answer}")
    return expression


def _split(tokens: np.ndarray) -> Split:
    lengths = np.count_nonzero(tokens, axis=1)
    arrays = (tokens, lengths, expressions.answers(tokens), expressions.heads(tokens))
    return Split(*map(torch.from_numpy, arrays))


def _checked(
    sizes: Sequence[int], seed: int, lengths: Sequence[int], depths: Sequence[int]
) -> tuple[list[int], int, tuple[int, int], list[int]]:
    """The arguments as Python's own integers, the only ones that a file read with weights_only may hold."""
    sizes = [checks.integer("listops", "a size", size) for size in sizes]
    lengths = [checks.integer("listops", "a length", length) for length in lengths]
    depths = [checks.integer("listops", "a depth", depth) for depth in depths]
    seed = checks.integer("listops", "seed", seed)
    if len(sizes) != 3 or min(sizes) < 1:
        raise ValueError(f"listops: sizes must be three positive numbers: train, valid, test; got {sizes}")
    if len(lengths) != 2 or not 1 <= lengths[0] <= lengths[1]:
        raise ValueError(f"listops: lengths must be the least and the greatest one, got {lengths}")
    if not depths or min(depths) < 1 or len(set(depths)) < len(depths):
        raise ValueError(f"listops: depths must be different positive numbers, got {depths}")
    if seed < 0:
        raise ValueError(f"listops: seed must not be negative, got {seed}")
    if shortest(max(depths)) > lengths[1]:
        needed = shortest(max(depths))
        raise ValueError(f"listops: depth {max(depths)} needs at least {needed} tokens, got lengths up to {lengths[1]}")
    return sizes, seed, (lengths[0], lengths[1]), depths
