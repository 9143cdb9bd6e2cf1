"""A failing case made small: one item, few keys, no mask, simple numbers. Greedy, for a limited time."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gumtrace.fuzz.cases import Case

SECONDS = 20.0


def shrunk(case: Case, fails: Callable[[Case], bool], item: int | None = None, seconds: float = SECONDS) -> Case:
    """The smallest case found that fails as the first one does."""
    end = time.monotonic() + seconds
    better = True
    while better and time.monotonic() < end:
        better = False
        for candidate in _simpler(case, item):
            if time.monotonic() > end:
                break
            other = _valid(candidate, bool(case.finite.all()))
            if fails(other):
                case, item, better = other, None, True
                break
    return case


def _valid(case: Case, finite: bool) -> Case:
    """With numbers at all keys that race now and did not before; finite logits stay finite."""
    racing = torch.from_numpy(case.racing).reshape(case.logits.shape)
    if finite:
        case = case.change(logits=torch.where(racing & ~(case.logits < torch.inf), 0.0, case.logits))
    return case.change(noise=torch.where(racing & ~case.noise.isfinite(), 0.0, case.noise))


def _simpler(case: Case, item: int | None) -> Iterator[Case]:
    """Simpler cases, the simplest first. Some may make no sense: then they do not fail in the same way."""
    yield from _fewer_items(case, item)
    if case.mask is not None:
        yield case.change(mask=None)
    if case.lengths is not None:
        yield case.change(lengths=None)
    if case.layout != "plain":
        yield case.change(layout="plain")
    if "most" in case.settings:
        yield case.change(settings={name: x for name, x in case.settings.items() if name != "most"})
    k = case.settings.get("k")
    if torch.is_tensor(k) and case.rows == 1:
        yield case.change(settings={"k": int(k)})
    yield from _fewer_keys(case)
    yield from _simpler_numbers(case)


def _fewer_items(case: Case, item: int | None) -> Iterator[Case]:
    samples = case.items // max(case.rows, 1)
    if case.items == 1:
        if case.batch or case.samples:
            yield _unbatched(case)
        return
    if item is not None and case.items:
        yield case.take([item % case.rows], [item // case.rows])
    if case.rows == 0 or samples == 0:
        return
    for rows in _halves(case.rows):
        yield case.take(rows, range(samples))
    for some in _halves(samples):
        yield case.take(range(case.rows), some)


def _halves(count: int) -> list[range]:
    return [range(count // 2), range(count // 2, count)] if count > 1 else []


def _unbatched(case: Case) -> Case:
    settings = {name: int(x) if name == "k" else x for name, x in case.settings.items()}
    return case.change(
        logits=case.logits.reshape(case.key_shape),
        noise=case.noise.reshape(case.key_shape),
        mask=None if case.mask is None else case.mask.expand(case.logits.shape).reshape(case.key_shape),
        lengths=None if case.lengths is None else case.lengths.reshape(()),
        settings=settings,
    )


def _fewer_keys(case: Case) -> Iterator[Case]:
    if "algorithm" in case.settings:
        yield from _smaller_algorithm(case)
        return
    dims, size = tuple(range(-case.dims, 0)), case.key_shape[0] if case.key_shape else 0
    for half in _halves(size) if size > 8 else ():
        yield _without(case, list(half), dims)
    if "edge_index" in case.settings:
        yield from _smaller_graph(case)
        return
    for index, where in case.kind.cuts(case.key_shape):
        yield _without(case, [index], where)
    for name, least in (("k", 0), ("components", 1)):
        number = case.settings.get(name, least)
        if isinstance(number, int) and number > least:
            yield case.change(settings={**case.settings, name: number - 1})


def _without(case: Case, gone: list[int], dims: tuple[int, ...]) -> Case:
    """No key with one of these indices in these dimensions."""
    dropped = set(gone)

    def cut(x: Tensor) -> Tensor:
        for dim in dims:
            kept = [j for j in range(x.shape[dim]) if j not in dropped]
            x = x.index_select(dim, torch.tensor(kept, dtype=torch.long))
        return x

    settings: dict[str, Any] = dict(case.settings)
    left = case.key_shape[0] - len(gone)
    if "k" in settings:
        k = settings["k"]
        settings["k"] = k.clamp(max=left) if torch.is_tensor(k) else min(k, left)
    if "root" in settings:
        settings["root"] -= sum(j < settings["root"] for j in gone)
    if "edge_index" in settings:
        settings["edge_index"] = cut(settings["edge_index"])
    lengths = case.lengths
    if lengths is not None and "edge_index" not in settings:  # there they count nodes
        lengths = lengths - (torch.tensor(gone) < lengths[..., None]).sum(-1).to(lengths.dtype)
    mask = None if case.mask is None else cut(case.mask)
    return case.change(logits=cut(case.logits), noise=cut(case.noise), mask=mask, lengths=lengths, settings=settings)


def _smaller_algorithm(case: Case) -> Iterator[Case]:
    algorithm = case.settings["algorithm"]
    if algorithm.keys == 0 or len(case.key_shape) != 1:
        return
    smaller = algorithm.smaller()
    settings = {**case.settings, "algorithm": smaller}
    mask = None if case.mask is None else case.mask[..., : smaller.keys]
    logits, noise = case.logits[..., : smaller.keys], case.noise[..., : smaller.keys]
    yield case.change(logits=logits, noise=noise, mask=mask, settings=settings)


def _smaller_graph(case: Case) -> Iterator[Case]:
    edges, nodes = case.settings["edge_index"], case.settings["num_nodes"]
    for v in reversed(range(min(nodes, 100))):
        touching = (edges == v).any(0).nonzero().flatten().tolist()
        smaller = _without(case, touching, (-1,))
        kept = smaller.settings["edge_index"]
        settings = {**case.settings, "edge_index": kept - (kept > v).to(kept.dtype), "num_nodes": nodes - 1}
        lengths = None if case.lengths is None else case.lengths - (case.lengths > v).to(case.lengths.dtype)
        yield smaller.change(settings=settings, lengths=lengths)
    for j in reversed(range(edges.shape[1])):
        yield _without(case, [j], (-1,))
    if case.settings.get("components", 1) > 1:
        yield case.change(settings={**case.settings, "components": case.settings["components"] - 1})


def _simpler_numbers(case: Case) -> Iterator[Case]:
    if case.logits.dtype not in (torch.float32, torch.float64):
        yield case.change(logits=case.logits.float())
    racing = torch.from_numpy(case.racing).reshape(case.logits.shape)
    for name in ("logits", "noise"):
        x = getattr(case, name)
        for simple in _numbers(x, racing):
            if not torch.equal(simple.nan_to_num(1.5), x.nan_to_num(1.5)):
                yield case.change(**{name: simple})
    if case.noise.numel() <= 64:
        for name in ("logits", "noise"):
            yield from _one_number(case, name)


def _numbers(x: Tensor, racing: Tensor) -> Iterator[Tensor]:
    """All at once: idle ones as usual, then nothing, places in the order, whole numbers."""
    idle = torch.where(racing, x, 0.0 if x.isneginf().sum() == 0 else -torch.inf)
    yield idle
    finite = x.isfinite()
    yield torch.where(finite, 0.0, x)
    flat = torch.where(finite, x, 0.0).double()
    place = np.unique(flat.numpy(), return_inverse=True)[1].reshape(tuple(x.shape))
    yield torch.where(finite, torch.from_numpy(np.asarray(place)).to(x.dtype), x)
    yield torch.where(finite, x.round(), x)


def _one_number(case: Case, name: str) -> Iterator[Case]:
    x = getattr(case, name)
    for i, value in enumerate(x.flatten().tolist()):
        for simple in (0.0, 1.0, float(np.round(value)) if np.isfinite(value) else 0.0):
            if np.isfinite(value) and abs(simple) < abs(value):
                other = x.clone()
                other.view(-1)[i] = simple
                yield case.change(**{name: other})
