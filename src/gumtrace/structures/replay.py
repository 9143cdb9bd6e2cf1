"""Running an algorithm with somebody else's choices in place of its argmins: how all traces are listed."""

from collections.abc import Callable, Iterator
from typing import Any

from gumtrace.structures.recursion import unrepeatable

Choose = Callable[[list[int]], int]  # picks the winner among racing keys


class _LeadsNowhere(Exception):
    """No later key races, though the run is not over."""


def every_set(decide: Callable[[Choose], Any]) -> Iterator[Any]:
    """The runs in which keys win in increasing order, with None for those that could not continue so: each set of
    winners once, where any order of a set is a run."""

    def increasing(choose: Choose) -> Any:
        last = -1

        def choose_later(keys: list[int]) -> int:
            nonlocal last
            later = [key for key in keys if key > last]
            if not later:
                raise _LeadsNowhere
            last = choose(later)
            return last

        try:
            return decide(choose_later)
        except _LeadsNowhere:
            return None

    return every_run(increasing)


def every_run(decide: Callable[[Choose], Any]) -> Iterator[Any]:
    """Runs `decide` once for every sequence of choices, by replaying it with the last choice that can still be raised
    by one."""
    path: list[list[int]] = []  # [choice, number of choices] of each decision so far
    while True:
        position = 0

        def choose(keys: list[int]) -> int:
            nonlocal position
            if position == len(path):
                path.append([0, len(keys)])
            position += 1
            choice, choices = path[position - 1]
            if choices != len(keys):
                raise ValueError(unrepeatable("a hook"))  # only an algorithm of a user's can do so
            return keys[choice]

        yield decide(choose)
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1][0] += 1
