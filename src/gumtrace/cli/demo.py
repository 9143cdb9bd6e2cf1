"""`gumtrace demo`: one of each structure, its trace step by step, and a picture."""

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import gumtrace as gt
from gumtrace import plotting
from gumtrace.cli.arguments import folder_problem
from gumtrace.extras import require
from gumtrace.steps import Names, Step, steps
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace

REDRAWS = 1000  # of G | T, for each structure
INTRODUCTION = """
An algorithm that reads exponential noise through argmins only leaves a [bold]trace[/]:
decision after decision, each a race among the keys still there. P(T), the
probability of the trace, is the product of the winners' chances.
"""


@dataclass(frozen=True)
class Example:
    """A distribution, and what is shown of it."""

    title: str
    text: str
    dist: Structure
    names: Names | None = None


@dataclass(frozen=True)
class TracedExample:
    """A trace of an example, with what is shown of it."""

    example: Example
    trace: Trace
    steps: list[Step]
    log_prob: float
    same: int  # of the redraws, how many gave the trace again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for the picture (default: demo)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of logits and noise (default: 0)")


def run(args: argparse.Namespace) -> int:
    """0: done; 1: a trace did not come again; 2: the picture cannot be written."""
    console = require("rich.console", "cli").Console(highlight=False)
    require("matplotlib", "plot")  # now, and not after the tables
    if problem := folder_problem(args.out, "--out"):
        print(f"gumtrace demo: {problem}", file=sys.stderr)
        return 2
    generator = torch.Generator().manual_seed(args.seed)
    console.print(INTRODUCTION)
    with console.status("compiling the kernels, the first time only"):
        traced = [trace_example(example, generator) for example in examples(generator)]
    for one in traced:
        console.print(table(one))
        console.print(f"  log P(T) = [bold]{one.log_prob:.4f}[/], so P(T) = {math.exp(one.log_prob):.2e}")
        console.print(f"  G | T drawn {REDRAWS} times and run again: the same trace {one.same} times\n")
    path = plotting.gallery(
        {one.example.title: one.trace for one in traced},
        args.out / "structures.png",
        logits={one.example.title: one.example.dist.logits for one in traced},
        labels={one.example.title: one.example.names for one in traced if one.example.names},
    )
    console.print(f"All of them in one picture: [bold]{path}[/]", soft_wrap=True)
    return 0 if all(one.same == REDRAWS for one in traced) else 1


def examples(generator: torch.Generator) -> list[Example]:
    def logits(*shape: int) -> torch.Tensor:
        return 1.2 * torch.randn(shape, generator=generator)

    words = ["a", "tree", "grows", "out", "of", "pure", "noise"]
    return [
        Example("Subset", "3 of 8 keys: the first to win", gt.Subset(logits(8), k=3)),
        Example("Permutation", "7 keys in order of arrival", gt.Permutation(logits(7))),
        Example("Matching", "6 x 7: a winner crosses out its row and its column", gt.Matching(logits(6, 7))),
        Example("Spanning tree", "Kruskal on 7 nodes: a winner joins two parts", gt.SpanningTree(logits(7, 7))),
        Example("Arborescence", "Chu-Liu-Edmonds on 7 nodes: a cycle races as one", gt.Arborescence(logits(7, 7))),
        Example("Binary tree", "7 words: a winner splits its gap in two", gt.BinaryTree(logits(7)), words),
    ]


def trace_example(example: Example, generator: torch.Generator) -> TracedExample:
    dist = example.dist
    trace = dist.sample_trace(generator=generator)
    many = replace(trace, choices=trace.choices.expand(REDRAWS, -1), links=trace.links.expand(REDRAWS, -1))
    same = dist.trace(dist.conditional(many, generator=generator)).equals(trace)
    log_prob = dist.trace_log_prob(trace)
    return TracedExample(example, trace, steps(dist, trace, example.names), log_prob.item(), int(same.sum()))


def table(traced: TracedExample):
    """The trace, one row per decision."""
    out = require("rich.table", "cli").Table(
        title=f"[bold]{traced.example.title}[/]  {traced.example.text}",
        title_justify="left",
        title_style="",
        box=require("rich.box", "cli").SIMPLE_HEAD,
        collapse_padding=True,
    )
    out.add_column("", justify="right", style="dim")
    out.add_column("racing", width=30, no_wrap=True)
    out.add_column("keys", justify="right")
    out.add_column("winner", style="bold", width=15)
    out.add_column("P(win)", justify="right")
    out.add_column("log P", justify="right", width=8)
    for i, step in enumerate(traced.steps, 1):
        numbers = f"{step.probability:.3f}", f"{step.running:.4f}"
        out.add_row(str(i), step.race, str(len(step.racing)), step.label, *numbers)
    return out
