"""Kernels in forked children, in many threads at once, in a process that has only just begun, and without threads."""

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from cases import generator
from torch.utils.data import DataLoader

import gumtrace as gt

PATIENCE = 60  # seconds: a deadlock would take for ever

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
# From Python 3.12 on a fork in a process with threads warns. Torch's own threads do not survive one, which is why the
# workers of a DataLoader use one thread only; ours do.
pytestmark = pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning")

BIG = {  # batches that are large enough to be shared
    "subset": gt.Subset(torch.randn(2000, 50, generator=generator()), 5),
    "permutation": gt.Permutation(torch.randn(2000, 50, generator=generator())),
    "matching": gt.Matching(torch.randn(400, 10, 20, generator=generator())),
    "spanning tree": gt.SpanningTree(torch.randn(400, 15, 15, generator=generator())),
    "arborescence": gt.Arborescence(torch.randn(400, 15, 15, generator=generator())),
    "binary tree": gt.BinaryTree(torch.randn(2000, 50, generator=generator())),
}
structures = pytest.mark.parametrize("name", BIG)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def two_threads():
    with threads(2):
        yield


def draw(name, seed=0):
    """All that a kernel draws or computes, with gradients."""
    g, d = generator(seed), BIG[name]
    x = d.logits.clone().requires_grad_()
    d = gt.Subset(x, d.k) if name == "subset" else type(d)(x)
    trace = d.sample_trace(generator=g)
    noise, given, log_prob = d.perturb(generator=g), d.conditional(trace, generator=g), d.trace_log_prob(trace)
    (grad,) = torch.autograd.grad(log_prob.sum() + given.where(given.isfinite(), 0.0).sum(), x)
    return [t.detach() for t in (trace.winners, noise, given, log_prob, grad)]


def draw_raw(name, seed=0):
    """A kernel alone, with no operation of torch that would use threads."""
    trace = BIG[name].sample_trace(generator=generator(seed))
    return [trace.choices, trace.links]


def same(a, b):
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def our_threads():
    return [t for t in threading.enumerate() if t.name.startswith("gumtrace")]


def in_a_child(work):
    """Whether `work` returns something true in a forked child."""
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(0 if work() else 3))
    child.start()
    child.join(PATIENCE)
    if child.exitcode is None:
        child.kill()
        child.join()
    return child.exitcode == 0


@structures
def test_one_thread_or_two(name):
    shared = draw(name)
    with threads(1):
        assert same(draw(name), shared)


def test_large_batches_are_shared():
    draw("permutation")
    assert our_threads()  # else the tests of this file would test nothing


@forks
@structures
def test_a_child_of_a_process_with_threads(name):
    want, alone = draw(name), draw_raw(name, 1)
    assert our_threads()
    assert in_a_child(lambda: torch.set_num_threads(1) or same(draw(name), want))  # as a DataLoader's worker
    assert in_a_child(lambda: same(draw_raw(name, 1), alone))  # with threads of its own
    assert not in_a_child(lambda: same(draw_raw(name, 2), alone))  # and the child's answer counts


@forks
def test_children_of_children():
    want = draw_raw("permutation")
    assert in_a_child(lambda: same(draw_raw("permutation"), want) and in_a_child_of_ours(want))


def in_a_child_of_ours(want):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if same(draw_raw("permutation"), want) else 3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@forks
def test_a_fork_in_the_middle_of_a_run():
    want, done = draw_raw("permutation", 7), threading.Event()

    def keep_busy():
        while not done.is_set():
            draw_raw("permutation", 3)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        assert all(in_a_child(lambda: same(draw_raw("permutation", 7), want)) for _ in range(5))
    finally:
        done.set()
        busy.join()


class Drawn(torch.utils.data.Dataset):
    """Noise and trees drawn in the worker, without a generator, as people do."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        d = BIG["spanning tree"]
        return d.sample()[0], d.perturb()[0, 0, 1]


@forks
def test_workers_of_a_dataloader():
    draw("spanning tree")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loader = DataLoader(Drawn(), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=PATIENCE)
        trees, noise = zip(*loader, strict=True)
    assert torch.cat(trees).sum((-1, -2)).eq(2 * 14).all()
    assert len(torch.cat(noise).unique()) == 8  # workers have seeds of their own


@structures
def test_eight_threads_at_once(name):
    alone = [draw(name, seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: draw(name, seed), range(8), timeout=PATIENCE))
    assert all(map(same, alone, together))


def test_eight_threads_with_different_structures():
    jobs = [(name, seed) for seed in range(4) for name in BIG]
    alone = [draw_raw(*job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: draw_raw(*job), jobs, timeout=PATIENCE))
    assert all(map(same, alone, together))


def test_changing_the_number_of_threads_leaves_none_behind():
    want = draw_raw("permutation")
    for _ in range(20):
        for count in (2, 3):
            with threads(count):
                assert same(draw_raw("permutation"), want)
    assert len(our_threads()) <= 10


FRESH = """
import sys, threading, torch, gumtrace as gt
x = torch.randn(500, 100, generator=torch.Generator().manual_seed(0))
answers = [None] * 8
def first_call(i):
    answers[i] = gt.Permutation(x).sample(generator=torch.Generator().manual_seed(1))
threads = [threading.Thread(target=first_call, args=(i,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
sys.exit(0 if all(torch.equal(a, answers[0]) for a in answers) else 3)
"""

EXITS = """
import os, sys, torch, gumtrace as gt
torch.set_num_threads(2)
d = gt.Permutation(torch.zeros(500, 100))
d.sample_trace()
pid = os.fork()
d.sample_trace()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""  # both end as a program does, with all that Python runs at its exit


@pytest.mark.parametrize("script", [FRESH, pytest.param(EXITS, marks=forks)], ids=["first calls at once", "exit"])
@pytest.mark.slow
def test_whole_programs(script):
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=2 * PATIENCE)
    assert run.returncode == 0, run.stderr
