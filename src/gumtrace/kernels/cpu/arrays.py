"""New arrays, and old ones read as another type. Numba compiles its own functions for this anew for every type of
argument: a second for a step that makes a dozen arrays. These are compiled once."""

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from gumtrace.kernels.cpu.jit import jit


@intrinsic
def _as_bits(context, x):
    """The bits of a float array as signed integers of the same width, or the other way round: the same memory."""
    width = x.dtype.bitwidth
    number = types.Integer.from_bitwidth(width) if isinstance(x.dtype, types.Float) else types.Float(f"float{width}")
    result = x.copy(dtype=number)

    def generate(context, builder, signature, args):
        source = context.make_array(signature.args[0])(context, builder, args[0])
        target = context.make_array(signature.return_type)(context, builder)
        populate_array(
            target,
            data=builder.bitcast(source.data, context.get_value_type(number).as_pointer()),
            shape=cgutils.unpack_tuple(builder, source.shape),
            strides=cgutils.unpack_tuple(builder, source.strides),
            itemsize=source.itemsize,
            meminfo=source.meminfo,
            parent=source.parent,
        )
        return impl_ret_borrowed(context, builder, signature.return_type, target._getvalue())

    return result(x), generate


as_bits: Any = _as_bits  # the compiler adds the first argument


@jit
def integer_row(x, n):
    """Scratch of n integers as wide as the numbers of x."""
    return as_bits(np.empty(n, x.dtype))


@jit
def integers(n, value):
    """n times an integer."""
    out = np.empty(n, np.int32)
    for i in range(n):
        out[i] = value
    return out


@jit
def counting(n):
    """0, 1, ..., n - 1."""
    out = np.empty(n, np.int32)
    for i in range(n):
        out[i] = i
    return out


@jit
def copy_row(x, n, out):
    """out[:n] = x[:n], which as it stands has Numba compile, for two seconds, an error message about shapes."""
    for i in range(n):
        out[i] = x[i]
