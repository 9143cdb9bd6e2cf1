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
from torch.autograd import forward_ad

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
NO_TANGENTS = (
    "gumtrace has no forward-mode derivatives (torch.func.jvp, jacfwd, hessian, dual tensors); reverse mode works: "
    "backward, torch.func.grad, vjp, jacrev, and jacrev(jacrev(f)) for a Hessian"
)


def new_seed(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """From the generator, or the device's own; drawn on the device, so that nothing waits for it.

    A generator of the CPU beside logits on another device makes the host wait: what it draws is copied there.
    """
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

    Called on plain tensors it runs at once. Where torch is looking on (torch.compile, fake tensors) the call goes
    through the operator that is registered with torch under its name, and under torch.func through a function that
    its transforms understand: the same kernels and derivatives, for the price of a dispatch in Python.
    """

    def __init__(self, name: str):
        self.name = name
        schema = f"({HEAD}, {SCHEMAS[name]}"
        kernel = lambda *args: self.run("cpu", *args)  # noqa: E731
        self.registered = torch.library.custom_op(f"gumtrace::{name}", kernel, mutates_args=(), schema=schema)
        self.registered.register_kernel("cuda")(lambda *args: self.run("cuda", *args))
        self.registered.register_fake(FAKES[name])
        self.registered.register_vmap(rule(name, self.registered))
        self.mapped = rule(name, self)
        self.derivative: tuple[Callable, Callable] | None = None

    def register_autograd(self, backward: Callable, *, setup_context: Callable) -> None:
        """The first result is differentiable, the others are not."""
        self.registered.register_autograd(backward, setup_context=setup_context)
        self.derivative = setup_context, backward

    def run(self, device_type: str, geometry, edges, *args):
        args = [x.contiguous() if torch.is_tensor(x) else x for x in args]
        kernel = getattr(_kernels(device_type), self.name)
        geometry = Geometry(*geometry)._replace(edges=edges)
        device = args[0].device
        if device_type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):  # Triton launches on the current one; the guard is not free
                return kernel(geometry, *args)
        return kernel(geometry, *args)

    def __call__(self, geometry, edges, *args):
        tensors = [x for x in args if torch.is_tensor(x)]
        if _traced(tensors):
            if forward_ad._current_level >= 0:
                raise NotImplementedError(NO_TANGENTS)
            return self.registered(geometry, edges, *args)
        if torch._C._are_functorch_transforms_active():
            return _Transformable.apply(self, geometry, edges, *args)
        if forward_ad._current_level >= 0:
            _refuse_tangents(tensors)
        if self.derivative and torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return _Differentiable.apply(self, geometry, edges, *args)
        return self.run(_device_type(tensors), geometry, edges, *args)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, operator: Operator, geometry, edges, *args):
        tensors = [x for x in args if torch.is_tensor(x)]
        results = operator.run(_device_type(tensors), geometry, edges, *args)
        _keep(ctx, (operator, geometry, edges, *args), results)
        return results

    @staticmethod
    def backward(ctx, *grads):
        return None, *ctx.operator.derivative[1](ctx, *grads)


class _Transformable(_Differentiable):
    """The same as torch.func wants it: grad, jacrev, vmap, and any of them within any other."""

    @staticmethod
    def forward(operator: Operator, geometry, edges, *args):  # type: ignore[override]
        return operator(geometry, edges, *args)  # all transforms are peeled off by now

    @staticmethod
    def setup_context(ctx, inputs, output):
        _keep(ctx, inputs, output)

    @staticmethod
    def vmap(info, in_dims, operator: Operator, *args):  # type: ignore[override]
        return operator.mapped(info, in_dims[1:], *args)

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(NO_TANGENTS)


def _keep(ctx, inputs, results) -> None:
    """What the backward of an operator needs; only the first result has one."""
    ctx.operator = operator = inputs[0]
    if operator.derivative is None:
        ctx.mark_non_differentiable(*(results if isinstance(results, tuple) else (results,)))
        return
    operator.derivative[0](ctx, inputs[1:], results)
    if isinstance(results, tuple):
        ctx.mark_non_differentiable(*results[1:])


def _refuse_tangents(tensors: list[Tensor]) -> None:
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors if x.is_floating_point()):
        raise NotImplementedError(NO_TANGENTS)


def is_traced(tensors: list[Tensor]) -> bool:
    """Whether torch is tracing or mapping these tensors: their values cannot be read then."""
    return _traced(tensors) or torch._C._are_functorch_transforms_active()


def _traced(tensors: list[Tensor]) -> bool:
    return torch.compiler.is_compiling() or any(type(x) not in (Tensor, torch.nn.Parameter) for x in tensors)


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


def _served(geometry) -> bool:
    return hasattr(_kernels("cuda"), "served") and _kernels("cuda").served(Geometry(*geometry))


def _fake_log_prob(geometry, edges, logits, winners, links):
    items, decisions = winners.shape[0], geometry[2]
    kept = logits.dtype if logits.is_cuda and _served(geometry) else torch.float64
    return logits.new_empty(items), logits.new_empty(items, decisions, dtype=kept)


FAKES = {
    "check_logits": lambda geometry, edges, x: x.new_empty(x.shape[0], dtype=torch.int8),
    "perturb": lambda geometry, edges, x, items, seed: x.new_empty(items, x.shape[1]),
    "trace": lambda geometry, edges, g, sizes: _fake_trace(geometry, g, g.shape[0]),
    "sample": lambda geometry, edges, x, sizes, items, seed: _fake_trace(geometry, x, items),
    "arborescence_heads": lambda geometry, edges, winners, links: winners.new_empty(winners.shape[0], geometry[5]),
    "indicator": lambda geometry, edges, winners, dtype: winners.new_empty(winners.shape[0], geometry[1], dtype=dtype),
    "log_prob": _fake_log_prob,
    "log_prob_grad": lambda geometry, edges, x, winners, links, totals, grad: x.new_empty(x.shape),
    "log_totals": lambda geometry, edges, x, winners, links: x.new_empty(winners.shape[0], geometry[2]),
    "to_keys": lambda geometry, edges, winners, links, alpha, beta, h: beta.new_empty(beta.shape),
    "to_decisions": lambda geometry, edges, winners, links, alpha, beta, h: alpha.new_empty(alpha.shape),
    "log_spread": lambda geometry, edges, winners, links, z: z.new_empty(z.shape[0], geometry[1]),
    "conditional": _fake_conditional,
    "conditional_grad": lambda geometry, edges, x, *rest: x.new_empty(x.shape),
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
