"""A fuzzer: random structures with hostile numbers, each checked by algorithms that share nothing with the kernels.

`python -m gumtrace.fuzz --seconds 60 --seed 0` runs it; a failure is shrunk and printed as a script. CONTRIBUTING says
how it is run for a night.
"""
