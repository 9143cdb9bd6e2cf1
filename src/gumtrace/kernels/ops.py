"""The kernels as operators of torch: one name for every device, and what torch.compile and vmap must know of each.

    geometry, edges   the event of an item, see `Geometry`; edges of sparse graphs only
    logits            (batch, keys); item i of N = samples x batch reads row i mod batch
    winners, links    (items, ...) a trace
    sizes             (batch,) or (1,): k or a number of nodes; None where all items have the geometry's
    seed              (2,) int64: the noise is a pure function of it, so the operators are too

Derivatives are in `gumtrace.traces.formula`. CUDA tensors go to the Triton kernels, all others to the compiled loops
for the CPU, visiting it if need be.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from gumtrace.kernels.batching import rule
from gumtrace.kernels.kinds import Geometry

HEAD = "SymInt[] geometry, Tensor? edges"
TRACE = "Tensor winners, Tensor links"
SCHEMAS = {
    "check_logits": "Tensor logits) -> Tensor",
    "perturb": "Tensor logits, SymInt items, Tensor seed) -> Tensor",
    "trace": "Tensor g, Tensor? sizes) -> (Tensor, Tensor, Tensor)",
    "sample": "Tensor logits, Tensor? sizes, SymInt items, Tensor seed) -> (Tensor, Tensor, Tensor)",
    "arborescence_heads": f"{TRACE}) -> Tensor",
    "indicator": "Tensor winners, ScalarType dtype) -> Tensor",
    "log_prob": f"Tensor logits, {TRACE}) -> (Tensor, Tensor)",
    "log_prob_grad": f"Tensor logits, {TRACE}, Tensor kept, Tensor grad) -> Tensor",
    "log_totals": f"Tensor logits, {TRACE}) -> Tensor",
    "to_keys": f"{TRACE}, Tensor alpha, Tensor beta, Tensor h) -> Tensor",
    "to_decisions": f"{TRACE}, Tensor alpha, Tensor beta, Tensor h) -> Tensor",
    "log_spread": f"{TRACE}, Tensor z) -> Tensor",
    "conditional": f"Tensor logits, Tensor? sizes, {TRACE}, Tensor seed) -> (Tensor, Tensor, Tensor, Tensor)",
    "conditional_grad": f"Tensor logits, {TRACE}, Tensor totals, Tensor z, Tensor g, Tensor grad) -> Tensor",
}


def new_seed(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """From the generator, or the device's own; drawn on the device, so that nothing waits for it."""
    source = generator.device if generator is not None else device
    if source.type not in ("cpu", "cuda"):  # their integers are not all 64 bits wide
        source = torch.device("cpu")
    seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=source, generator=generator)
    return seed.to(device)


def parts(geometry: Geometry) -> tuple[list[int], Tensor | None]:
    """A geometry as operators take it."""
    return list(geometry[:-1]), geometry.edges


# Which kernels -------------------------------------------------------------------------------------


@cache
def _kernels(device_type: str):
    """The module of kernels, imported when first used: numba and triton are slow to load."""
    if device_type == "cuda" and find_spec("triton") is None:
        device_type = "cpu"  # and `gumtrace.backends()` says so
    return import_module(f"gumtrace.kernels.{device_type}.ops")


class Operator:
    """One kernel for every device.

    Called on plain tensors it runs at once. Where torch is looking on (torch.compile, vmap, fake tensors) the call goes
    through the operator that is registered with torch under its name: the same kernels and derivatives, for the price
    of a dispatch in Python.
    """

    def __init__(self, name: str):
        self.name = name
        schema = f"({HEAD}, {SCHEMAS[name]}"
        kernel = lambda *args: self.run("cpu", *args)  # noqa: E731
        self.registered = torch.library.custom_op(f"gumtrace::{name}", kernel, mutates_args=(), schema=schema)
        self.registered.register_kernel("cuda")(lambda *args: self.run("cuda", *args))
        self.registered.register_fake(FAKES[name])
        self.registered.register_vmap(rule(name, self.registered))
        self.derivative: tuple[Callable, Callable] | None = None

    def register_autograd(self, backward: Callable, *, setup_context: Callable) -> None:
        """The first result is differentiable, the others are not."""
        self.registered.register_autograd(backward, setup_context=setup_context)
        self.derivative = setup_context, backward

    def run(self, device_type: str, geometry, edges, *args):
        args = [x.contiguous() if torch.is_tensor(x) else x for x in args]
        return getattr(_kernels(device_type), self.name)(Geometry(*geometry)._replace(edges=edges), *args)

    def __call__(self, geometry, edges, *args):
        tensors = [x for x in args if torch.is_tensor(x)]
        if watched(tensors):
            return self.registered(geometry, edges, *args)
        if self.derivative and torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return _Differentiable.apply(self, geometry, edges, *args)
        return self.run(_device_type(tensors), geometry, edges, *args)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, operator: Operator, geometry, edges, *args):
        tensors = [x for x in args if torch.is_tensor(x)]
        results = operator.run(_device_type(tensors), geometry, edges, *args)
        ctx.operator = operator
        operator.derivative[0](ctx, (geometry, edges, *args), results)  # type: ignore[index]
        if isinstance(results, tuple):
            ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(ctx, *grads):
        return None, *ctx.operator.derivative[1](ctx, *grads)


def watched(tensors: list[Tensor]) -> bool:
    """Whether torch is tracing or mapping: values cannot be looked at then."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    return any(type(x) not in (Tensor, torch.nn.Parameter) for x in tensors)


def _device_type(tensors: list[Tensor]) -> str:
    return "cuda" if tensors[0].is_cuda else "cpu"


# Shapes of results, for tracing --------------------------------------------------------------------


def _fake_trace(geometry, like: Tensor, items) -> tuple[Tensor, Tensor, Tensor]:
    g = Geometry(*geometry)
    widths = (g.winner_slots, g.link_slots)
    winners, links = (like.new_empty(items, width, dtype=torch.int32) for width in widths)
    return winners, links, like.new_empty(items, dtype=torch.int8)


def _fake_conditional(geometry, edges, logits, sizes, winners, links, seed):
    g = Geometry(*geometry)
    items = winners.shape[0]
    totals, z = (logits.new_empty(items, g.decisions, dtype=torch.float64) for _ in range(2))
    return logits.new_empty(items, g.keys), totals, z, logits.new_empty(items, dtype=torch.bool)


def _served(geometry, dtype: torch.dtype) -> bool:
    return hasattr(_kernels("cuda"), "served") and _kernels("cuda").served(Geometry(*geometry), dtype)


def _fake_log_prob(geometry, edges, logits, winners, links):
    items, decisions = winners.shape[0], geometry[2]
    kept = logits.dtype if logits.is_cuda and _served(geometry, logits.dtype) else torch.float64
    return logits.new_empty(items), logits.new_empty(items, decisions, dtype=kept)


FAKES = {
    "check_logits": lambda geometry, edges, x: x.new_empty(x.shape[0], dtype=torch.int8),
    "perturb": lambda geometry, edges, x, items, seed: x.new_empty(items, x.shape[1]),
    "trace": lambda geometry, edges, g, sizes: _fake_trace(geometry, g, g.shape[0]),
    "sample": lambda geometry, edges, x, sizes, items, seed: _fake_trace(geometry, x, items),
    "arborescence_heads": lambda geometry, edges, winners, links: winners.new_empty(winners.shape[0], geometry[5]),
    "indicator": lambda geometry, edges, winners, dtype: winners.new_empty(winners.shape[0], geometry[1], dtype=dtype),
    "log_prob": _fake_log_prob,
    "log_prob_grad": lambda geometry, edges, x, winners, links, totals, grad: torch.empty_like(x),
    "log_totals": lambda geometry, edges, x, winners, links: x.new_empty(winners.shape[0], geometry[2]),
    "to_keys": lambda geometry, edges, winners, links, alpha, beta, h: torch.empty_like(beta),
    "to_decisions": lambda geometry, edges, winners, links, alpha, beta, h: torch.empty_like(alpha),
    "log_spread": lambda geometry, edges, winners, links, z: z.new_empty(z.shape[0], geometry[1]),
    "conditional": _fake_conditional,
    "conditional_grad": lambda geometry, edges, x, *rest: torch.empty_like(x),
}


check_logits = Operator("check_logits")
perturb = Operator("perturb")
trace = Operator("trace")
sample = Operator("sample")
arborescence_heads = Operator("arborescence_heads")
indicator = Operator("indicator")
log_prob = Operator("log_prob")
log_prob_grad = Operator("log_prob_grad")
log_totals = Operator("log_totals")
to_keys = Operator("to_keys")
to_decisions = Operator("to_decisions")
log_spread = Operator("log_spread")
conditional = Operator("conditional")
conditional_grad = Operator("conditional_grad")
