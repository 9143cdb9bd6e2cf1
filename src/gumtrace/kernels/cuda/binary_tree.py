"""Binary trees over tokens: the Cartesian tree of G. Above a token stands the nearer, in order, of the two nearest
tokens on its sides that beat it, and its subtree is all between those two.

All tokens of an item work at once, in steps as many as the logarithm of their number, whatever the tree: the nearest
better tokens are found in blocks of 2^l tokens, subtrees are summed from such blocks, and a way to the root is walked
in jumps that double.
"""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    LOG_PROB,
    decision_term,
    finish_decisions,
    finish_keys,
    key_term,
    store_idle,
    winner_code,
)
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.noise import noisy
from gumtrace.kernels.cuda.order import code, least
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, scaled

LARGEST = 2048  # tokens: one program holds them all
SMALL = tl.constexpr(2.0**-60)  # numbers this far below the largest go as pairs v 2^e


@triton.jit
def _beaten_across(c, token, LOG: tl.constexpr):
    """Bit l: some token beats this one in the other half of its block of 2^(l + 1) tokens."""
    own = tl.reshape(c, [2] * LOG)  # an axis a bit of the token
    place = tl.reshape(token, [2] * LOG)
    top = own  # of the block of 2^l tokens
    bits = place * 0
    for level in tl.static_range(LOG):
        other = top ^ tl.xor_sum(top, LOG - 1 - level, keep_dims=True)
        beaten = (other > own) | ((other == own) & (((place >> level) & 1) == 1))
        bits |= beaten.to(tl.int32) << level
        top = tl.maximum(top, other)
    return tl.reshape(bits, c.shape)


@triton.jit
def _lowest(bits):
    return bits & -bits


@quick
@triton.jit(do_not_specialize=["rows"])
def _trace(source, rows, seed, links, status, n, LOG: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    token = tl.arange(0, 1 << LOG)
    g = noisy(source, rows, seed, item, n, token, token < n)
    wrong = tl.max(tl.where(g < float("inf"), 0, 2), 0)
    tl.store(status + item, wrong.to(tl.int8))
    c = code(g)
    bits = _beaten_across(c, token, LOG)
    far_left = _lowest(bits & token)  # 2^l: the nearest better one is in the block of 2^l before one's own; 0 for none
    far_right = _lowest(bits & ~token)
    left = (token ^ far_left) & -far_left  # the first token of that block, then bit by bit the one we look for
    right = (token ^ far_right) & -far_right
    for level in tl.static_range(LOG - 2, -1, -1):
        tops = c  # of blocks of 2^level
        if level > 0:
            tops = tl.max(tl.reshape(c, [1 << (LOG - level), 1 << level]), 1)
        left |= tl.where(tl.gather(tops, (left >> level) | 1, 0) >= c, (far_left - 1) & (1 << level), 0)
        right |= tl.where(tl.gather(tops, right >> level, 0) <= c, (far_right - 1) & (1 << level), 0)
    nearer = (far_right == 0) | (tl.gather(c, left, 0) < tl.gather(c, right, 0))
    parent = tl.where((far_left > 0) & nearer, left, tl.where(far_right > 0, right, -1))
    tl.store(links + item * n + token, tl.where((c > least(g)) & (wrong == 0), parent, -2), mask=token < n)


@triton.jit
def _parents(links, item, token, n):
    """The token above each one; -1 for the root, -2 for none, and for what is no token."""
    parent = tl.load(links + item * n + token, mask=token < n, other=-2)
    return tl.where(parent < n, tl.maximum(parent, -2), -2)


@triton.jit
def _between(parent, token, LOG: tl.constexpr):
    """The tokens on both sides of each subtree: ancestors, or -1 and 2^LOG. A parent on the other side of the token has
    the same one on this side, and so on upwards."""
    left = parent
    right = tl.where(parent < 0, 1 << LOG, parent)
    rounds = tl.full((), 0, tl.int32)
    while (tl.max(((left > token) | (right < token)).to(tl.int32), 0) > 0) & (rounds < LOG):
        left = tl.gather(left, tl.maximum(left, token), 0)
        right = tl.gather(right, tl.minimum(right, token), 0)
        rounds += 1
    return left, right


@triton.jit
def _one_scale(v, e):
    """The numbers over one power of two, that power, and whether none of them is too small for it."""
    top = tl.max(e, 0)
    w = scaled(v, e - top)
    return w, top, tl.max(((v != 0) & (tl.abs(w) < SMALL)).to(tl.int32), 0) == 0


@triton.jit
def _add_from(v, e, v_from, e_from, place, some, WIDE: tl.constexpr):
    """Add the number at each place, where there is some."""
    v_more = tl.where(some, tl.gather(v_from, place, 0), 0.0)
    if WIDE:
        return add(v, e, v_more, tl.where(some, tl.gather(e_from, place, 0), NOTHING))
    else:
        return v + v_more, e


@triton.jit
def _blocks_between(left, right):
    """Bit l: the block of 2^l tokens that is the other half to that of `left` lies between left and right; the same for
    `right`. What is between is made of these blocks."""
    apart = left ^ right
    for shift in tl.static_range(4):
        apart |= apart >> (1 << shift)
    return ~left & (apart >> 1), right & (apart >> 1)


@triton.jit
def _block_sums(w, left, right, by_left, by_right, LOG: tl.constexpr):
    """Sums of w between left and right."""
    v = tl.where((by_right >> LOG) == 1, tl.sum(w, 0), 0.0)
    for level in tl.static_range(LOG):
        if level > 0:
            w = tl.sum(tl.reshape(w, [1 << (LOG - level), 2]), 1)  # of blocks of 2^level
        v += tl.where(((by_left >> level) & 1) == 1, tl.gather(w, (left >> level) ^ 1, 0), 0.0)
        v += tl.where(((by_right >> level) & 1) == 1, tl.gather(w, (right >> level) ^ 1, 0), 0.0)
    return v


@triton.jit
def _wide_block_sums(v_block, e_block, token, left, right, by_left, by_right, LOG: tl.constexpr):
    """The same of numbers v 2^e. The row of blocks is as long at every level, and only its first part is meant."""
    v, e = tl.zeros_like(v_block), token * 0 + NOTHING
    for level in range(LOG):
        v, e = _add_from(v, e, v_block, e_block, (left >> level) ^ 1, ((by_left >> level) & 1) == 1, True)
        v, e = _add_from(v, e, v_block, e_block, (right >> level) ^ 1, ((by_right >> level) & 1) == 1, True)
        half = (2 * token) & ((1 << LOG) - 1)
        v_block, e_block = _add_from(
            tl.gather(v_block, half, 0), tl.gather(e_block, half, 0), v_block, e_block, half + 1, token >= 0, True
        )
    return _add_from(v, e, v_block, e_block, token * 0, (by_right >> LOG) == 1, True)


@quick
@triton.jit(do_not_specialize=["rows", "stream"])
def _up(links, beta, rows, h, alpha, out, log_prob, z, seed, stream, n, MODE: tl.constexpr, LOG: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    token = tl.arange(0, 1 << LOG)
    parent = _parents(links, item, token, n)
    live = parent >= -1
    left, right = _between(parent, token, LOG)
    by_left, by_right = _blocks_between(left, right)
    by_left, by_right = tl.where(live, by_left, 0), tl.where(live, by_right, 0)
    left, right = tl.maximum(left, 0), right & ((1 << LOG) - 1)  # places to read, needed or not
    v, e = key_term(beta, rows, h, item, n, token, live, MODE)
    w, top, close = _one_scale(v, e)
    if close:
        v, e = _block_sums(w, left, right, by_left, by_right, LOG), token * 0 + top
    else:
        v, e = _wide_block_sums(v, e, token, left, right, by_left, by_right, LOG)
    log_probs = finish_decisions(v, e, beta, rows, alpha, out, z, seed, stream, item, n, n, token, token, live, MODE)
    if MODE == LOG_PROB:
        tl.store(log_prob + item, log_probs.to(beta.dtype.element_ty))


@triton.jit
def _path_sums(v, e, parent, LOG: tl.constexpr, WIDE: tl.constexpr):
    """Sums over each token and all above it."""
    above = parent
    rounds = tl.full((), 0, tl.int32)
    while (tl.max(above, 0) >= 0) & (rounds < LOG):
        some = above >= 0
        place = tl.maximum(above, 0)
        v, e = _add_from(v, e, v, e, place, some, WIDE)
        above = tl.where(some, tl.gather(above, place, 0), -1)
        rounds += 1
    return v, e


@triton.jit
def _hold_below(c, parent, LOG: tl.constexpr):
    """Codes held below those of all tokens above, by as much as these are steps away."""
    above = parent
    away = tl.full((), 1, tl.int32)
    while (tl.max(above, 0) >= 0) & (away < 1 << LOG):
        some = above >= 0
        place = tl.maximum(above, 0)
        c = tl.where(some, tl.minimum(c, tl.gather(c, place, 0) - away), c)
        above = tl.where(some, tl.gather(above, place, 0), -1)
        away *= 2
    return c


@quick
@triton.jit(do_not_specialize=["rows", "stream"])
def _down(
    links,
    alpha,
    h,
    beta,
    rows,
    grad,
    g,
    out,
    more,
    seed,
    stream,
    n,
    MODE: tl.constexpr,
    LOG: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    token = tl.arange(0, 1 << LOG)
    dtype: tl.constexpr = beta.dtype.element_ty
    parent = _parents(links, item, token, n)
    live = parent >= -1
    v, e = decision_term(alpha, h, beta, rows, item, n, n, token, token, live, MODE, dtype)
    w, top, close = _one_scale(v, e)
    if close:
        v, e = _path_sums(w, e, parent, LOG, False)
        e = e * 0 + top
    else:
        v, e = _path_sums(v, e, parent, LOG, True)
    cap = token
    if MODE == CONDITIONAL:
        cap = _hold_below(winner_code(v, e, dtype), parent, LOG)
    finish_keys(v, e, cap, live, beta, rows, grad, g, out, more, seed, stream, item, n, token, live, MODE)
    store_idle(out, more, item * n + token, (token < n) & (live == 0), MODE)


def serves(geometry):
    return geometry.keys <= LARGEST


def trace(geometry, source, sizes, seed, winners, links, status):
    where = (source, source.shape[0], seed, links, status, geometry.keys)
    _trace[(links.shape[0],)](*where, **_tile(geometry.keys, 128))


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    where = (links, beta, beta.shape[0], h, alpha, out, log_prob, z, seed, stream, geometry.keys)
    _up[(links.shape[0],)](*where, MODE=mode, **_tile(geometry.keys, 64))


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    where = (links, alpha, h, beta, beta.shape[0], grad, g, out, more, seed, stream, geometry.keys)
    _down[(links.shape[0],)](*where, MODE=mode, **_tile(geometry.keys, 128))


def _tile(n, share):
    """Launch options for n tokens, `share` of them to a warp. One warp alone gathers by shuffles, as many as the square
    of its rows of 32; several go through shared memory."""
    log = max(n - 1, 15).bit_length()
    return {"LOG": log, "num_warps": max(1, min(16, (1 << log) // share)), **EXACT}
