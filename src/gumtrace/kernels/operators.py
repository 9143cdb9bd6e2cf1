"""What makes a kernel an operator of torch: one name for every device, and what torch.compile and torch.func must know.

`gumtrace.kernels.ops` is the table of them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gumtrace.kernels.backends import backend, own_backends
from gumtrace.kernels.geometry import Geometry, flatten_geometry, unflatten_geometry
from gumtrace.kernels.vmap import Kind, rule

NO_TANGENTS = (
    "gumtrace has no forward-mode derivatives (torch.func.jvp, jacfwd, hessian, dual tensors); reverse mode works: "
    "backward, torch.func.grad, vjp, jacrev, and jacrev(jacrev(f)) for a Hessian"
)

_PLAIN = frozenset({Tensor, torch.nn.Parameter})


class Operator:
    """One kernel for every device.

    Called on plain tensors it runs at once. Where torch is tracing (torch.compile, fake tensors) the call goes through
    the operator that is registered with torch under its name, and under torch.func through a function that its
    transforms understand: the same kernels and derivatives, for the price of a dispatch in Python.

    Args:
        name: of the operator, and of the kernel in every backend.
        arguments: the kind of each argument behind the geometry, by name.
        results: the kind of each result.
        fake: (geometry, *arguments) -> empty results of the right shape and dtype, for tracing.
    """

    def __init__(self, name: str, arguments: Mapping[str, Kind], results: Sequence[Kind], fake: Callable):
        self.name = name

        def kernel(numbers, edges, *args, on="cpu"):
            return self.run(on, unflatten_geometry(numbers, edges), *args)

        schema = _schema(arguments, results)
        self.registered = torch.library.custom_op(f"gumtrace::{name}", kernel, mutates_args=(), schema=schema)
        for device_type in own_backends():
            self.registered.register_kernel(device_type)(partial(kernel, on=device_type))
        self.registered.register_fake(lambda numbers, edges, *args: fake(unflatten_geometry(numbers, edges), *args))
        kinds = list(arguments.values()), list(results)
        self.registered.register_vmap(rule(self.registered, *kinds))
        self.mapped = rule(self.flat, *kinds)
        self.derivative: tuple[Callable, Callable] | None = None

    def register_autograd(self, backward: Callable, *, setup_context: Callable) -> None:
        """The first result is differentiable, the others are not. Both functions know the geometry as one argument."""
        self.registered.register_autograd(
            lambda ctx, *grads: (None, *backward(ctx, *grads)),
            setup_context=lambda ctx, inputs, output: setup_context(ctx, _with_geometry(inputs), output),
        )
        self.derivative = setup_context, backward

    def run(self, device_type: str, geometry: Geometry, *args):
        return run(getattr(backend(device_type), self.name), geometry, *args)

    def flat(self, numbers, edges, *args):
        """The same, with the geometry as torch.library takes it."""
        return self(unflatten_geometry(numbers, edges), *args)

    def __call__(self, geometry: Geometry, *args):
        tensors = [x for x in args if isinstance(x, Tensor)]
        if _traced(tensors):
            if forward_ad._current_level >= 0:
                raise NotImplementedError(NO_TANGENTS)
            return self.registered(*flatten_geometry(geometry), *args)
        if torch._C._are_functorch_transforms_active():
            return _Transformable.apply(self, *flatten_geometry(geometry), *args)
        if forward_ad._current_level >= 0:
            _refuse_tangents(tensors)
        if self.derivative is not None and torch.is_grad_enabled():
            for x in tensors:
                if x.requires_grad:
                    return _Differentiable.apply(self, geometry, *args)
        return self.run(tensors[0].device.type, geometry, *args)


def run(kernel: Callable, geometry: Geometry, *args):
    """A kernel of a backend, on tensors as they come: of any layout, on any of several GPUs."""
    args = [x.contiguous() if isinstance(x, Tensor) else x for x in args]
    device = args[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):  # Triton launches on the current one; the guard is not free
            return kernel(geometry, *args)
    return kernel(geometry, *args)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, operator: Operator, geometry: Geometry, *args):
        results = operator.run(args[0].device.type, geometry, *args)
        ctx.is_eager = True  # nothing traces or maps what is computed here
        _keep(ctx, operator, (geometry, *args), results)
        return results

    @staticmethod
    def backward(ctx, *grads):
        return None, *ctx.operator.derivative[1](ctx, *grads)


class _Transformable(torch.autograd.Function):
    """The same as torch.func wants it: grad, jacrev, vmap, and any of them within any other."""

    @staticmethod
    def forward(operator: Operator, numbers, edges, *args):  # type: ignore[override]
        return operator.flat(numbers, edges, *args)  # all transforms are peeled off by now

    @staticmethod
    def setup_context(ctx, inputs, output):
        _keep(ctx, inputs[0], _with_geometry(inputs[1:]), output)

    @staticmethod
    def backward(ctx, *grads):
        return None, None, *ctx.operator.derivative[1](ctx, *grads)

    @staticmethod
    def vmap(info, in_dims, operator: Operator, *args):  # type: ignore[override]
        return operator.mapped(info, in_dims[1:], *args)

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError(NO_TANGENTS)


def _schema(arguments: Mapping[str, Kind], results: Sequence[Kind]) -> str:
    """As torch.library writes it. The first two arguments are a geometry, see `flatten_geometry`."""
    types = {Kind.SIZES: "Tensor?", Kind.NUMBER: "SymInt", Kind.DTYPE: "ScalarType"}
    taken = ", ".join(f"{types.get(kind, 'Tensor')} {name}" for name, kind in arguments.items())
    given = ", ".join(["Tensor"] * len(results))
    return f"(SymInt[] geometry, Tensor? edges, {taken}) -> {given if len(results) == 1 else f'({given})'}"


def _with_geometry(inputs: Sequence) -> tuple:
    """Arguments as `Operator` takes them, of those that torch.library does."""
    numbers, edges, *args = inputs
    return unflatten_geometry(numbers, edges), *args


def _keep(ctx, operator: Operator, inputs: tuple, results) -> None:
    """What the backward of an operator needs; only the first result has one."""
    ctx.operator = operator
    if operator.derivative is None:
        ctx.mark_non_differentiable(*(results if isinstance(results, tuple) else (results,)))
        return
    operator.derivative[0](ctx, inputs, results)
    if isinstance(results, tuple):
        ctx.mark_non_differentiable(*results[1:])


def _refuse_tangents(tensors: list[Tensor]) -> None:
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors if x.is_floating_point()):
        raise NotImplementedError(NO_TANGENTS)


def is_traced(tensors: list[Tensor]) -> bool:
    """Whether torch is tracing or mapping: values cannot be read then."""
    return _traced(tensors) or torch._C._are_functorch_transforms_active()


def is_plain(tensors: list[Tensor]) -> bool:
    """Whether there is autograd's graph and nothing else: no tracing, no torch.func, no forward-mode derivatives. Only
    then a function of autograd may stand for several operations, for fewer nodes."""
    return not is_traced(tensors) and forward_ad._current_level < 0


def _traced(tensors: list[Tensor]) -> bool:
    return torch.compiler.is_compiling() or not _PLAIN.issuperset(map(type, tensors))
