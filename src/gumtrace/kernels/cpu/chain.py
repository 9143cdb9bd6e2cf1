"""Structures whose decisions are a chain: what is left after one is the next one's field."""

from gumtrace.kernels.cpu.jit import jit


@jit
def chain(groups, parent, decision):
    """Group b extends group b - 1 by decision b; returns the number of groups."""
    for b in range(groups):
        parent[b] = b - 1
        decision[b] = b
    return groups
