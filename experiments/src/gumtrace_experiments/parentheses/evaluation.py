"""How good a model of sequences is: a bound on their likelihood, and what becomes of the sequences that it writes.

Nothing here knows what an order is: a model gives log P(x, z), a proposal gives orders z with their log-probabilities,
and a function writes sequences.
"""

import hashlib
import io
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gumtrace_experiments.parentheses.brackets import BALANCED, KINDS, balance
from gumtrace_experiments.parentheses.data import Split, can_make
from gumtrace_experiments.seeds import derive_seed
from gumtrace_experiments.store.archives import Unreadable, is_plain, unpacked
from gumtrace_experiments.store.files import write

Propose = Callable[[int], tuple[Tensor, Tensor]]  # how many to orders (K, B, ...) and their log-probabilities (K, B)
Sample = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]  # how many to tokens (N, n) and lengths (N,)

WRITTEN = "written.pt"  # in the folder of a run, while sequences are being written
BATCH = 10_000  # sequences written at once
MOST = 20  # draws for each different sequence that is wanted: a model that repeats itself comes to an end, too


def iwae(log_joint: Callable[[Tensor], Tensor], propose: Propose, samples: int, at_once: int) -> Tensor:
    """(B,) float64: log (1/K) Σ_k P(x, z_k) / Q(z_k), in expectation a lower bound of log P(x) that rises with K
    (Burda et al. 2016).

    Args:
        log_joint: log P(x, z), (K, B), of orders.
        samples: K.
        at_once: orders of an item that are in memory at a time.
    """
    total: Tensor | None = None
    for start in range(0, samples, at_once):
        orders, log_q = propose(min(at_once, samples - start))
        part = (log_joint(orders).double() - log_q.double()).logsumexp(0)
        total = part if total is None else torch.logaddexp(total, part)
    if total is None:
        raise ValueError(f"samples must be at least 1, got {samples}")
    return total - math.log(samples)


def perplexity(log_likelihood: float) -> float:
    """From the log-likelihood a token: of all sequences together, their ends not counted as tokens."""
    return math.exp(min(-log_likelihood, 700.0))  # a model that has diverged must not overflow


# Sequences that a model writes ------------------------------------------------------------------------


def shares(written: Split, train: Split, longest: int) -> dict[str, float]:
    """What different sequences are, as shares of them: `old`, in the training set; `new_correct`, balanced and not
    there; `wrong`, and by the kind of error. `possible` is the part of `new_correct` that the generator of the data
    could have made.
    """
    known = set(_rows(train))
    old = torch.tensor([row in known for row in _rows(written)])
    index = torch.arange(len(old), device=written.tokens.device).split(BATCH)
    code, made = (torch.cat(parts).cpu() for parts in zip(*(_judged(written.batch(i)) for i in index), strict=True))
    new = ~old & (code == BALANCED)
    possible = new & made & (written.lengths <= longest).cpu()
    found = {"old": old, "new_correct": new, "possible": possible, "wrong": code != BALANCED}
    found |= {f"wrong_{kind}": code == i for i, kind in enumerate(KINDS) if i != BALANCED}
    return {name: which.double().mean().item() for name, which in found.items()}


def _judged(some: Split) -> tuple[Tensor, Tensor]:
    """A code for each sequence, and whether the generator can make it."""
    return balance(*some), can_make(*some)


def write_unique(
    sample: Sample, count: int, seed: int, device: torch.device, *, folder: Path | None = None, about: str = ""
) -> tuple[Split, int]:
    """The first `count` different sequences that a model writes, or fewer if it repeats itself, and how many were
    written for that. Each batch has a seed of its own, so that one that was cut off continues as it would have.

    Args:
        folder: for what has been written so far, in a file that is gone in the end. None: nothing is kept.
        about: what the sequences depend on; a file about something else is not continued.
    """
    path = None if folder is None else folder / WRITTEN
    rows, batches = _resumed(path, about)
    size = min(BATCH, count)
    while len(rows) < count and batches * size < MOST * count:
        generator = torch.Generator(device).manual_seed(derive_seed(seed, "written", batches))
        rows |= dict.fromkeys(_rows(Split(*sample(size, generator))))
        batches += 1
        if path is not None:
            _keep(path, about, rows, batches)
    if path is not None:
        path.unlink(missing_ok=True)
    return _split(list(rows)[:count], device), batches * size


def digest(weights: Mapping[str, Tensor]) -> str:
    """Of a model, to tell it from others."""
    found = hashlib.blake2b(digest_size=16)
    for name, value in weights.items():
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _rows(split: Split) -> Iterator[bytes]:
    """A sequence as bytes, the same for equal ones however far they are padded: its length (-1: it did not end) and
    its tokens."""
    tokens, lengths = (x.cpu().numpy() for x in split)
    inside = np.arange(tokens.shape[1]) < np.where(lengths < 0, tokens.shape[1], lengths)[:, None]
    table = np.concatenate([lengths[:, None], np.where(inside, tokens, 0)], 1).astype("<i2")
    ends = 1 + np.where(lengths < 0, tokens.shape[1], lengths)
    for row, end in zip(table, ends.tolist(), strict=True):
        yield row[:end].tobytes()


def _split(rows: list[bytes], device: torch.device) -> Split:
    """What `_rows` was given, padded to the longest."""
    arrays = [np.frombuffer(row, "<i2") for row in rows]
    tokens = np.zeros((len(rows), max((len(array) for array in arrays), default=1) - 1), np.int64)
    for row, array in zip(tokens, arrays, strict=True):
        row[: len(array) - 1] = array[1:]
    lengths = np.array([array[0] for array in arrays], np.int64)
    return Split(torch.from_numpy(tokens), torch.from_numpy(lengths)).to(device)


def _keep(path: Path, about: str, rows: Mapping[bytes, Any], batches: int) -> None:
    sizes = torch.tensor([len(row) for row in rows])
    content = io.BytesIO()
    letters = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
    torch.save({"about": about, "batches": batches, "sizes": sizes, "letters": letters}, content)
    write(path, content.getvalue())


def _resumed(path: Path | None, about: str) -> tuple[dict[bytes, None], int]:
    """What a file holds; of one that is damaged, or about another model, nothing: it is all written again."""
    try:
        found = unpacked(path.read_bytes()) if path is not None and path.exists() else None
    except Unreadable:
        found = None
    if not isinstance(found, dict) or found.keys() != {"about", "batches", "sizes", "letters"}:
        return {}, 0
    batches, sizes, letters = (found[name] for name in ("batches", "sizes", "letters"))
    whole = type(batches) is int and is_plain(sizes, torch.zeros(0, dtype=torch.int64))
    whole = whole and is_plain(letters, torch.zeros(0, dtype=torch.uint8)) and int(sizes.sum()) == len(letters)
    if found["about"] != about or not whole:
        return {}, 0
    text, ends = letters.numpy().tobytes(), sizes.cumsum(0).tolist()
    starts = [0, *ends[:-1]] if ends else []
    return dict.fromkeys(text[start:end] for start, end in zip(starts, ends, strict=True)), batches
