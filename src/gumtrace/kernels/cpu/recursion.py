"""A user's recursion runs in Python, and its links hold the forest of groups: the group of each key, then parent and
decision of each group. One more, behind them, is for Python alone."""

from gumtrace.kernels.cpu.arrays import copy_row, integers
from gumtrace.kernels.cpu.hooks import group_capacity, is_ordered, list_groups
from gumtrace.kernels.geometry import CustomGeometry


@group_capacity.of(CustomGeometry)
def _group_capacity(geometry, links):
    return (links.shape[1] - geometry.keys) // 2


@is_ordered.of(CustomGeometry)
def _is_ordered(geometry):
    return False


@list_groups.of(CustomGeometry)
def _list_groups(geometry, winners, links, keys, offsets, parent, decision):
    """Anyone can write into a trace, so numbers that are no group or decision count as none: nothing is indexed by
    them."""
    count, decisions = geometry.keys, geometry.decisions
    capacity = (links.size - count) // 2
    groups = 0
    while groups < capacity and 0 <= links[count + capacity + groups] < decisions:
        parent[groups] = links[count + groups] if -1 <= links[count + groups] < groups else -1
        decision[groups] = links[count + capacity + groups]
        groups += 1
    offsets[: groups + 2] = 0
    for k in range(count):
        if -1 <= links[k] < groups:
            offsets[(links[k] if links[k] >= 0 else groups) + 1] += 1
    for g in range(groups + 1):
        offsets[g + 1] += offsets[g]
    cursor = integers(groups + 1, 0)
    copy_row(offsets, groups + 1, cursor)
    for k in range(count):
        if -1 <= links[k] < groups:
            g = links[k] if links[k] >= 0 else groups
            keys[cursor[g]] = k
            cursor[g] += 1
    return groups
