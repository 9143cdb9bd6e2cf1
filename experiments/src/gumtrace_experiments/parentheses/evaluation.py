"""How good a model of sequences is: a bound on their likelihood, and what becomes of the sequences that it generates.

Nothing here knows what an order is: a model gives log P(x, z), a proposal gives orders z with their log-probabilities,
and a function generates sequences.
"""

import hashlib
import io
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gumtrace_experiments.config import derive_seed
from gumtrace_experiments.parentheses.brackets import BALANCED, KINDS, balance
from gumtrace_experiments.parentheses.data import Split, can_make
from gumtrace_experiments.parentheses.distinct import contained, distinct, first_equal, sequences, table
from gumtrace_experiments.store.archives import Unreadable, is_plain, unpacked
from gumtrace_experiments.store.files import write

Sample = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]  # how many to tokens (N, n) and lengths (N,)

GENERATED = "generated.pt"  # in the folder of a run, while sequences are being generated
BATCH, MOST_AT_ONCE = 10_000, 50_000  # sequences generated at once, on a CPU and at most on another device
MEMORY = 4 * 2**30  # bytes that generating may take there, if sequences are as long as those of the data
MOST = 20  # draws for each different sequence that is wanted: a model that repeats itself comes to an end, too
PAUSE = 20.0  # seconds of work that may be lost where it is cut off


class Bound(NamedTuple):
    """Of a likelihood, from K orders."""

    log_likelihood: Tensor  # (B,) float64
    effective: Tensor  # (B,) float64, effective sample size: from 1, where one order has all weight, to K


def iwae(log_joint: Tensor, log_q: Tensor) -> Bound:
    """log (1/K) Σ_k P(x, z_k) / Q(z_k), in expectation a lower bound of log P(x) that rises with K (Burda et al. 2016),
    from log P(x, z) and log Q(z) of orders, (K, B)."""
    weights = log_joint.double() - log_q.double()
    total = weights.logsumexp(0)
    effective = torch.where(total > -torch.inf, 2 * total - (2 * weights).logsumexp(0), -torch.inf).exp()
    return Bound(total - math.log(len(weights)), effective)


def of_different(log_joint: Callable[[Tensor, Tensor], Tensor], orders: Tensor, at_once: int) -> Tensor:
    """(K, B): log P(x, z) of orders (K, B, n), of which equal ones of an item are evaluated once. Where an encoder is
    sure of itself, that is a small part of them.

    Args:
        log_joint: from numbers of items (R,) and an order for each, (R, n).
        at_once: R at most.
    """
    count, items, _ = orders.shape
    item = torch.arange(items, device=orders.device).expand(count, items)
    rows = torch.cat([item[..., None], orders], -1).flatten(0, 1)
    first = first_equal(rows.short())
    chosen = (first == torch.arange(len(first), device=first.device)).nonzero().flatten()
    parts = [log_joint(rows[some, 0], rows[some, 1:]) for some in chosen.split(at_once)]
    values = torch.cat(parts)
    return values.new_empty(len(first)).index_copy_(0, chosen, values)[first].view(count, items)


def perplexity(log_likelihood: float) -> float:
    """From the log-likelihood a token: of all sequences together, their ends not counted as tokens."""
    return math.exp(min(-log_likelihood, 700.0))  # a model that has diverged must not overflow


# Sequences that a model generates ---------------------------------------------------------------------


def at_once(device: torch.device, row_bytes: int = 1) -> int:
    """Sequences that are generated or judged together, each of which takes so many bytes. A device with many cores is
    as fast with many as with few. It depends on nothing that changes between runs: what was cut off must continue with
    the same batches.

    >>> at_once(torch.device("cuda"), 200_000)
    21474
    """
    return BATCH if device.type == "cpu" else max(min(MOST_AT_ONCE, MEMORY // row_bytes), 1)


def shares(generated: Split, train: Split, longest: int) -> dict[str, float]:
    """What different sequences are, as shares of them: `old`, in the training set; `new_correct`, balanced and not
    there; `wrong`, and by the kind of error. `reachable` is the part of `new_correct` that the generator of the data
    could have made.
    """
    old = contained(table(generated), table(train))
    index = torch.arange(len(old), device=old.device).split(at_once(old.device))
    code, made = (torch.cat(parts) for parts in zip(*(_judged(generated.batch(i)) for i in index), strict=True))
    new = ~old & (code == BALANCED)
    reachable = new & made & (generated.lengths <= longest)
    found = {"old": old, "new_correct": new, "reachable": reachable, "wrong": code != BALANCED}
    found |= {f"wrong_{kind}": code == i for i, kind in enumerate(KINDS) if i != BALANCED}
    means = torch.stack([which.double().mean() for which in found.values()]).tolist()
    return dict(zip(found, means, strict=True))


def _judged(some: Split) -> tuple[Tensor, Tensor]:
    """A code for each sequence, and whether the generator can make it."""
    return balance(*some), can_make(*some)


def generate_unique(
    sample: Sample,
    count: int,
    seed: int,
    device: torch.device,
    *,
    row_bytes: int = 1,
    folder: Path | None = None,
    about: str = "",
) -> tuple[Split, int]:
    """The first `count` different sequences that a model generates, or fewer if it repeats itself, and how many were
    generated for that. Each batch has a seed of its own, so that one that was cut off continues as it would have.

    Args:
        row_bytes: memory that generating takes for each sequence.
        folder: for what there is so far, in a file that is gone in the end. None: nothing is kept.
        about: what the sequences depend on; a file about something else is not continued.
    """
    path = None if folder is None else folder / GENERATED
    size, kept = min(at_once(device, row_bytes), count), time.perf_counter()
    about = f"{about}, {size} at once"
    found, batches = _resumed(path, about, device)
    while (found is None or len(found) < count) and batches * size < MOST * count:
        generator = torch.Generator(device).manual_seed(derive_seed(seed, "generated", batches))
        more = table(Split(*sample(size, generator)))
        found = distinct(more if found is None else torch.cat([found, more]))
        batches += 1
        if path is not None and time.perf_counter() - kept >= PAUSE:
            _keep(path, about, found, batches)
            kept = time.perf_counter()
    if path is not None:
        path.unlink(missing_ok=True)
    assert found is not None
    return sequences(found[:count]), batches * size


def digest(weights: Mapping[str, Tensor]) -> str:
    """Of a model, to tell it from others."""
    found = hashlib.blake2b(digest_size=16)
    for name, value in weights.items():
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _keep(path: Path, about: str, rows: Tensor, batches: int) -> None:
    content = io.BytesIO()
    torch.save({"about": about, "batches": batches, "rows": rows.cpu()}, content)
    write(path, content.getvalue())


def _resumed(path: Path | None, about: str, device: torch.device) -> tuple[Tensor | None, int]:
    """What a file holds; of one that is damaged, or about another model, nothing: it is all generated again."""
    try:
        found = unpacked(path.read_bytes()) if path is not None and path.exists() else None
    except Unreadable:
        found = None
    if not isinstance(found, dict) or found.keys() != {"about", "batches", "rows"} or found["about"] != about:
        return None, 0
    rows, batches = found["rows"], found["batches"]
    whole = type(batches) is int and batches > 0 and is_plain(rows, torch.zeros(0, 0, dtype=torch.int16))
    return (rows.to(device), batches) if whole and rows.dim() == 2 and len(rows) else (None, 0)
