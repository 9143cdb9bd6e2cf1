"""Whether the fuzzer can fail: `python tests/helpers/mutants.py [NAME ...]` puts one fault at a time into a copy of the
library and says how long `python -m gumtrace.fuzz` takes to find it. All of them take about an hour, mostly to compile.

A fault is a piece of a source file and what takes its place. One whose piece is no longer there is an error: change it
together with the source.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
LIMIT = 120  # seconds for each, compiling included
CPU, STRUCTURES, ESTIMATORS = "kernels/cpu", "structures", "estimators"
FAULTS = {  # name: (file, what is there, the fault)
    # who wins
    "ties to the larger key": (f"{CPU}/order.py", "(g[a] == g[b] and a < b)", "(g[a] == g[b] and a > b)"),
    "zeros of two signs": (f"{CPU}/order.py", "if g[key] != 0 else np.uint64(0)", "if True else np.uint64(0)"),
    "ties of parallel merges": (
        f"{CPU}/order.py",
        "(code == codes[j]) & (key < keys[j])",
        "(code == codes[j]) & (key > keys[j])",
    ),
    "a heap that sinks too little": (f"{CPU}/order.py", "range(k // 2 - 1, -1, -1)", "range(k // 2 - 1, 0, -1)"),
    "a column that stays free": (f"{CPU}/matching.py", "and col_free[col]:", "and (col_free[col] or col == 3):"),
    "a cycle's member that is not reduced": (
        f"{CPU}/arborescence.py",
        "        return e - minimum\n",
        "        return e\n",
    ),
    "a right child on the left": (
        f"{CPU}/binary_tree.py",
        "and i < above:",
        "and i <= above + 1:",
    ),
    "padding of one more token": (
        f"{STRUCTURES}/description.py",
        "keep & (index < self._lengths",
        "keep & (index <= self._lengths",
    ),
    # who raced
    "the diagonal races": (
        f"{CPU}/spanning_tree.py",
        "key // geometry.nodes < key % geometry.nodes",
        "key // geometry.nodes <= key % geometry.nodes",
    ),
    "an edge into the root": (f"{CPU}/arborescence.py", "        g[u * n + geometry.root] = -np.inf\n", ""),
    "a row that is crossed out late": (
        f"{CPU}/matching.py",
        "        for i in range(n):\n            if row_free[i]:",
        "        for i in range(1, n):\n            if row_free[i]:",
    ),
    "a forest's outlived pairs": (
        f"{CPU}/spanning_tree.py",
        "for v in range(u + 1, nodes):",
        "for v in range(u + 2, nodes):",
    ),
    "sums that skip the first group": (
        f"{CPU}/incidence.py",
        "    for g in range(groups - 1, -1, -1):\n        d_val[decision[g]] += sums[g]",
        "    for g in range(groups - 1, 0, -1):\n        d_val[decision[g]] += sums[g]",
    ),
    # the formula
    "a winner's gradient of the wrong sign": (
        f"{CPU}/formula.py",
        "out[j, won[b]] += grad[i]",
        "out[j, won[b]] -= grad[i]",
    ),
    "a loser level with its winner": (
        f"{CPU}/conditional.py",
        "cap = np.nextafter(node, below) if ordered",
        "cap = node if ordered",
    ),
    "fresh noise of the inverse rate": (
        f"{CPU}/conditional.py",
        "fresh = row[i] - x[keys[i]]",
        "fresh = row[i] + x[keys[i]]",
    ),
    "minima of the wrong rate": (f"{CPU}/conditional.py", "z[i, b] = noise[b] - totals[i, b]", "z[i, b] = noise[b]"),
    "a share of the minima too much": (
        f"{CPU}/conditional.py",
        "out[j, k] += (one - share) * grad[i, k]",
        "out[j, k] += grad[i, k]",
    ),
    "half of the uniforms": (f"{CPU}/simd_math.py", "f = w if low else one - w", "f = w"),
    "a second derivative's winner": (
        "kernels/derivatives.py",
        "won * weight[:, None] - lost",
        "won * weight[:, None] + lost",
    ),
    "orders that are counted twice": (
        f"{STRUCTURES}/exact.py",
        ".logsumexp(-1), now  # (G, S)",
        ".sum(-1), now  # (G, S)",
    ),
    # estimators
    "leave-one-out that is not scaled": (f"{ESTIMATORS}/base.py", "* (samples / (samples - 1))", "* 1.0"),
    "a control variate that stays in": (
        f"{ESTIMATORS}/control.py",
        "first.sum() - again.sum()",
        "first.sum() + again.sum()",
    ),
    "a surrogate that is not given back": (
        f"{ESTIMATORS}/surrogate.py",
        "return loss, evaluated + unevaluated",
        "return loss, evaluated",
    ),
    "a score of other noise": (f"{ESTIMATORS}/score.py", "dist.noise_log_prob(noise)", "dist.noise_log_prob(-noise)"),
    # relaxations
    "a temperature upside down": (
        "relaxations/__init__.py",
        "(noise / max(temperature, least))",
        "(noise * max(temperature, least))",
    ),
}


def find(name: str, more: list[str]) -> float | None:
    """Seconds until the fuzzer printed a failure; None if it did not in time."""
    file, piece, fault = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / "gumtrace" / file
        text = path.read_text()
        if text.count(piece) != 1:
            raise SystemExit(f"{name}: {file} has {text.count(piece)} times {piece!r}")
        path.write_text(text.replace(piece, fault))
        command = [sys.executable, "-m", "gumtrace.fuzz", "--seconds", str(LIMIT), *more]
        start = time.monotonic()
        # a session of its own: its workers end with it
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(LIMIT)
        try:
            line = next((line for line in process.stdout if line.startswith("FAILED")), None)
            seconds = time.monotonic() - start
        finally:
            signal.alarm(0)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if line is None:
        return None
    print(f"{name:40} {seconds:4.0f} s  {line.strip()[7:90]}", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="faults (default: all)")
    parser.add_argument("--seed", default="0")
    args = parser.parse_args()
    missed = []
    for name in args.names or FAULTS:
        if find(name, ["--seed", args.seed]) is None:
            missed.append(name)
            print(f"{name:40} NOT FOUND", flush=True)
    print(f"{len(args.names or FAULTS) - len(missed)} of {len(args.names or FAULTS)} found within {LIMIT} s")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
