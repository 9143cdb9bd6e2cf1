"""All operators: what they take and give, and their shapes for tracing. Their derivatives are in `derivatives`.

    geometry          the event of an item
    logits            (batch, keys); item i of N = samples x batch reads row i mod batch
    winners, links    (items, ...) a trace
    sizes             (batch,) or (1,): k, a number of nodes, or which graph; None where all items have the geometry's
    seed              (2,) int64: the noise is a pure function of it, so the operators are too

The kernels are in the backends, see `gumtrace.kernels.backends`; `cpu.ops` says what each of them computes.
"""

import torch
from torch import Tensor

from gumtrace.kernels.backends import backend
from gumtrace.kernels.geometry import Geometry
from gumtrace.kernels.operators import Operator, is_plain
from gumtrace.kernels.vmap import Kind

ROWS, ITEMS, SIZES, NUMBER, SEED, DTYPE = Kind
TRACE = {"winners": ITEMS, "links": ITEMS}
MAP = {**TRACE, "alpha": ITEMS, "beta": ITEMS, "h": ITEMS}


def new_seed(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """From the generator, or the device's own; drawn on the device, so that nothing synchronises.

    A generator of the CPU beside logits on another device does: what it draws is copied there.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        given = f"{type(generator).__name__}: torch.Generator(device).manual_seed(0) is one"
        raise TypeError(f"generator must be a torch.Generator, got {given}")
    source = generator.device if generator is not None else device
    if source.type not in ("cpu", "cuda"):  # their integers are not all 64 bits wide
        source = torch.device("cpu")
    seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=source, generator=generator)
    return seed.to(device)


def computes_ahead(geometry: Geometry, logits: Tensor, items: int) -> bool:
    """Whether the gradient of log P(T) of so many items is computed with the value, so that one multiplication is left
    to backward.

    On CUDA torch runs backward in a thread of its own, where the host takes up to twice as long as in that of the
    caller; and small batches wait for the host.
    """
    if not is_plain([logits]):
        return False
    host_bound = getattr(backend(logits.device.type), "host_bound", None)
    return host_bound is not None and host_bound(geometry, items)


def repeat(logits: Tensor, items: int) -> Tensor:
    """(batch, keys) -> (items, keys)."""
    samples = items // max(logits.shape[0], 1)
    return logits.expand(samples, *logits.shape).reshape(samples * logits.shape[0], logits.shape[-1])


def _empty_trace(geometry: Geometry, like: Tensor, items) -> tuple[Tensor, Tensor, Tensor]:
    widths = (geometry.winner_slots, geometry.link_slots)
    winners, links = (like.new_empty(items, width, dtype=torch.int32) for width in widths)
    return winners, links, like.new_empty(items, dtype=torch.int8)


def _empty_distinct(geometry: Geometry, like: Tensor, items) -> tuple[Tensor, ...]:
    winners, links, status = _empty_trace(geometry, like, items)
    return winners, links, *(like.new_empty(items) for _ in range(3)), status


def _empty_log_prob(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    items, served = winners.shape[0], getattr(backend(logits.device.type), "served", None)
    if served is not None and served(geometry):
        return logits.new_empty(items), logits.new_empty(items, geometry.decisions)
    return logits.new_empty(items), logits.new_empty(items, 2, geometry.decisions, dtype=torch.float64)


def _empty_decisions(geometry: Geometry, logits: Tensor, gains, winners: Tensor, links: Tensor):
    stats = logits.new_empty(winners.shape[0], 2, geometry.decisions)
    return stats, _empty_log_prob(geometry, logits, winners, links)[1]


def _empty_conditional(geometry: Geometry, logits: Tensor, sizes, winners: Tensor, links, seed):
    items = winners.shape[0]
    totals, z = (logits.new_empty(items, geometry.decisions, dtype=torch.float64) for _ in range(2))
    return logits.new_empty(items, geometry.keys), totals, z, logits.new_empty(items, dtype=torch.bool)


check_logits = Operator(
    "check_logits",
    {"logits": ROWS},
    [ROWS],
    lambda geometry, x: x.new_empty(x.shape[0], dtype=torch.int8),
)
perturb = Operator(
    "perturb",
    {"logits": ROWS, "items": NUMBER, "seed": SEED},
    [ITEMS],
    lambda geometry, x, items, seed: x.new_empty(items, x.shape[1]),
)
trace = Operator(
    "trace",
    {"g": ITEMS, "sizes": SIZES},
    [ITEMS] * 3,
    lambda geometry, g, sizes: _empty_trace(geometry, g, g.shape[0]),
)
sample = Operator(
    "sample",
    {"logits": ROWS, "sizes": SIZES, "items": NUMBER, "seed": SEED},
    [ITEMS] * 3,
    lambda geometry, x, sizes, items, seed: _empty_trace(geometry, x, items),
)
distinct = Operator(
    "distinct",
    {"logits": ROWS, "sizes": SIZES, "items": NUMBER, "seed": SEED},
    [ITEMS] * 6,
    lambda geometry, x, sizes, items, seed: _empty_distinct(geometry, x, items),
)
indicator = Operator(
    "indicator",
    {"winners": ITEMS, "dtype": DTYPE},
    [ITEMS],
    lambda geometry, winners, dtype: winners.new_empty(winners.shape[0], geometry.keys, dtype=dtype),
)
arrangement = Operator(
    "arrangement",
    {"winners": ITEMS},
    [ITEMS],
    lambda geometry, winners: winners.new_empty(winners.shape, dtype=torch.long),
)
arborescence_edges = Operator(
    "arborescence_edges",
    TRACE,
    [ITEMS],
    lambda geometry, winners, links: winners.new_empty(winners.shape[0], geometry.nodes),
)
log_prob = Operator("log_prob", {"logits": ROWS, **TRACE}, [ITEMS] * 2, _empty_log_prob)
log_prob_grad = Operator(
    "log_prob_grad",
    {"logits": ROWS, **TRACE, "kept": ITEMS, "grad": ITEMS},
    [ROWS],
    lambda geometry, x, *rest: x.new_empty(x.shape),
)
decisions = Operator("decisions", {"logits": ROWS, "gains": ROWS, **TRACE}, [ITEMS] * 2, _empty_decisions)
decisions_grad = Operator(
    "decisions_grad",
    {"logits": ROWS, "gains": ROWS, **TRACE, "stats": ITEMS, "kept": ITEMS, "grad": ITEMS},
    [ROWS],
    lambda geometry, x, *rest: x.new_empty(x.shape),
)
conditional = Operator(
    "conditional",
    {"logits": ROWS, "sizes": SIZES, **TRACE, "seed": SEED},
    [ITEMS] * 4,
    _empty_conditional,
)
conditional_grad = Operator(
    "conditional_grad",
    {"logits": ROWS, **TRACE, "totals": ITEMS, "z": ITEMS, "g": ITEMS, "grad": ITEMS},
    [ROWS],
    lambda geometry, x, *rest: x.new_empty(x.shape),
)
log_totals = Operator(
    "log_totals",
    {"logits": ROWS, **TRACE},
    [ITEMS],
    lambda geometry, x, winners, links: x.new_empty(winners.shape[0], geometry.decisions),
)
log_spread = Operator(
    "log_spread",
    {**TRACE, "z": ITEMS},
    [ITEMS],
    lambda geometry, winners, links, z: z.new_empty(z.shape[0], geometry.keys),
)
to_keys = Operator("to_keys", MAP, [ITEMS], lambda geometry, winners, links, alpha, beta, h: beta.new_empty(beta.shape))
to_decisions = Operator(
    "to_decisions", MAP, [ITEMS], lambda geometry, winners, links, alpha, beta, h: alpha.new_empty(alpha.shape)
)
