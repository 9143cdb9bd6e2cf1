"""A fraction of the time of Triton's interpreter, which runs the CUDA kernels where there is no GPU: it does the same
without work that has no effect.

- Sums of integers are made once more in 64 bits, for an assertion that is dropped unless kernels are compiled for
  debugging, which the interpreter's options never are.
- The functions of `triton.language` are replaced by those of the interpreter at each call of a device function; once a
  launch is enough for all functions of one module.
- The shape and the numpy type of each result are derived anew, in Python: here, once for each type.
- Operands of one type and shape are converted and broadcast: here, they are left as they are.
- Reductions and scans by a function of ours combine one element after the other: here, all elements at once, those
  next to each other first, as a GPU does. Sums are rounded in another order.

These are private names of Triton: where a version has others, the interpreter is as slow as it comes.
"""

import dataclasses
import functools
import math

import numpy as np


def apply() -> None:
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if hasattr(builder.options, "sanitize_overflow") and not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    if hasattr(interpreter, "_patch_lang"):
        _patch_once_a_launch(interpreter)
    if hasattr(interpreter, "interpreter_semantic"):
        _derive_types_once(interpreter)
        _leave_equal_operands(type(interpreter.interpreter_semantic))
        interpreter.ScanOps.generic_scan = _scan
        slowly = interpreter.ReduceOps.generic_reduce
        interpreter.ReduceOps.generic_reduce = lambda self, given: (
            slowly(self, given) if self.keep_dims or self.axis is None else _reduce(self, given)
        )


def _patch_once_a_launch(interpreter) -> None:
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[int] = set()  # modules, by their namespaces

    @functools.wraps(launch)
    def launch_anew(self, *args, **kwargs):
        patched.clear()  # the end of a launch restores the language
        return launch(self, *args, **kwargs)

    @functools.wraps(patch)
    def patch_once(fn):
        if id(fn.__globals__) in patched:
            return None
        patched.add(id(fn.__globals__))
        return patch(fn)

    interpreter.GridExecutor.__call__ = launch_anew
    interpreter._patch_lang = patch_once


def _derive_types_once(interpreter) -> None:
    """By the names of types, which say all of them."""
    from triton.language import core

    numpy_type, init_block = interpreter._get_np_dtype, core.block_type.__init__
    numpy_types: dict = {}
    blocks: dict = {}  # attributes of block types, but the type of their elements
    shapes: dict = {}  # numel and shape of tensors

    def numpy_type_once(dtype):
        if dtype.name not in numpy_types:
            numpy_types[dtype.name] = numpy_type(dtype)
        return numpy_types[dtype.name]

    def init_block_once(self, element_ty, shape):
        key = (element_ty.name, *(size.value if type(size) is core.constexpr else size for size in shape))
        if key not in blocks:
            init_block(self, element_ty, shape)
            blocks[key] = {name: value for name, value in self.__dict__.items() if name != "element_ty"}
        self.__dict__.update(blocks[key], element_ty=element_ty)

    def init_tensor(self, handle, type):
        if type.name not in shapes:
            sizes = tuple(type.shape) if type.is_block() else ()
            shape = core.tuple([core.constexpr(size) for size in sizes])
            shapes[type.name] = {"numel": core.constexpr(math.prod(sizes)), "shape": shape}
        self.__dict__.update(shapes[type.name], handle=handle, type=type, dtype=type.scalar)

    interpreter._get_np_dtype = numpy_type_once
    core.block_type.__init__ = init_block_once
    core.tensor.__init__ = init_tensor


def _leave_equal_operands(semantic) -> None:
    broadcast = semantic.broadcast_impl_value

    def broadcast_unless_equal(self, lhs, rhs):
        a, b = lhs.type, rhs.type
        if a is b or (a.is_block() and b.is_block() and a.shape.values == b.shape.values):
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    semantic.broadcast_impl_value = broadcast_unless_equal
    convert = getattr(semantic, "_cast_to_computation_type", None)
    if convert is None:  # Triton 3.4 converts in other places
        return

    def convert_unless_equal(self, value, dtype):
        return value if getattr(value, "dtype", None) is dtype else convert(self, value, dtype)

    semantic._cast_to_computation_type = convert_unless_equal


def _combined(self, before, here, types):
    """Arrays, by the function that a reduction or a scan was given."""
    tensors = [self.to_tensor(x, dtype) for x, dtype in zip([*before, *here], [*types, *types], strict=True)]
    both = self.combine_fn.fn(*tensors)
    return [x.handle.data for x in (both if isinstance(both, tuple) else (both,))]


def _scan(self, given):
    """In place of ScanOps.generic_scan."""
    arrays, types = [x.handle.data for x in given], [x.dtype for x in given]
    shape, axis = arrays[0].shape, self.axis
    place = np.arange(shape[axis]).reshape([-1 if other == axis else 1 for other in range(len(shape))])
    step = 1
    while step < shape[axis]:
        both = _combined(self, [np.roll(x, step, axis) for x in arrays], arrays, types)
        arrays = [np.where(place >= step, new, old) for new, old in zip(both, arrays, strict=True)]
        step *= 2
    return [self.to_tensor(x, dtype) for x, dtype in zip(arrays, types, strict=True)]


def _reduce(self, given):
    """In place of ReduceOps.generic_reduce."""
    arrays, types = [np.moveaxis(x.handle.data, self.axis, 0) for x in given], [x.dtype for x in given]
    while len(arrays[0]) > 1:
        arrays = _combined(self, [x[::2] for x in arrays], [x[1::2] for x in arrays], types)
    return [self.to_tensor(x[0], dtype) for x, dtype in zip(arrays, types, strict=True)]
