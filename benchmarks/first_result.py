"""How long a new user waits: `python benchmarks/first_result.py`, on a quiet machine, a quarter of an hour.

Seconds from the end of `import torch` to the first sample, the first TraceREINFORCE step and the first relaxed step,
each structure in processes of its own: with nothing compiled, with everything compiled, and four at once with nothing
compiled. The library is a copy, so that nothing that was compiled before is found.
"""

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "first_result.json"
AT_ONCE = 4


def measure(structure: str) -> None:
    """The process of one user: prints seconds as JSON."""
    import torch

    start, seconds = time.perf_counter(), {}
    from gumtrace.cli.warm_up import make
    from gumtrace.estimators import StochasticSoftmax, TraceREINFORCE
    from gumtrace.relaxations import has_relaxation

    dist = make(structure, torch.float32)
    dims = len(dist.event_shape)
    dist.sample()
    seconds["sample"] = time.perf_counter() - start
    estimators = {"step": TraceREINFORCE()} | ({"relaxed": StochasticSoftmax()} if has_relaxation(dist) else {})
    for name, estimator in estimators.items():
        estimator(dist, lambda x: x.to(torch.float32).flatten(-dims).sum(-1)).sum().backward()
        seconds[name] = time.perf_counter() - start
    print(json.dumps(seconds))


def start(structure: str, library: Path, cache: Path, script: str = __file__) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(library), "GUMTRACE_CACHE_DIR": str(cache)}
    command = [sys.executable, "-W", "ignore", script, structure]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@contextmanager
def fresh_library() -> Iterator[tuple[Path, Path]]:
    """A copy of the library in which only Python's own files are compiled, as pip does, and a place for kernels."""
    with tempfile.TemporaryDirectory() as folder:
        library, cache = Path(folder) / "src", Path(folder) / "cache"
        shutil.copytree(ROOT / "src", library, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(library, quiet=1)
        yield library, cache


def finished(process: subprocess.Popen) -> dict:
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} failed")
    return json.loads(out)


def main() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    from gumtrace.benchmark import machine
    from gumtrace.cli.warm_up import NAMES

    records = []
    with fresh_library() as (library, cache):
        for structure in NAMES:
            shutil.rmtree(cache, ignore_errors=True)
            cold = finished(start(structure, library, cache))
            warm = finished(start(structure, library, cache))
            shutil.rmtree(cache)
            together = [start(structure, library, cache) for _ in range(AT_ONCE)]
            slowest = max(finished(process)[max(cold, key=cold.get)] for process in together)
            records.append({"structure": structure, "cold": cold, "warm": warm, "slowest_of_four": slowest})
            print(json.dumps(records[-1]), flush=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
