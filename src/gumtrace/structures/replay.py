"""Running an algorithm with somebody else's choices in place of its argmins: how all traces are listed."""

from collections.abc import Callable, Iterator
from typing import Any

from gumtrace.structures.recursion import unrepeatable

Choose = Callable[[list[int]], int]  # picks the winner among racing keys


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
