"""Noise to trace, and the formula on traces: compiled loops for the CPU, Triton for CUDA, one file a structure.

`ops` is the way in: its operators choose the kernels by the device of their tensors.
"""

from gumtrace.kernels import derivatives as derivatives  # so that the operators have theirs
