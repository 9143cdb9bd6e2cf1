"""Where the time of a first step goes: `python benchmarks/compile_time.py`, on a quiet machine, a minute.

CPU seconds from the end of `import torch` to the end of the first TraceREINFORCE step, with nothing compiled, in
processes of their own; of three for each structure, the fastest. Every second is counted once, for the innermost part
of the compiler that runs: passes as Numba announces them, and below them what LLVM does.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

from first_result import RESULTS as FIRST
from first_result import ROOT, finished, fresh_library, start

RESULTS = FIRST.with_name("compile_time.json")
STRUCTURES = ("Subset", "Arborescence")
RUNS = 3  # whatever else the machine does makes them slower
PASSES = {"nopython_type_inference": "typing", "native_lowering": "lowering"}  # any other: OTHER
IMPORTS, OTHER, REST = "imports", "other passes", "all else"
PARTS = ("optimisation", "code generation", "linking", "text of IR", "lowering", "typing", OTHER, IMPORTS, REST)


class Clock:
    """CPU seconds of the innermost part that was entered, and of the innermost function that is compiled."""

    def __init__(self):
        self.seconds: Counter[str] = Counter()
        self.of_functions: Counter[str] = Counter()
        self.parts, self.functions, self.compiled = [REST], [], 0
        self.since = time.process_time()

    def tick(self) -> None:
        now = time.process_time()
        self.seconds[self.parts[-1]] += now - self.since
        if self.functions:
            self.of_functions[self.functions[-1]] += now - self.since
        self.since = now

    def enter(self, part: str) -> None:
        self.tick()
        self.parts.append(part)

    def leave(self) -> None:
        self.tick()
        self.parts.pop()

    def timed(self, part: str, function: Callable) -> Callable:
        @wraps(function)
        def call(*args, **kwargs):
            self.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return call


def watch(clock: Clock) -> None:
    """Let the compiler report to the clock."""
    from llvmlite import binding, ir
    from numba.core import codegen, event

    class Passes(event.Listener):
        def on_start(self, event):
            clock.enter(PASSES.get(event.data["name"].partition(" ")[0], OTHER))

        def on_end(self, event):
            clock.leave()

    class Functions(event.Listener):
        def on_start(self, event):
            clock.tick()
            clock.compiled += 1
            clock.functions.append(f"{event.data['dispatcher'].py_func.__qualname__} {clock.compiled}")

        def on_end(self, event):
            clock.tick()
            clock.functions.pop()

    event.register("numba:run_pass", Passes())
    event.register("numba:compile", Functions())
    library: Any = codegen.CPUCodeLibrary
    calls = [
        (library, "_optimize_functions", "optimisation"),
        (library, "_optimize_final_module", "optimisation"),
        (codegen.JITCodeLibrary, "_finalize_specific", "code generation"),
        (binding.ModuleRef, "link_in", "linking"),
        (ir.Module, "__repr__", "text of IR"),
        (codegen.ll, "parse_assembly", "text of IR"),
    ]
    for owner, name, part in calls:
        setattr(owner, name, clock.timed(part, getattr(owner, name)))


def measure(structure: str) -> None:
    """The process of one user: prints a record as JSON."""
    import torch

    clock = Clock()
    clock.enter(IMPORTS)
    from gumtrace.cli.warm_up import make
    from gumtrace.estimators import TraceREINFORCE
    from gumtrace.kernels.cpu import ops  # noqa: F401

    clock.leave()
    watch(clock)
    dist = make(structure, torch.float32)
    dims = len(dist.event_shape)
    TraceREINFORCE()(dist, lambda x: x.to(torch.float32).flatten(-dims).sum(-1)).sum().backward()
    clock.tick()
    largest, seconds = clock.of_functions.most_common(1)[0]
    record = {"structure": structure, "seconds": {part: clock.seconds[part] for part in PARTS}}
    record |= {"functions": clock.compiled, "largest": largest.partition(" ")[0], "largest_seconds": seconds}
    print(json.dumps(record))


def main() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    from gumtrace.benchmark import machine

    records = []
    for structure in STRUCTURES:
        found = []
        for _ in range(RUNS):
            with fresh_library() as (library, cache):
                found.append(finished(start(structure, library, cache, __file__)))
        records.append(min(found, key=lambda record: sum(record["seconds"].values())))
        print(json.dumps(records[-1]), flush=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
