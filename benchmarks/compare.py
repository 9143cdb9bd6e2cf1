"""Whether a change made the library slower: `python benchmarks/compare.py OLD [NEW]`, two checkouts, in one run.

Each checkout has a process of its own that holds all steps of a case of `gumtrace bench`. The two are asked in turn,
one step at a time, so that both see the same moments of a shared machine; what is printed for each step is the median
over rounds of new / old. Differences below a few per cent are noise: `--rounds` and a quiet machine lower it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def serve() -> None:
    """The process of a checkout: a case by its number, then steps by name; answers are seconds per call."""
    import torch

    from gumtrace.benchmark.cases import CASES, prepare
    from gumtrace.benchmark.timing import _seconds, _synchroniser, steps

    device = torch.device(sys.argv[2])
    batch = 4096 if device.type == "cuda" else 1024
    calls, wait = {}, _synchroniser(device)
    for line in sys.stdin:
        asked = json.loads(line)
        if "case" in asked:
            calls = steps(prepare(CASES[asked["case"]], batch, device))
            numbers = {}
            for name, call in calls.items():
                for _ in range(3):
                    seconds = _seconds(call, 1, wait)
                numbers[name] = max(1, round(2e-3 / seconds))
            answer = list(calls)
        else:
            answer = _seconds(calls[asked["step"]], numbers[asked["step"]], wait)
        print(json.dumps(answer), flush=True)


class Checkout:
    def __init__(self, folder: Path, device: str):
        source = folder.resolve() / "src"
        environment = {**os.environ, "PYTHONPATH": str(source)}
        command = [sys.executable, __file__, "--serve", device]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=folder)

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, nargs="?", default=HERE, help="another one (default: this one)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios here too")
    args = parser.parse_args()
    from gumtrace.benchmark.cases import CASES, has_kernel

    old, new = (Checkout(folder, args.device) for folder in (args.old, args.new))
    found = {}
    for number, case in enumerate(CASES):
        if (case.repeat or 99) < args.rounds or not has_kernel(case, args.device):
            continue
        names = old.ask(case=number)
        assert new.ask(case=number) == names
        ratios = {step: [] for step in names}
        for turn in range(args.rounds):
            for step in names:
                first, second = (old, new) if turn % 2 else (new, old)
                times = {checkout: checkout.ask(step=step) for checkout in (first, second)}
                ratios[step].append(times[new] / times[old])
        found[case.name] = {step: statistics.median(each) for step, each in ratios.items()}
        print(
            f"{case.name:48}", "  ".join(f"{step} {ratio:.3f}" for step, ratio in found[case.name].items()), flush=True
        )
        if args.json is not None:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    steps = {step for ratios in found.values() for step in ratios}
    for step in sorted(steps):
        each = [ratios[step] for ratios in found.values() if step in ratios]
        print(f"{step:20} median {statistics.median(each):.3f}, from {min(each):.3f} to {max(each):.3f}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--serve":
        serve()
    else:
        main()
