"""Soft matchings and permutations: the doubly stochastic matrix that Sinkhorn's iteration tends to.

    X = argmax ⟨u, X⟩ - Σ X log X   over matrices of given row and column sums;   X = e^(u_ij + f_i + g_j)

Sinkhorn's iteration takes a time exponential in the spread of u. Here the same X is found by Newton's method for the
dual variables f, from a high temperature down, in five to fifty steps. Its derivative needs X alone: dX = X (du - a_i -
b_j), where a and b keep all row and column sums. This is a linear system, which autograd differentiates further.
"""

import torch
from torch import Tensor

from gumtrace.kernels.backends import own_kernel
from gumtrace.relaxations.transforms import refuse_transforms

SPREAD = 16.0  # temperature is raised until u spreads no further; Newton's method starts from there
COOLING = 4.0  # then temperature falls by this factor
ROUGHLY = 0.1  # as soon as the row sums are off by no more than this
RIDGE = 1e-12  # parts of X that are joined by less than this are separate: what is lost moves no entry by more
DEAD = -1e30  # the dual variable of a row that has no mass


def sinkhorn(
    u: Tensor,
    row_mass: Tensor | None = None,
    col_mass: Tensor | None = None,
    iterations: int = 200,
    tol: float = 1e-12,
) -> Tensor:
    """The soft matching of rows and columns: (*S, n, m), rows sum to 1 and columns to at most 1.

    Args:
        u: (*S, n, m): G / temperature, -inf for keys that do not race.
        row_mass, col_mass: what rows sum to and what columns may hold, in place of 1; expand to (*S, n) and (*S, m).
        iterations: the largest number of steps of Newton's method.
        tol: how far the row sums may be from their masses, all rows together; they are corrected in the end.

    Columns that are left over go to one more row, whose scores are all the same. Rows and columns without any key are
    0. Where the mask allows no matching of all rows, as much is matched as can be: rows that compete for too few
    columns share them, and sum to less than 1.

    As the temperature falls this tends to the matching of the largest Σ G (among those of most rows). The hard
    structure of the same noise is the greedy matching, which may be another. Computed in float64 and accurate however
    far u spreads; differentiable as often as one likes; O(n² m) a step.

    >>> sinkhorn(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """
    if u.dim() < 2:
        raise ValueError(f"sinkhorn: u must be (*S, n, m), got {tuple(u.shape)}")
    refuse_transforms("sinkhorn")
    n, m = u.shape[-2:]
    x = _wide(u).reshape(u.shape[:-2].numel(), n, m)
    racing = x > -torch.inf
    masses = []
    for mass, some in ((row_mass, racing.any(-1)), (col_mass, racing.any(-2))):
        given = 1.0 if mass is None else _wide(mass).expand(*u.shape[:-2], -1).reshape(some.shape).to(x.device)
        masses.append(torch.where(some, given, x.new_zeros(())))
    soft = _Transport.apply(*_bordered(x, racing, *masses), iterations, tol)
    return torch.where(racing, soft[:, :n, :m], 0.0).reshape(u.shape).to(u.device, u.dtype)  # type: ignore[index]


def permutation_matrix(u: Tensor) -> Tensor:
    """The soft permutation matrix (*S, d, d), row = position, column = key.

    Args:
        u: (*S, d): G / temperature, -inf for keys that do not race.

    This is `sinkhorn` of the scores weight_p u_i, with a weight that falls by 1 from one position to the next: of all
    permutations the one that sorts u has the largest score, so that, as the temperature falls, this tends to the hard
    structure of the same noise. Of two keys, the first comes first with weight sigmoid((u_0 - u_1) / 2). Keys that do
    not race have rows and columns of 0, the others fill the positions that are left.

    >>> permutation_matrix(torch.tensor([0.0, -torch.inf, 2.0]))
    tensor([[0.2689, 0.0000, 0.7311],
            [0.0000, 0.0000, 0.0000],
            [0.7311, 0.0000, 0.2689]])
    """
    x = _wide(u)
    racing = x > -torch.inf  # (*S, d)
    x = torch.where(racing, x, 0.0)
    x = x - x.detach().sum(-1, keepdim=True) / racing.sum(-1, keepdim=True).clamp(min=1)
    rank = racing.cumsum(-1)
    weight = (rank[..., -1:] + 1) / 2 - rank  # centred, as x is: neither changes the result
    scores = weight[..., :, None] * x[..., None, :]
    soft = sinkhorn(torch.where(racing[..., :, None] & racing[..., None, :], scores, -torch.inf))
    return soft.to(u.device, u.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to("cpu" if x.device.type == "mps" else x.device, torch.float64)  # mps has no float64


def _bordered(x: Tensor, racing: Tensor, rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Finite scores (items, n + 1, m + 1) with masses of rows and columns that add up to the same."""
    n = x.shape[-2]
    spare = (cols.sum(-1) - rows.sum(-1))[:, None]  # (items, 1), columns left over; if negative, rows
    rows, cols = torch.cat([rows, spare.clamp(min=0)], -1), torch.cat([cols, (-spare).clamp(min=0)], -1)
    flat, some = x.detach().flatten(1), racing.flatten(1)
    none = torch.tensor([[0.0]], dtype=x.dtype, device=x.device).expand(len(x), 1)  # where no key races at all
    flat, some = torch.cat([flat, none], -1), torch.cat([some, ~some.any(-1, keepdim=True)], -1)
    top = torch.where(some, flat, -torch.inf).amax(-1)[:, None, None]
    low = torch.where(some, flat, torch.inf).amin(-1)[:, None, None]
    # A key that does not race is so bad that n others, even joined in one cycle with it, cannot make up for it.
    x = torch.where(racing, x, low - n * (top - low + 40.0)) - top
    x = torch.nn.functional.pad(x, (0, 1, 0, 1))
    border = torch.zeros(x.shape[1:], dtype=torch.bool, device=x.device)
    border[-1, :], border[:, -1] = True, True
    return torch.where(border, (low - top) / 2, x), rows, cols


class _Transport(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rows, cols, iterations, tol):
        soft = _inside(_balanced(x, rows, cols, iterations, tol), rows, cols)
        ctx.save_for_backward(soft)
        return soft

    @staticmethod
    def backward(ctx, *grads):
        (soft,) = ctx.saved_tensors
        return _tangent(soft, grads[0]), None, None, None, None


def _tangent(soft: Tensor, du: Tensor) -> Tensor:
    """dX = X (du - a_i - b_j), whose row and column sums are 0. The map is its own transpose."""
    weighted = soft * du
    cols = soft.sum(-2) + RIDGE
    b = weighted.sum(-2) / cols  # (items, m), for a = 0
    a = _solve(_reduced(soft, soft.sum(-1), cols), weighted.sum(-1) - (soft @ b[..., None])[..., 0])
    b = b - (soft.mT @ a[..., None])[..., 0] / cols
    return soft * (du - a[..., :, None] - b[..., None, :])


def _reduced(soft: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """The system for the rows when the columns are eliminated, (items, n, n): the dual's matrix of second
    derivatives."""
    return torch.diag_embed(rows + RIDGE * (1 + rows)) - (soft / cols[..., None, :]) @ soft.mT


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    if torch.is_grad_enabled() and (matrix.requires_grad or right.requires_grad):
        return torch.linalg.solve(matrix, right)
    factor = torch.linalg.cholesky_ex(matrix).L  # faster, but slow to differentiate
    return torch.cholesky_solve(right[..., None], factor)[..., 0]


def _balanced(x: Tensor, rows: Tensor, cols: Tensor, iterations: int, tol: float) -> Tensor:
    kernel = own_kernel("sinkhorn", x.device.type)
    if kernel is None:
        return newton(x, rows, cols, iterations, tol)
    return kernel(x, rows, cols, (iterations, tol, SPREAD, COOLING, ROUGHLY, RIDGE))


@torch.no_grad()
def newton(x: Tensor, rows: Tensor, cols: Tensor, iterations: int, tol: float) -> Tensor:
    """X = cols · softmax over rows of (x + f), with f such that the row sums are right; x (items, n, m)."""
    out = torch.zeros_like(x)
    left = (rows.sum(-1) > 0).nonzero()[:, 0]  # items that are not done
    x, rows, cols = x[left], rows[left], cols[left]
    live = (rows > 0)[:, :, None] & (cols > 0)[:, None, :]
    x = torch.where(live, x, 0.0)
    spread = x.amax((-2, -1)) - x.amin((-2, -1))
    heat = (SPREAD / spread).clamp(max=1.0)  # one over the temperature
    close = tol + torch.finfo(x.dtype).eps * spread * x.shape[-2]  # no sum is closer than its rounding errors
    f = torch.where(rows > 0, 0.0, DEAD)
    for step in range(iterations):
        soft = (x * heat[:, None, None] + f[..., None]).softmax(-2) * cols[:, None, :]
        sums = soft.sum(-1)
        short = rows - sums
        good = ~(short.abs().sum(-1) > torch.where(heat < 1, ROUGHLY, close))  # nan is as good as it gets
        done = good & (heat >= 1) if step + 1 < iterations else torch.ones_like(good)
        if done.any():
            out[left[done]] = soft[done]
            keep = ~done
            left, x, rows, cols, f, heat, close = (y[keep] for y in (left, x, rows, cols, f, heat, close))
            soft, sums, short, good = (y[keep] for y in (soft, sums, short, good))
        if len(left) == 0:
            break
        move = _solve(_reduced(soft, sums, cols + RIDGE), short)
        # The dual is self-concordant in the range of the move: so far down it goes for certain.
        reach = (move.amax(-1) - move.amin(-1)).clamp(min=1e-30)
        f = torch.where(good[:, None], f, f + move * (reach.log1p() / reach)[:, None])
        cooler = torch.where(good, (COOLING * heat).clamp(max=1.0), heat)
        heat, f = cooler, torch.where(rows > 0, f * (cooler / heat)[:, None], DEAD)
    return out


def _inside(soft: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """Rows that hold too much are scaled down, then what rows and columns miss is added: the sums are exact."""
    sums = soft.sum(-1)
    soft = soft * (rows / sums.clamp(min=1e-300)).clamp(max=1.0)[..., None]
    row_gap, col_gap = (rows - soft.sum(-1)).clamp(min=0), (cols - soft.sum(-2)).clamp(min=0)
    total = row_gap.sum(-1)[:, None, None].clamp(min=1e-300)
    return soft + row_gap[..., :, None] * (col_gap[..., None, :] / total)
