"""`gumtrace toy STRUCTURE`: every estimator on a small problem, side by side."""

import argparse
import sys
from pathlib import Path

from gumtrace.cli.arguments import folder_problem, positive
from gumtrace.extras import require
from gumtrace.toy import SIZES, Curve, applicable, left_out, optimise, problem

BETTER = "The objective is minimised: lower is better."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = BETTER
    parser.add_argument("structure", choices=list(SIZES), help="what to optimise over")
    parser.add_argument(
        "--out", type=Path, default=Path("toy"), metavar="DIR", help="folder for the figure (default: toy)"
    )
    numbers = {
        "--iterations": (150, "updates of the logits"),
        "--seeds": (3, "runs of each estimator"),
        "--samples": (8, "objective calls per iteration"),
    }
    for option, (default, text) in numbers.items():
        parser.add_argument(option, type=positive, default=default, metavar="N", help=f"{text} (default: {default})")
    parser.add_argument("--rough", action="store_true", help="an objective without a gradient")


def run(args: argparse.Namespace) -> int:
    """0: done; 2: the figure cannot be written."""
    plotting = require("gumtrace.plotting", "plot")
    require("matplotlib", "plot")
    if refused := folder_problem(args.out, "--out"):
        print(f"gumtrace toy: {refused}", file=sys.stderr)
        return 2
    p = problem(args.structure, smooth=not args.rough)
    builds = applicable(p, args.samples)
    for name, most in left_out(p, args.samples).items():
        print(f"Without {name}, which takes at most {most} samples.")
    curves: list[Curve] = []
    every = max(args.iterations // 10, 1)
    tqdm = require("tqdm", "cli").tqdm
    updates = len(builds) * args.seeds * (args.iterations + 1)
    with tqdm(total=updates, desc=args.structure, unit="it", disable=None) as bar:
        for name, build in builds.items():
            bar.set_postfix_str(name)
            for seed in range(args.seeds):
                settings = {"iterations": args.iterations, "seed": seed, "every": every, "tick": bar.update}
                curves.append(optimise(p, name, build, **settings))
    kind = "rough" if args.rough else "smooth"
    path = plotting.optimisation(curves, args.out / f"{args.structure}.png", f"{args.structure}, {kind} objective")
    _print_table(curves, {name: type(build()).__name__ for name, build in builds.items()}, args.seeds)
    print(BETTER)
    print(f"Curves, and standard deviations of the gradient: {path}")
    return 0


def _print_table(curves: list[Curve], classes: dict[str, str], seeds: int) -> None:
    """A row for each estimator; `classes` are the names of their classes."""
    console = require("rich.console", "cli").Console()
    table = require("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0))  # 80 columns in all
    for heading in ("\nestimator", "\nclass"):
        table.add_column(heading, no_wrap=True)
    for heading in ("objective\nat start", "\nat end", "gradient\nstd at start", "\nat end"):
        table.add_column(heading, justify="right")
    for name, class_name in classes.items():
        runs = [c for c in curves if c.estimator == name]
        numbers = [sum(getattr(c, field)[at] for c in runs) / seeds for field in ("objective", "std") for at in (0, -1)]
        table.add_row(name, class_name, *(f"{x:.4g}" for x in numbers))
    console.print(table)
