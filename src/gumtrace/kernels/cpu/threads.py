"""Share a batch among threads. Kernels release the GIL, so ordinary threads will do; they are as many as torch uses.

Numba's own parallel back end is avoided on purpose: its default layer aborts when two threads enter it at once, or after a fork.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

SMALL = 40_000  # keys; below, waking a second thread costs more than it brings
_pool: tuple[int, int, ThreadPoolExecutor] | None = None


def run(kernel: Callable, items: int, keys: int, *args) -> None:
    """kernel(start, stop, *args) over all items, split into a few pieces per thread."""
    threads = min(torch.get_num_threads(), items)
    if threads <= 1 or items * keys < SMALL:
        kernel(0, items, *args)
        return
    pieces = min(items, 4 * threads)  # more than threads: items differ in cost, machines are shared
    cuts = [items * i // pieces for i in range(pieces + 1)]
    jobs = [_executor(threads).submit(kernel, a, b, *args) for a, b in zip(cuts, cuts[1:], strict=False)]
    for job in jobs:
        job.result()


def _executor(threads: int) -> ThreadPoolExecutor:
    """One pool a process: a forked child has none of its parent's threads and makes its own."""
    global _pool
    if _pool is None or _pool[:2] != (os.getpid(), threads):
        _pool = (os.getpid(), threads, ThreadPoolExecutor(threads, thread_name_prefix="gumtrace"))
    return _pool[2]
