"""Random cases: sizes from 0, any batch, masks, ragged lengths, layouts in memory, hostile numbers.

A case is a function of a random generator and its place in the run alone: small ones come first and often.
"""

import numpy as np
import torch
from torch import Tensor

from gumtrace.fuzz import numbers
from gumtrace.fuzz.cases import LAYOUTS, Case
from gumtrace.fuzz.sizes import INTEGERS, Rng, Sizes
from gumtrace.fuzz.structures import STRUCTURES


def draw(structure: str, rng: Rng, sizes: Sizes, dtype: torch.dtype, device: str = "cpu") -> Case:
    """A case for all checks of items."""
    shape, settings, affordable = STRUCTURES[structure].draw(rng, sizes)
    items = int(np.clip(rng.uniform(0.3, 1.0) * affordable, 1, sizes.most))
    batch, samples = _shapes(rng, items)
    return _filled(structure, rng, shape, settings, batch, samples, dtype, device)


def draw_small(structure: str, rng: Rng, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Case:
    """One unbatched item with moderate logits and few traces, none of them very rare, for laws and estimators."""
    shape, settings = STRUCTURES[structure].draw_small(rng)
    logits = torch.from_numpy(rng.normal(size=shape) * rng.choice([0.3, 1.0])).to(dtype)
    return Case(structure, logits, logits, settings, seed=int(rng.integers(2**31)), device=device)


def draw_nothing(structure: str, rng: Rng, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Case:
    """A batch without items, or items without keys where a structure has such."""
    case = draw_small(structure, rng, dtype, device)
    seed = int(rng.integers(2**31))
    if not STRUCTURES[structure].keyless or rng.random() < 0.3:
        nothing = torch.zeros(0, *case.key_shape, dtype=dtype)
        return case.change(logits=nothing, noise=nothing, seed=seed)
    batch = (2,) if rng.random() < 0.5 else ()
    nothing = torch.zeros(*batch, *[0] * case.dims, dtype=dtype)
    settings = {name: 0 if name in ("k", "root") else x for name, x in case.settings.items()}
    return case.change(logits=nothing, noise=nothing, settings=settings, seed=seed)


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _filled(structure, rng: Rng, shape, settings, batch, samples, dtype, device) -> Case:
    rows, keys = _count(batch), _count(shape)
    logits = numbers.hostile(rng, (rows, keys), dtype).reshape(*batch, *shape)
    if rng.random() < 0.2:
        logits = torch.where(_coins(rng, logits.shape, rng.choice([0.1, 0.4])), -torch.inf, logits)
    layout = str(rng.choice(list(LAYOUTS))) if rng.random() < 0.3 else "plain"
    if layout == "expanded" and not batch:
        layout = "plain"
    if layout == "expanded":
        logits = logits[:1].expand(logits.shape).contiguous()
    settings = STRUCTURES[structure].by_item(rng, batch, settings)
    case = Case(structure, logits, logits, settings, layout=layout, seed=int(rng.integers(2**31)), device=device)
    case = case.change(mask=_mask(rng, case), lengths=_lengths(rng, case))
    if rng.random() < 0.85:
        case = _repaired(case)
    if rng.random() < 0.5 and layout != "expanded":
        case = case.change(logits=_with_garbage(rng, case, case.logits))
    if rng.random() < 0.01:
        case = _spoiled(rng, case)
    return case.change(noise=_noise(rng, case, samples))


def _shapes(rng: Rng, items: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of batch and samples, together about so many items; now and then there are none."""
    if rng.random() < 0.03:
        return ((0,), ()) if rng.random() < 0.5 else ((2,), (0,))
    rows = int(rng.integers(1, items + 1)) if rng.random() < 0.7 else 1
    each = max(items // rows, 1)
    batch: tuple[int, ...] = (rows,)
    if rows == 1 and rng.random() < 0.7:
        batch = ()
    elif rng.random() < 0.25:
        batch = (int(rng.integers(1, 4)), max(rows // 2, 1))
    samples: tuple[int, ...] = (each,)
    if each == 1:
        samples = ()
    elif rng.random() < 0.2:
        samples = (2, max(each // 2, 1))
    return batch, samples


def _coins(rng: Rng, shape, chance: float) -> Tensor:
    return torch.from_numpy(rng.random(tuple(shape)) < chance)


def _mask(rng: Rng, case: Case) -> Tensor | None:
    if rng.random() > 0.35:
        return None
    shape = case.logits.shape if rng.random() < 0.7 else case.key_shape
    return _coins(rng, shape, rng.choice([0.9, 0.6, 0.3]))


def _lengths(rng: Rng, case: Case) -> Tensor | None:
    longest = case.kind.longest(case.key_shape, case.settings)
    if rng.random() > 0.3 or longest > 255:
        return None
    shape = case.batch if rng.random() < 0.9 else ()
    low = 0 if rng.random() < 0.3 else min(longest, 2)
    drawn = rng.integers(low, longest + 1, shape)
    return torch.as_tensor(drawn).to(INTEGERS[rng.integers(len(INTEGERS))])


def _repaired(case: Case) -> Case:
    """Items that cannot be completed get all their keys: errors are checked too, but not all the time."""
    bad = torch.from_numpy(~(case.feasible & case.finite)).reshape(case.batch)
    if not bad.any():
        return case
    wide = bad.reshape(*case.batch, *[1] * case.dims)
    mask = None if case.mask is None else case.mask | wide
    lengths = case.lengths
    if lengths is not None:
        full = case.kind.longest(case.key_shape, case.settings)
        lengths = torch.where(bad, full, lengths.expand(case.batch)).to(lengths.dtype)
    if case.layout == "expanded":
        wide = wide.any()
    logits = torch.where(wide & case.logits.isneginf(), 0.0, case.logits)
    return case.change(logits=logits, noise=logits, mask=mask, lengths=lengths)


def _with_garbage(rng: Rng, case: Case, x: Tensor) -> Tensor:
    """Numbers of all sorts where mask, length or structure let no key race."""
    plain = case.change(logits=torch.zeros_like(case.logits))
    idle = torch.from_numpy(~plain.racing).reshape(case.logits.shape)
    junk = numbers.garbage(rng, tuple(x.shape), x.dtype)
    return torch.where(idle, junk, x)


def _spoiled(rng: Rng, case: Case) -> Case:
    """One nan or +inf among the keys that race, if there are any."""
    racing = np.flatnonzero(case.racing)
    if len(racing) == 0 or case.layout == "expanded":
        return case
    logits = case.logits.clone()
    logits.view(-1)[int(rng.choice(racing))] = float(rng.choice([np.nan, np.inf]))
    return case.change(logits=logits)


def _noise(rng: Rng, case: Case, samples: tuple[int, ...]) -> Tensor:
    """Perturbed logits, or numbers that have nothing to do with them; ties where they were rounded."""
    dtype = torch.float64 if case.logits.dtype == torch.float64 else torch.float32
    shape = (*samples, *case.logits.shape)
    limits = torch.finfo(dtype)
    way = rng.random()
    if way < 0.35:
        keys = _count(case.key_shape)
        rows = _count(shape) // keys if keys else 0
        noise = numbers.hostile(rng, (rows, keys), dtype).reshape(shape)
    else:
        noise = case.logits.double().expand(shape)
        if way < 0.9:
            noise = noise + numbers.gumbel(rng, shape)
        if way > 0.7:
            noise = (2 * noise).round() / 2
        noise = noise.clamp(limits.min, limits.max).to(dtype)
    racing = torch.from_numpy(case.racing).reshape(case.logits.shape)
    noise = torch.where(racing & ~noise.isfinite(), 0.0, noise)
    noise = torch.where(racing, noise, -torch.inf)
    return _with_garbage(rng, case, noise) if rng.random() < 0.2 else noise
