"""How long an update of the experiments takes, alone and beside others:
python experiments/benchmarks/updates.py --device cuda

As `gumtrace train --graph` makes it (on a CPU without a graph), in full size; the paper's times are those of its Table
"timings-table", on hardware it does not name. Writes
experiments/benchmarks/results/updates.json. `--smoke` takes the sizes of `gumtrace train --smoke`, `--experiments`
times some of them and keeps what the file has of the others. About three minutes on a GPU, most of which data and
compilers take.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gumtrace.benchmark import machine
from gumtrace.extras import require
from gumtrace_experiments import find
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.workers import Workers

RESULTS = Path(__file__).parent / "results" / "updates.json"
BESIDE = (1, 4)  # runs on the device
ROUNDS, REPEATS = 25, 5  # a time is that of so many updates of each run, and the median of so many times


@dataclass(frozen=True)
class Case:
    experiment: str
    estimator: str
    paper: float | None = None  # milliseconds
    settings: dict[str, Any] = field(default_factory=dict)


def cases() -> list[Case]:
    """What changes the work: the protocol, the estimator, K. Gradients are not clipped, which takes a little longer.
    parentheses_table.py clocks parentheses."""
    kept, found = {"samples": 1, "learn_temperature": False}, []
    for training, paper in (("unrolled", (123, 137, 180)), ("teacher-forced", (None,) * 3)):
        sst, trace, relax = paper
        found += [
            Case("graph-layout", "StochasticSoftmax", sst, {"training": training}),
            Case("graph-layout", "TraceREINFORCE", trace, {"training": training, "samples": 8}),
            Case("graph-layout", "RELAX", relax, {"training": training, "samples": 4}),
            Case("graph-layout", "REBAR", None, {"training": training, **kept}),
        ]
    return [
        *found,
        Case("listops", "StochasticSoftmax", 175),
        Case("listops", "NoiseREINFORCE", None, {"samples": 4}),
        Case("listops", "TraceREINFORCE", 249, {"samples": 4}),
        Case("listops", "RELAX", 535, {"samples": 2}),
        Case("listops", "REBAR", None, {**kept, "samples": 2}),
        Case("listops", "REBAR", None, {"samples": 1}),
        Case("l2x", "StochasticSoftmax"),
        Case("l2x", "StraightThrough"),
        Case("l2x", "MarginalStraightThrough"),
        Case("l2x", "IMLE", None, {"adaptive": True}),
        Case("l2x", "TraceREINFORCE", None, {"samples": 4}),
        Case("l2x", "RELAX", None, {"samples": 1}),
    ]


def measure(case: Case, device: torch.device, data: Path, smoke: bool) -> list[dict]:
    """A record for each number of runs. The host may get ahead of the device: all is waited for in the end alone."""
    kind = find(case.experiment)
    config = kind.config_type(estimator=case.estimator, schedule="cosine", **case.settings)
    config = kind.smoke(config) if smoke else config
    loaded, workers = kind.load_data(config, data, device), Workers(device)
    runs: list[Run] = []
    records = []
    with config.set_precision():
        for beside in BESIDE:
            while len(runs) < beside:
                model = kind.build(config.replace(seed=len(runs)), loaded, device)
                runs.append(Run(model, None, workers, graph=device.type == "cuda"))
            clocked(runs, 3)
            times = [clocked(runs, ROUNDS) for _ in range(REPEATS)]
            about = {"experiment": case.experiment, "estimator": case.estimator, "settings": case.settings}
            about |= {"machine": machine(device), "smoke": smoke}
            ms = {"ms": statistics.median(times), "min_ms": min(times), "paper_ms": case.paper}
            records.append({**about, "runs": beside, **ms})
    return records


def clocked(runs: list[Run], rounds: int) -> float:
    """Milliseconds that an update of one of them takes."""
    wait = torch.cuda.synchronize if runs[0].recorded else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(rounds):
        for run in runs:
            run.update()
    wait()
    return 1e3 * (time.perf_counter() - start) / (rounds * len(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--data", type=Path, default=Path("data"), help="folder for the data, which are made if missing"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="small models and little data")
    known = list(dict.fromkeys(case.experiment for case in cases()))
    parser.add_argument("--experiments", nargs="+", choices=known, default=known, metavar="NAME")
    args = parser.parse_args()
    chosen = [case for case in cases() if case.experiment in args.experiments]
    before = json.loads(args.out.read_text())["records"] if args.out.exists() else []
    records = [record for record in before if record["experiment"] not in args.experiments]
    others = {(record["machine"]["device"], record["smoke"]) for record in records}
    if others - {(machine(torch.device(args.device))["device"], args.smoke)}:
        parser.error(f"{args.out} has other experiments on another device or in another size: name another --out")
    for case in require("tqdm", "cli").tqdm(chosen, desc="updates", unit="case"):
        records += measure(case, torch.device(args.device), args.data, args.smoke)
    args.out.write_text(json.dumps({"records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
