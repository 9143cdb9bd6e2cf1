"""Runs of a user's recursion as traces, which hold integers alone, and traces as runs.

The links of a trace are the group of each key (-1: in no decision, -2: does not race), then for each group the one it
extends and the decision it adds, and last the number of the algorithm.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from gumtrace.kernels.geometry import recursion
from gumtrace.structures import checks
from gumtrace.structures.recursion import Algorithm, Run, execute_along
from gumtrace.traces.trace import Layout, Trace

NOT_OURS = (
    "Custom: the algorithm does not make this trace: it is of another one, it was written into, or a hook depends on "
    "more than its arguments"
)


def pack(runs: list[Run], layout: Layout, shape: torch.Size, device: torch.device, owner: Any) -> Trace:
    """Runs differ in their numbers of decisions and groups: short ones are filled up with -1."""
    keys = layout.geometry.keys
    decisions = max((len(run.winners) for run in runs), default=0)
    groups = max((len(run.parents) for run in runs), default=0)
    winners = np.full((len(runs), decisions), -1, np.int32)
    links = np.full((len(runs), keys + 2 * groups + 1), -1, np.int32)
    links[:, :keys] = -2
    for i, run in enumerate(runs):
        winners[i, : len(run.winners)] = run.winners
        links[i, list(run.group)] = list(run.group.values())
        links[i, keys : keys + len(run.parents)] = run.parents
        links[i, keys + groups : keys + groups + len(run.decisions)] = run.decisions
        links[i, -1] = run.number
    return Trace(
        replace(layout, geometry=recursion(keys, decisions, groups)),
        torch.from_numpy(winners).reshape(*shape, decisions).to(device),
        torch.from_numpy(links).reshape(*shape, links.shape[1]).to(device),
        owner,
    )


def pad_to_one_size(traces: Sequence[Trace]) -> list[Trace]:
    """The same traces with as many decisions and groups each."""
    keys = traces[0].layout.geometry.keys
    counts = [_groups(trace) for trace in traces]
    groups, decisions = max(counts), max(trace.choices.shape[-1] for trace in traces)
    layout = replace(traces[0].layout, geometry=recursion(keys, decisions, groups))
    padded = []
    for trace, count in zip(traces, counts, strict=True):
        of_key, *of_groups, number = trace.links.split([keys, count, count, 1], -1)
        of_groups = [pad(part, (0, groups - count), value=-1) for part in of_groups]
        choices = pad(trace.choices, (0, decisions - trace.choices.shape[-1]), value=-1)
        padded.append(Trace(layout, choices, torch.cat([of_key, *of_groups, number], -1)))
    return padded


def valid_links(trace: Trace, numbers: Tensor) -> bool:
    """Whether kernels can follow them: a group extends an earlier one. `numbers` are those of the algorithms."""
    g, groups = trace.layout.geometry, _groups(trace)
    of_key, parent, decision, number = trace.links.split([g.keys, groups, groups, 1], -1)
    return (
        checks.within(of_key, -2, groups)
        and checks.within(parent, -1, groups)
        and bool((parent < torch.arange(groups, device=trace.device)).all())
        and checks.within(decision, -1, g.decisions)
        and bool((number[..., 0].cpu() == numbers).all())
    )


def replays(trace: Trace, algorithms: Sequence[Algorithm]) -> list[tuple[Run, bool]]:
    """The run along the winners of each trace, and whether it is the one that was recorded."""
    keys, (choices, links) = trace.layout.geometry.keys, trace.rows()
    rows = zip(choices.tolist(), links.tolist(), strict=True)
    return [_replay(winners, of_item, keys, algorithms) for winners, of_item in rows]


def _replay(winners: list[int], links: list[int], keys: int, algorithms: Sequence[Algorithm]) -> tuple[Run, bool]:
    if not 0 <= links[-1] < len(algorithms):
        raise ValueError(NOT_OURS)
    groups = {key: group for key, group in enumerate(links[:keys]) if group > -2}
    run = execute_along(algorithms[links[-1]], set(groups), winners)
    same = run.winners == [winner for winner in winners if winner >= 0] and run.group == groups
    return replace(run, number=links[-1]), same


def combined(trace: Trace, value_shape: torch.Size) -> Tensor:
    """The values of a batch of runs."""
    algorithms, values = trace.layout.algorithms, []
    for run, same in replays(trace, algorithms):
        if not same:
            raise ValueError(NOT_OURS)
        values.append(run.value(algorithms[run.number]))
    others = [value for value in values if value.shape != values[0].shape]
    if others:
        shapes = f"{tuple(values[0].shape)} and {tuple(others[0].shape)}"
        raise ValueError(f"Custom: combine returned values of shapes {shapes}: all must have one shape")
    stacked = torch.stack(values) if values else torch.empty(0, *value_shape)
    return stacked.reshape(trace.shape + stacked.shape[1:]).to(trace.device)


def _groups(trace: Trace) -> int:
    return (trace.links.shape[-1] - trace.layout.geometry.keys - 1) // 2
