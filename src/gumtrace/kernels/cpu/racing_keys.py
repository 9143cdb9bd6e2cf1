"""Who raced in each decision of one item: the incidence written out, to be looked at. The formula never needs it so."""

import numpy as np

from gumtrace.kernels.cpu.incidence import list_items, lists, room, workspace
from gumtrace.kernels.cpu.jit import kernel
from gumtrace.kernels.geometry import Geometry


def racing_keys(geometry: Geometry, winners: np.ndarray, links: np.ndarray) -> list[np.ndarray]:
    """The keys of each decision in increasing order; winners (winner_slots,) and links (link_slots,) int32."""
    ends, keys = _racing_keys(geometry, winners[None], links[None], np.empty(0, np.float32))
    return [np.sort(part) for part in np.split(keys, ends[1:-1])] if len(ends) > 1 else []


@kernel
def _racing_keys(geometry, winners, links, like):
    """Decision b has keys[ends[b] : ends[b + 1]]."""
    listed = lists(geometry, links)
    list_items(geometry, winners, links, 0, 1, 1, listed)
    s, groups = workspace(listed, 0, room(listed, like)), listed.groups[0]
    ends = np.zeros(geometry.decisions + 1, np.int64)
    for g in range(groups):
        above = g
        while above >= 0:
            ends[s.decision[above] + 1] += s.offsets[g + 1] - s.offsets[g]
            above = s.parent[above]
    for b in range(geometry.decisions):
        ends[b + 1] += ends[b]
    keys = np.empty(ends[-1], np.int32)
    cursor = ends.copy()
    for g in range(groups):
        above = g
        while above >= 0:
            b = s.decision[above]
            for i in range(s.offsets[g], s.offsets[g + 1]):
                keys[cursor[b]] = s.keys[i]
                cursor[b] += 1
            above = s.parent[above]
    return ends, keys
