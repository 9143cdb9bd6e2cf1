"""Share a batch among threads. Kernels release the GIL, so ordinary threads will do; they are as many as torch uses.

Numba's own parallel back end is avoided on purpose: its default layer aborts when two threads enter it at once, or
after a fork.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import torch

SMALL = 40_000  # keys; below, waking a second thread costs more than it brings
_pool: tuple[int, int, ThreadPoolExecutor] | None = None


def run(kernel: Callable, items: int, keys: int, *args) -> None:
    """kernel(start, stop, *args) over all items. The calling thread takes pieces too, so nothing waits for the others
    to wake up."""
    threads = min(torch.get_num_threads(), items)
    if threads <= 1 or items * keys < SMALL:
        kernel(0, items, *args)
        return
    pieces = min(items, 8 * threads)  # more than threads: items differ in cost, machines are shared
    queue = count()

    def work() -> None:
        while (piece := next(queue)) < pieces:
            kernel(items * piece // pieces, items * (piece + 1) // pieces, *args)

    helpers = [_executor(threads).submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        if not helper.cancel():  # it never started, or it is done or about to be
            helper.result()


def _executor(threads: int) -> ThreadPoolExecutor:
    """One pool a process: a forked child has none of its parent's threads and makes its own."""
    global _pool
    if _pool is None or _pool[:2] != (os.getpid(), threads):
        _pool = (os.getpid(), threads, ThreadPoolExecutor(threads, thread_name_prefix="gumtrace"))
    return _pool[2]
