"""The steps of the shared kernels that differ between structures. A structure's file registers its own version of a
step under its class of geometry, and a kernel is compiled with the versions of the geometry it is called with: for one
structure at a time.

    @trace_item.of(MatchingGeometry)
    def _trace(geometry, g, size, winners, links): ...
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from numba.extending import overload

from gumtrace.kernels.cpu.jit import PART
from gumtrace.kernels.cpu.simd_math import perturb_row


class Hook:
    """A step. The version it is made from serves the structures that register none, unless each must have its own."""

    def __init__(self, default: Callable, *, required: bool = False):
        self.__doc__ = default.__doc__
        self.__name__ = default.__name__
        self.versions: dict[type, Callable] = {}
        otherwise = None if required else default  # with None the compiler finds no such step
        choose = lambda geometry, *args: self.versions.get(geometry.instance_class, otherwise)  # noqa: E731
        overload(self, jit_options=PART, strict=False)(choose)

    def __call__(self, *args):
        raise TypeError(f"{self.__name__} is for compiled code")

    def of(self, *geometries: Any) -> Callable[[Callable], Callable]:
        """Register a version for these classes of geometry."""

        def register(version: Callable) -> Callable:
            self.versions.update(dict.fromkeys(geometries, version))
            return version

        return register


required = partial(Hook, required=True)


# Noise to trace ------------------------------------------------------------------------------------


@Hook
def races(geometry, key):
    """Whether the structure lets a key race: not on the diagonal, below a triangle, into a root, or as a loop."""
    return True


@Hook
def perturb_item(geometry, logits, seed, item, g, spare, scratch):
    """g = logits + Gumbel noise, -inf for keys that do not race."""
    perturb_row(logits, seed, item * geometry.keys, g, spare, scratch)


@required
def trace_item(geometry, g, size, winners, links):
    """Run the algorithm on G; writes every winner and link, and returns whether the run could be completed."""


@Hook
def clear_trace(geometry, winners, links):
    """The trace of an item that has none."""
    winners[:] = -1
    links[:] = -1


@required
def list_order(geometry, g, winners, links, order, end):
    """The keys that race, so that the one at b wins among those at b, ..., end[b] - 1, which fall into one or two such
    stretches without it. Returns how many of them win a decision; they come first. For algorithms that only compare."""


@Hook
def mirrored(geometry, key):
    """The other entry of a symmetric value that a key stands for; itself where there is none."""
    return key


# The formula ---------------------------------------------------------------------------------------


@Hook
def list_winners(geometry, winners, links, won):
    """won[b]: the key that won decision b, -1 if there was no such decision. Listed once for an item, because a
    function of the geometry called for each would count references to its arrays, which takes longer than sums."""
    for b in range(geometry.decisions):
        won[b] = winners[b] if winners[b] < geometry.keys else -1


@required
def list_groups(geometry, winners, links, keys, offsets, parent, decision):
    """Lists the groups of `incidence`, and returns their number."""


@Hook
def group_capacity(geometry, links):
    """The most groups an item can have."""
    return geometry.decisions


@Hook
def is_ordered(geometry):
    """Whether a group's winner comes before all that race in its decision, and after the winners of its parents: G
    given the trace is then held to this order after rounding."""
    return True


@Hook
def lost_trace(geometry, g, size, winners, links, again, again_links):
    """Whether G given the trace does not give it back. Only algorithms that subtract can lose it."""
    return False
