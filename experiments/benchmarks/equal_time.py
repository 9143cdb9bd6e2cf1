"""Every row of the tables of ListOps and graph layout, at equal calls and at equal time:
python experiments/benchmarks/equal_time.py --data FOLDER --device cuda --only layout-10 --minutes 9

It clocks an update of each row alone (to clock, have the machine alone), trains its seeds in runs/tables as `gumtrace
train` does, on CUDA by graphs, with --beside runs side by side, and records what is finished beside the lab notes, with
the times, from which `gumtrace table` and `gumtrace plot` make tables and curves. What is done is not repeated, and
what was interrupted, or stopped by --minutes, is resumed by the same command: so it can be given in slices. --list
shows the rows and what is left of them, --only and --seeds choose some, --parts does a part of it, --change takes other
settings, --again clocks once more, for kernels that have changed.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from equal_time_rows import Row, rows  # beside this file
from kset_contest import Found, clock, setting

from gumtrace.benchmark import machine
from gumtrace_experiments.commands.options import label, read_seeds
from gumtrace_experiments.config import Config
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.training import train_all
from gumtrace_experiments.report.records import collect, read_run, save
from gumtrace_experiments.report.times import IDLE, TIMES, Time, load

RESULTS = Path(__file__).parents[1] / "results"
PARTS = ("clock", "train", "record")


class OutOfTime(Exception):
    """What was evaluated is kept."""


@dataclass(frozen=True)
class Tables:
    """Some rows. `seeds` are those of all of them, "" each row's own."""

    chosen: Sequence[Row]
    data: Path
    device: torch.device
    out: Path
    results: Path = RESULTS
    seeds: str = ""
    change: dict[str, Any] = field(default_factory=dict)
    beside: int = 10
    again: bool = False
    """Whether to clock what was clocked before."""

    def config(self, row: Row) -> Config | None:
        """None if it depends on times that are not known."""
        config = row.config(self.change)
        if not row.within or "iterations" in self.change:
            return config
        (other,) = [one for one in rows() if one.name == row.within]
        own, others = self.time(row), self.time(other)
        if own is None or others is None:
            return None
        return config.replace(iterations=own.iterations(others.seconds(other.config(self.change).iterations)))

    def runs(self, row: Row) -> list[tuple[Config, Path]]:
        config = self.config(row)
        if config is None:
            return []
        folder = self.out / row.experiment / label(config)
        return [(config.replace(seed=s), folder / f"seed-{s}") for s in read_seeds(self.seeds or row.seeds)]

    def left(self, row: Row) -> list[tuple[Config, Path]]:
        """Runs that are not finished."""
        return [(config, path) for config, path in self.runs(row) if not (path / "result.json").exists()]

    def time(self, row: Row) -> Time | None:
        device = machine(self.device)["device"]
        return load([self.results / row.experiment]).of(row.experiment, row.config(self.change).to_dict(), device)

    def seconds(self, row: Row) -> float | None:
        """That the updates which are left take, one run after the other; None if they were not clocked."""
        time = self.time(row)
        if time is None or self.config(row) is None:
            return None
        return sum(time.seconds(config.iterations) - time.seconds(_reached(path)) for config, path in self.left(row))

    def clock(self) -> None:
        for row in self.chosen:
            config = row.config(self.change)
            settings = {name: value for name, value in setting(config).items() if name not in IDLE}
            about = {"experiment": row.experiment, "setting": settings, "device": machine(self.device)["device"]}
            file = self.results / row.experiment / TIMES
            file.parent.mkdir(parents=True, exist_ok=True)
            Found(file).add("updates", about, lambda row=row, config=config: self._clocked(row, config), self.again)

    def _clocked(self, row: Row, config: Config) -> dict[str, Any]:
        data = row.kind.load_data(config, self.data, self.device)
        found = {"ms": clock(row.kind, config, data, self.device), "machine": machine(self.device)}
        print(f"{row.name}: {found['ms']:.3g} ms", flush=True)
        return found

    def train(self, watch: Callable[[Run], None] | None = None) -> None:
        """Rows whose data and precision are the same beside each other."""
        if unknown := [row.name for row in self.chosen if self.config(row) is None]:
            raise SystemExit(
                f"how many updates {unknown[0]} has follows from times: clock it and {_within(unknown[0])}"
            )
        alike: dict[tuple, list[Row]] = {}
        for row in self.chosen:
            config = row.config(self.change)
            shared = [getattr(config, name) for name in ("precision", *(row.kind.data_fields or ()))]
            alike.setdefault((row.experiment, *shared), []).append(row)
        for same in alike.values():
            left = [run for row in same for run in self.left(row)]
            for start in range(0, len(left), self.beside):
                some, graph = left[start : start + self.beside], self.device.type == "cuda"
                train_all(same[0].kind, some, device=self.device, data=self.data, graph=graph, watch=watch)

    def record(self) -> None:
        """Those that are finished, of each section in a file. What it has of others stays there."""
        for section in dict.fromkeys(row.section for row in self.chosen):
            same = [row for row in self.chosen if row.section == section]
            file = self.results / same[0].experiment / f"{section}.jsonl"
            folders = [path for row in same for _, path in self.runs(row) if (path / "result.json").exists()]
            found = collect([*[file] * file.exists(), *folders])
            if found:
                save(file, found)
                print(f"{section}: {len(found)} runs in {file}", flush=True)


def _within(name: str) -> str:
    return next(row.within for row in rows() if row.name == name)


def _reached(path: Path) -> int:
    """The iteration of the last evaluation."""
    return max(read_run(path).curve["iteration"], default=0) if (path / "config.json").exists() else 0


def show(tables: Tables) -> None:
    for row in tables.chosen:
        left, count, seconds = len(tables.left(row)), len(read_seeds(tables.seeds or row.seeds)), tables.seconds(row)
        if seconds is None:
            print(f"{row.name}: {count} runs, not clocked")
        else:
            print(f"{row.name}: {left} of {count} runs left, {seconds:.0f} s of updates")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data, made if missing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="rows whose names begin so")
    parser.add_argument("--seeds", default="", help="of all rows (default: each row's own)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--list", action="store_true", help="show the rows, and do nothing")
    parser.add_argument("--beside", type=int, default=10, help="runs side by side (default: 10)")
    parser.add_argument("--minutes", type=float, help="stop training at the first evaluation after so many")
    parser.add_argument(
        "--change", type=json.loads, default={}, help='other settings, as JSON: {"precision": "bfloat16"}'
    )
    parser.add_argument("--again", action="store_true", help="clock what was clocked before, too")
    parser.add_argument("--out", type=Path, default=Path("runs") / "tables")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of what is recorded")
    args = parser.parse_args(argv)
    chosen = [row for row in rows() if row.name.startswith(tuple(args.only))]
    if not chosen:
        parser.error(f"no row begins with {', '.join(args.only)}: --list shows all")
    shared = {name: getattr(args, name) for name in ("data", "out", "results", "seeds", "change", "beside", "again")}
    tables = Tables(chosen, device=torch.device(args.device), **shared)
    if args.list:
        show(tables)
        return 0
    end = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")

    def watch(run: Run) -> None:
        if time.monotonic() > end:
            raise OutOfTime

    if "clock" in args.parts:
        tables.clock()
    try:
        if "train" in args.parts:
            tables.train(watch)
    except OutOfTime:
        print("out of time: the same command resumes what is left", flush=True)
    if "record" in args.parts:
        tables.record()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
