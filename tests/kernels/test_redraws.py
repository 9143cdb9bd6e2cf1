"""Noise given a trace that rounding lost is drawn again: independent of the first draw, and of the same law."""

from itertools import combinations

import numpy as np
import pytest
import torch
from common import FALSE_ALARM
from scipy import stats

import gumtrace as gt
from gumtrace.kernels import ops
from gumtrace.kernels.cpu import conditional, simd_math
from gumtrace.kernels.cpu.jit import kernel
from gumtrace.kernels.cpu.ops import compiled

ITEMS, ATTEMPTS = 4000, 4


@pytest.fixture(scope="module")
def attempts():
    """Unit exponentials of the decisions and G of each attempt, all given one trace: [(items, 2), (items, 4)]. The size
    that the kernel is told is wrong, so that no attempt finds the trace again and the last one is kept."""
    d = gt.Arborescence(torch.zeros(3, 3, dtype=torch.float64))
    trace = d.sample_trace(generator=torch.Generator().manual_seed(0))
    winners, links = (x.expand(ITEMS, -1).contiguous().numpy() for x in trace.rows())
    geometry = d._layout.geometry
    seed = ops.new_seed(torch.device("cpu"), torch.Generator().manual_seed(1)).numpy().view("uint64")
    drawn = []
    for count in range(1, ATTEMPTS + 1):
        g = np.empty((ITEMS, geometry.keys))
        totals, z = (np.empty((ITEMS, geometry.decisions)) for _ in range(2))
        failed = np.empty(ITEMS, bool)
        wrong = np.array([1], np.int32)
        inputs = (d._rows().numpy(), wrong, winners, links, seed, count)
        conditional.conditional(0, ITEMS, compiled(geometry), *inputs, g, totals, z, failed)
        assert failed.all()
        drawn.append((np.exp(z + totals)[:, 1:3], g[:, d.racing.flatten().numpy()]))
    return drawn


@pytest.mark.parametrize(("first", "second"), list(combinations(range(ATTEMPTS), 2)))
def test_attempts_are_independent(attempts, first, second):
    """Rank correlation of every number with the same one of another attempt."""
    for before, after in zip(attempts[first], attempts[second], strict=True):
        for a, b in zip(before.T, after.T, strict=True):
            assert stats.spearmanr(a, b).pvalue > FALSE_ALARM


@pytest.mark.parametrize("attempt", range(ATTEMPTS))
def test_each_attempt_has_the_law_of_the_noise(attempts, attempt):
    minima, g = attempts[attempt]
    assert stats.kstest(minima.ravel(), "expon").pvalue > FALSE_ALARM
    for key, of_key in enumerate(g.T):
        assert stats.ks_2samp(of_key, attempts[0][1][:, key]).pvalue > FALSE_ALARM


def test_the_first_attempt_has_the_seed_itself():
    """Draws of earlier versions come again."""
    attempt_seed = kernel(simd_math.attempt_seed.py_func)
    seed, own = np.array([3, 5], np.uint64), np.empty(2, np.uint64)
    attempt_seed(seed, 0, own)
    assert (own == seed).all()
    attempt_seed(seed, 1, own)
    assert (own != seed).all()
