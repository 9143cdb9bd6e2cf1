"""Numba kernels. `ops` is the door: everything else is called from compiled code."""
