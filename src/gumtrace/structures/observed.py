"""Traces from observed winners: rankings, whole and partial, that somebody else made."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace


def observed_trace(dist: Structure, winners: Tensor, wanted: Tensor, advice: str) -> Trace:
    """The trace of a chain with these winners, keys (*S, *B, m) in order of choice and then -1, broadcast to the batch.

    Args:
        wanted: how many winners each item has, (*B,) or ().
        advice: what to do where there are more or fewer, with places for `seen` and `wanted`.
    """
    name, keys, slots = type(dist).__name__, dist._layout.geometry.keys, dist._layout.geometry.winner_slots
    if not torch.is_tensor(winners) or winners.is_floating_point() or winners.dtype == torch.bool or winners.dim() == 0:
        got = f"{winners.dtype} {tuple(winners.shape)}" if torch.is_tensor(winners) else type(winners).__name__
        raise TypeError(f"{name}: observed winners must be integers (*batch, m), keys in order of choice; got {got}")
    shape = checks.broadcast(name, "winners", winners.shape[:-1], dist.batch_shape)
    checks.ends_in(name, "winners broadcast to the batch, a batch", shape, dist.batch_shape)
    winners = winners.to(dist.logits.device).long().expand(*shape, winners.shape[-1])
    if dist._may_sync:
        _check_winners(dist, winners, wanted, advice)
    choices = pad(winners, (0, max(slots - winners.shape[-1], 0)), value=-1)[..., :slots]
    choices = choices.clamp(-1, keys - 1).int()  # kernels trust them
    return Trace(dist._layout, choices, choices[..., :0], dist._owner)


def _check_winners(dist: Structure, winners: Tensor, wanted: Tensor, advice: str) -> None:
    """Distinct keys that race, as many as are wanted, and no gap: the error names the item."""
    keys, chosen = dist._layout.geometry.keys, winners >= 0
    seen = chosen.sum(-1)
    count = torch.zeros(*winners.shape[:-1], keys + 1, dtype=torch.long, device=winners.device)
    place = torch.where(chosen & (winners < keys), winners, keys)
    count = count.scatter_add(-1, place, torch.ones_like(place))[..., :keys]  # how often each key was chosen
    faults = [
        (((winners < -1) | (winners >= keys)).any(-1), f"names a key outside 0..{keys - 1} (-1 stands for none)"),
        ((count > 1).any(-1), "names a key twice"),
        (((count > 0) & ~dist.racing).any(-1), "names a key that does not race (masked, padding, or a logit of -inf)"),
        ((chosen[..., 1:] & ~chosen[..., :-1]).any(-1), "has a winner behind a -1: -1 comes last"),
        (seen != wanted, advice),
    ]
    for fault, message in faults:
        bad = fault.flatten().nonzero()
        if len(bad) > 0:
            first = int(bad[0])
            numbers = {"seen": int(seen.flatten()[first]), "wanted": int(wanted.expand(seen.shape).flatten()[first])}
            where = checks.item_name(first, dist.batch_shape)
            raise ValueError(f"{type(dist).__name__}: the ranking of {where} {message.format_map(numbers)}")
