"""The one formula, apart from who raced with whom: what a key adds to its decisions and what is made of the sums, what
a decision hands to its keys and what becomes of that. A structure's `up` and `down` only walk.

`up` sums keys into decisions, Σ_k A[b, k] e^β_k h_k, and then (MODE)

    LOG_PROB     writes the log-probability of each decision, x[T_b] - log Λ_b, to `out`, and their sum to `log_prob`;
                 where a key has won that does not race it is -inf, and only the second term is written
    TOTALS       writes log Λ to `out`
    DRAW_MINIMA  the same, and the logs of the minima, z ~ log Exp(Λ), to `z`
    SCALED       writes e^α_b times the sum to `out`

(β = x and h = 1 in all but the last)

`down` sums decisions into keys, Σ_b A[b, k] e^α_b h_b, and then

    GRAD         writes the gradient of log P(T): α as LOG_PROB left it, h = -grad of the item; a winner gets + grad
    SCALED       writes e^β_k times the sum
    SPREAD       writes the log of the sum: α = z, h = 1
    CONDITIONAL  writes G | T, from the same sum
    SHARE        writes -log of the sum to `out` and to `more` the share of the minima in E, times grad
    TAIL         writes what SCALED does, and adds what of the gradient did not go through the minima: grad - more

α, totals and z are float64: large log-rates cancel in them; the log-probability of a decision is no large number.
`rows` log-rates serve all items, item i reads row i mod rows; everything else has a row for each item.
"""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.noise import KEYS, MINIMA, log_exponential, row_of
from gumtrace.kernels.cuda.order import code, decode
from gumtrace.kernels.cuda.scaled_float import NOTHING, exponential, exponential_as, held, logarithm, scaled

EXACT = {"enable_fp_fusion": False}  # an option of every launch: kernels that draw the same noise must round it alike

TOTALS, DRAW_MINIMA, SCALED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LOG_PROB, GRAD, SPREAD = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
CONDITIONAL, SHARE, TAIL = tl.constexpr(6), tl.constexpr(7), tl.constexpr(8)


@triton.jit
def key_term(beta, rows, h, item, keys, key, mask, MODE: tl.constexpr):
    """What each key adds to the decisions it raced in."""
    x, factor = read_keys(beta, rows, h, item, keys, key, mask, MODE)
    return read_key_term(x, factor, MODE)


@triton.jit
def read_keys(beta, rows, h, item, keys, key, mask, MODE: tl.constexpr):
    """Log-rates of keys, and their factors where they have any."""
    x = tl.load(beta + row_of(item, rows) * keys + key, mask=mask, other=float("-inf"))
    factor = x
    if MODE == SCALED:
        factor = tl.load(h + item * keys + key, mask=mask, other=0.0)
    return x, factor


@triton.jit
def read_key_term(x, factor, MODE: tl.constexpr):
    """The term of keys that are read already."""
    v, e = exponential(x)
    if MODE == SCALED:
        v *= factor
        e = tl.where(v == 0, NOTHING, e)
    return v, e


@triton.jit
def finish_decisions(
    v, e, beta, rows, alpha, out, z, seed, stream, item, keys, decisions, b, winner, live, MODE: tl.constexpr
):
    """Write decisions b from their sums. Returns their part of log P(T), and 0 in another mode."""
    inside = b < decisions
    place = item * decisions + b
    log_prob = tl.full((), 0.0, tl.float64)
    if MODE == SCALED:
        a = tl.load(alpha + place, mask=inside, other=0.0).to(tl.float64)
        va, ea = exponential_as(a, v.dtype)
        tl.store(out + place, tl.where(live, scaled(v * va, e + ea), 0.0), mask=inside)
    else:
        totals = tl.where(live & (v > 0), logarithm(v, e), 0.0)  # without racing keys as without a decision
        if MODE == LOG_PROB:
            x = tl.load(beta + row_of(item, rows) * keys + winner, mask=live, other=0.0)
            each = held(x).to(tl.float64) - totals
            tl.store(out + place, each.to(out.dtype.element_ty), mask=inside)
            log_prob = tl.sum(tl.where(x > float("-inf"), each, float("-inf")), 0)
        else:
            tl.store(out + place, totals, mask=inside)
        if MODE == DRAW_MINIMA:
            noise = log_exponential(seed, stream + MINIMA, item, b, v.dtype)
            tl.store(z + place, noise.to(tl.float64) - totals, mask=inside)
    return log_prob


@triton.jit
def decision_term(
    alpha, h, beta, rows, item, keys, decisions, b, winner, live, MODE: tl.constexpr, dtype: tl.constexpr
):
    """What each decision hands to the keys that raced in it."""
    x = b
    if MODE == GRAD:
        x = tl.load(beta + row_of(item, rows) * keys + winner, mask=live, other=0.0)
    return read_decision_term(x, alpha, h, item, decisions, b, live, MODE, dtype)


@triton.jit
def read_decision_term(x, alpha, h, item, decisions, b, live, MODE: tl.constexpr, dtype: tl.constexpr):
    """The same, where the winners' log-rates are read already."""
    inside = b < decisions
    a = tl.load(alpha + item * decisions + b, mask=inside, other=0.0).to(tl.float64)
    if MODE == GRAD:
        a -= held(x).to(tl.float64)
    if MODE == TAIL:
        a = -a
    v, e = exponential_as(a, dtype)
    if MODE == GRAD:
        v = -v * tl.load(h + item)
    if (MODE == SCALED) | (MODE == TAIL):
        v *= tl.load(h + item * decisions + b, mask=inside, other=0.0)
    nothing = (v == 0) | (live == 0)
    return tl.where(nothing, 0.0, v), tl.where(nothing, NOTHING, e)


@triton.jit
def store_idle(out, more, place, mask, MODE: tl.constexpr):
    """What keys get that do not race."""
    if (MODE == CONDITIONAL) | (MODE == SPREAD) | (MODE == SHARE):
        tl.store(out + place, float("-inf"), mask=mask)
    else:
        tl.store(out + place, 0.0, mask=mask)
    if MODE == SHARE:
        tl.store(more + place, 0.0, mask=mask)


@triton.jit
def known(key, keys):
    """Keys as a trace names them, -1 for none and for what is none: a trace may come from anywhere."""
    return tl.where(key < keys, key, -1)


@triton.jit
def winner_code(v, e, dtype: tl.constexpr):
    """The code of a winner's G, from the sum of the minima on its way."""
    return code((-logarithm(v, e)).to(dtype))


@triton.jit
def finish_keys(
    v, e, cap, won, beta, rows, grad, g, out, more, seed, stream, item, keys, key, mask, MODE: tl.constexpr
):
    """Write keys from their sums. In CONDITIONAL, `cap` is the code that G must not pass: the winner's own, where
    `won`, and for losers the one below the winner that beat them."""
    x = v
    if MODE != SPREAD:
        x = tl.load(beta + row_of(item, rows) * keys + key, mask=mask, other=float("-inf"))
    finish_read_keys(x, v, e, cap, won, grad, g, out, more, seed, stream, item, keys, key, mask, MODE)


@triton.jit
def finish_read_keys(x, v, e, cap, won, grad, g, out, more, seed, stream, item, keys, key, mask, MODE: tl.constexpr):
    """The same, where their log-rates are read already."""
    place = item * keys + key
    if MODE == SPREAD:
        tl.store(out + place, logarithm(v, e).to(v.dtype), mask=mask)
    elif (MODE == GRAD) | (MODE == SCALED) | (MODE == TAIL):
        vx, ex = exponential(x)
        result = scaled(v * vx, e + ex)
        if MODE == GRAD:
            result += tl.where(won, tl.load(grad + item), 0.0)
        if MODE == TAIL:
            direct = tl.load(grad + place, mask=mask, other=0.0) - tl.load(more + place, mask=mask, other=0.0)
            result += tl.where(x > float("-inf"), direct, 0.0)
        tl.store(out + place, result, mask=mask)
    else:
        shared = logarithm(v, e)
        if MODE == CONDITIONAL:
            fresh = log_exponential(seed, stream + KEYS, item, key, x.dtype) - x
            s = shared.to(x.dtype)
            high = tl.maximum(s, fresh)
            c = code(-(high + tl.log(1.0 + tl.exp(tl.minimum(s, fresh) - high))))
            c = tl.where(won, cap, tl.minimum(c, cap))
            tl.store(out + place, tl.where(x > float("-inf"), decode(c), float("-inf")), mask=mask)
        else:
            slope = tl.load(grad + place, mask=mask, other=0.0)
            value = tl.load(g + place, mask=mask, other=0.0).to(tl.float64)
            share = tl.exp(tl.minimum((value + shared).to(x.dtype), 0.0))
            share = tl.where(won, 1.0, tl.where(v > 0, share, 0.0))
            tl.store(out + place, tl.where(v > 0, -shared, float("-inf")), mask=mask)
            tl.store(more + place, tl.where(x > float("-inf"), share * slope, 0.0), mask=mask)
