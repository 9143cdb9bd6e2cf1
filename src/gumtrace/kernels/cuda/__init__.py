"""The kernels in Triton: a program an item, one file a structure beside its CPU twin, the same trace from the same
noise."""
