"""The kernels in Triton: one program per item, one file per structure as for the CPU, the same trace from the same
noise."""
