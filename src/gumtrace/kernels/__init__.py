"""Noise to trace, and the formula on traces, as compiled loops: one file a structure."""
