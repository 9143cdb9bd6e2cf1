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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kset_contest import Found, clock, setting  # beside this file

from gumtrace.benchmark import machine
from gumtrace_experiments import find
from gumtrace_experiments.commands.options import label, read_seeds
from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.training import train_all
from gumtrace_experiments.report.records import collect, read_run, save
from gumtrace_experiments.report.times import IDLE, TIMES, Time, load

RESULTS = Path(__file__).parents[1] / "results"
PARTS = ("clock", "train", "record")
TEN, FIVE, THREE = "0-9", "0-4", "0-2"


@dataclass(frozen=True)
class Row:
    """A setting of a table. `name` begins with its section, which is the name of its recorded file, too."""

    name: str
    experiment: str
    estimator: str
    seeds: str
    settings: dict[str, Any] = field(default_factory=dict)
    within: str = ""
    """The row whose time it has: it makes as many updates as fit into that, and its learning rate falls with them."""

    @property
    def section(self) -> str:
        return self.name.partition("/")[0]

    @property
    def kind(self) -> type[Experiment]:
        return find(self.experiment)

    def config(self, change: dict[str, Any]) -> Config:
        return self.kind.config_type(estimator=self.estimator, **{**self.settings, **change})


def rows() -> list[Row]:
    return [*_listops(), *_layouts(), *_layouts_with_items(), *_layouts_at_equal_time()]


def _listops() -> Iterator[Row]:
    """Short expressions first. SST finds the parse from some starts only. Then with as many items as SST has, for as
    many updates, and for as long; and T-REINFORCE+ with starts, too, since seeds end in different optima, which shows
    after 5,000 iterations; at last with operators that the encoder reads as others."""
    usual = {"lr": 1e-3, "schedule": "cosine", "evaluate_every": 1000, "curriculum": "12:500"}
    soft = {**usual, "temperature": 0.5}
    score = {**usual, "samples": 4}
    starts = {"starts": 4, "start_iterations": 5000}
    relax = {**usual, "samples": 2, "estimator_lr": 1e-4}
    rebar = {**soft, "samples": 2, "learn_temperature": False}
    noise = {**score, "lr": 3e-4}
    for name, estimator, seeds, settings, items in (
        ("SST", "StochasticSoftmax", "1-10", {**soft, **starts}, None),
        ("T-REINFORCE", "TraceREINFORCE", "1-10", score, 400),
        ("E-REINFORCE", "NoiseREINFORCE", "1-5", noise, 400),
        ("RELAX", "RELAX", "1-5", relax, 200),
        ("REBAR", "REBAR", "1-5", rebar, 600),
        ("E-REINFORCE-10x10", "NoiseREINFORCE", "1-5", {**noise, "samples": 10, "classifier_lr": 1e-3}, None),
    ):
        section = "listops" if name == "T-REINFORCE" else "listops-others"
        yield Row(f"{section}/{name}", "listops", estimator, seeds, settings)
        if items is not None:
            more = {**settings, "calls": items}
            yield Row(f"{section}-items/{name}", "listops", estimator, seeds, more)
            yield Row(f"{section}-time/{name}", "listops", estimator, seeds, more, within="listops-others/SST")
    for section, calls in (("listops-starts", 100), ("listops-items-starts", 400)):
        yield Row(f"{section}/T-REINFORCE", "listops", "TraceREINFORCE", "1-10", {**score, **starts, "calls": calls})
        relabel = {**score, **starts, "calls": calls, "relabel": 0.3}
        yield Row(f"{section}-relabel/T-REINFORCE", "listops", "TraceREINFORCE", "1-5", relabel)


def _layouts() -> Iterator[Row]:
    """At equal calls, in the settings of the recorded runs."""
    usual = {"lr": 1e-3, "schedule": "cosine", "starts": 4}
    seldom = {**usual, "evaluate_every": 1500}
    clipped = {**seldom, "clip": 1.0}
    slow = {"training": "unrolled", "clip": 1.0}
    for frames in (10, 20):
        forced = clipped if frames == 20 else seldom
        for name, estimator, settings in (
            ("SST", "StochasticSoftmax", forced),
            ("T-REINFORCE", "TraceREINFORCE", {**usual, "samples": 8}),
            ("RELAX", "RELAX", {**clipped, "samples": 4}),
        ):
            yield Row(f"layout-{frames}/{name}", "graph-layout", estimator, TEN, {**settings, "frames": frames})
        for name, estimator, settings in (
            ("SST", "StochasticSoftmax", {**seldom, **slow, "temperature": 0.5, "decoder_lr": 3e-4}),
            ("T-REINFORCE", "TraceREINFORCE", {**usual, **slow, "samples": 4, "decoder_lr": 1e-4}),
            ("RELAX", "RELAX", {**seldom, **slow, "samples": 4, "decoder_lr": 1e-4}),
        ):
            seeds = TEN if frames == 10 else THREE
            name = f"layout-{frames}-unrolled/{name}"
            yield Row(name, "graph-layout", estimator, seeds, {**settings, "frames": frames})


def _layouts_with_items() -> Iterator[Row]:
    """With as many items as SST has, for as many updates: structures of an item share most of the work. In bfloat16,
    which 25,000 updates were no worse with. Poor starts show after 500 iterations."""
    usual = {"lr": 1e-3, "schedule": "cosine", "precision": "bfloat16"}
    starts = {"starts": 4, "start_iterations": 750, "evaluate_every": 750}
    for name, estimator, settings in (
        ("T-REINFORCE-16x128", "TraceREINFORCE", {"samples": 16, "calls": 2048}),
        ("T-REINFORCE-8x128", "TraceREINFORCE", {"samples": 8, "calls": 1024}),
        ("SST", "StochasticSoftmax", {}),
    ):
        yield Row(f"layout-10-items/{name}", "graph-layout", estimator, FIVE, {**usual, **starts, **settings})


def _layouts_at_equal_time() -> Iterator[Row]:
    """Of the other estimators, more items than equal calls leave them: as many as SST has, or half of them."""
    usual = {"lr": 1e-3, "schedule": "cosine", "starts": 4, "evaluate_every": 1500}
    slow = {"training": "unrolled", "clip": 1.0, "decoder_lr": 1e-4}
    for frames in (10, 20):
        for name, estimator, settings in (
            ("T-REINFORCE-8x128", "TraceREINFORCE", {"samples": 8, "calls": 1024}),
            ("T-REINFORCE-16x64", "TraceREINFORCE", {"samples": 16, "calls": 1024}),
            ("RELAX-2x128", "RELAX", {"samples": 2, "calls": 256, "clip": 1.0}),
            ("RELAX-4x64", "RELAX", {"samples": 4, "calls": 256, "clip": 1.0}),
        ):
            name, settings = f"layout-{frames}-time/{name}", {**usual, **settings, "frames": frames}
            yield Row(name, "graph-layout", estimator, FIVE, settings, within=f"layout-{frames}/SST")
    for name, estimator, settings in (
        ("T-REINFORCE-8x128", "TraceREINFORCE", {"samples": 8, "calls": 1024}),
        ("T-REINFORCE-4x64", "TraceREINFORCE", {"samples": 4, "calls": 256}),
    ):
        name, settings = f"layout-10-unrolled-time/{name}", {**usual, **slow, **settings}
        yield Row(name, "graph-layout", estimator, FIVE, settings, within="layout-10-unrolled/SST")


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
