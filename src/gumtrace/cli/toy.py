"""`gumtrace toy STRUCTURE`: every estimator on a small problem, side by side."""

import argparse
from pathlib import Path

from gumtrace.cli.arguments import positive
from gumtrace.extras import require
from gumtrace.toy import SIZES, Curve, applicable, left_out, optimise, problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("structure", choices=list(SIZES), help="what to optimise over")
    parser.add_argument("--out", type=Path, default=Path("toy"), metavar="DIR", help="where the figure goes")
    parser.add_argument("--iterations", type=positive, default=150)
    parser.add_argument("--seeds", type=positive, default=3, help="runs of each estimator")
    parser.add_argument("--samples", type=positive, default=8, help="objective calls per iteration")
    parser.add_argument("--rough", action="store_true", help="an objective without a gradient")


def run(args: argparse.Namespace) -> int:
    plotting = require("gumtrace.plotting", "plot")
    require("matplotlib", "plot")
    p = problem(args.structure, smooth=not args.rough)
    builds = applicable(p, args.samples)
    for name, most in left_out(p, args.samples).items():
        print(f"Without {name}, which takes at most {most} samples.")
    curves: list[Curve] = []
    every = max(args.iterations // 10, 1)
    tqdm = require("tqdm", "cli").tqdm
    with tqdm(total=len(builds) * args.seeds * (args.iterations + 1), desc=args.structure, unit="it") as bar:
        for name, build in builds.items():
            bar.set_postfix_str(name)
            for seed in range(args.seeds):
                settings = {"iterations": args.iterations, "seed": seed, "every": every, "tick": bar.update}
                curves.append(optimise(p, name, build, **settings))
    args.out.mkdir(parents=True, exist_ok=True)
    kind = "rough" if args.rough else "smooth"
    path = plotting.optimisation(curves, args.out / f"{args.structure}.png", f"{args.structure}, {kind} objective")
    _print_table(curves, args.seeds)
    print(f"Curves, and standard deviations of the gradient: {path}")
    return 0


def _print_table(curves: list[Curve], seeds: int) -> None:
    console, table = require("rich.console", "cli").Console(), require("rich.table", "cli").Table(box=None)
    table.add_column("estimator")
    for heading in ("objective at the start", "at the end", "gradient std at the start", "at the end"):
        table.add_column(heading, justify="right")
    for name in dict.fromkeys(c.estimator for c in curves):
        runs = [c for c in curves if c.estimator == name]
        numbers = [sum(getattr(c, field)[at] for c in runs) / seeds for field in ("objective", "std") for at in (0, -1)]
        table.add_row(name, *(f"{x:.4g}" for x in numbers))
    console.print(table)
