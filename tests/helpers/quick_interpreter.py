"""Half the time of Triton's interpreter, which runs the CUDA kernels where there is no GPU: it does the same without
work that has no effect.

- Sums of integers are made once more in 64 bits, for an assertion that is dropped unless kernels are compiled for
  debugging, which the interpreter's options never are.
- The functions of `triton.language` are replaced by those of the interpreter at each call of a device function; once a
  launch is enough for all functions of one module.

These are private names of Triton: where a version has others, the interpreter is as slow as it comes.
"""

import dataclasses
import functools


def apply() -> None:
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if hasattr(builder.options, "sanitize_overflow") and not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    if hasattr(interpreter, "_patch_lang"):
        _patch_once_a_launch(interpreter)


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
