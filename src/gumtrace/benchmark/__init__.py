"""Time and memory of the structures: a registry of cases, a gate of cheap correctness checks, and the timing.

`gumtrace bench` runs the registry; `run_case` runs one case, from the registry or of your own:

>>> records = run_case(Case("BinaryTree", {"n": 5}), batch=4, repeat=1)
>>> [record.step for record in records]
['perturb', 'trace', 'sample_trace', 'log_prob', 'log_prob+backward', 'conditional', 't_step', 'trace_reinforce']
>>> {record.trace_bytes <= record.logits_bytes for record in records}
{True}
"""

from gumtrace.benchmark.cases import CASES, STRUCTURES, Case, Instance, prepare
from gumtrace.benchmark.gate import CheckFailed, check_case
from gumtrace.benchmark.memory import peak_bytes
from gumtrace.benchmark.records import Record, load, machine, save
from gumtrace.benchmark.scale import BASELINE, SCALE, check_scale, run_scale
from gumtrace.benchmark.timing import RELAXED, STEPS, run_case

__all__ = [
    "BASELINE",
    "CASES",
    "RELAXED",
    "SCALE",
    "STEPS",
    "STRUCTURES",
    "Case",
    "CheckFailed",
    "Instance",
    "Record",
    "check_case",
    "check_scale",
    "load",
    "machine",
    "peak_bytes",
    "prepare",
    "run_case",
    "run_scale",
    "save",
]
