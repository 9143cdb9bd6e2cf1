"""The rows of the tables of ListOps and graph layout, for equal_time.py, which clocks and trains them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gumtrace_experiments import find
from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment

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
    """Short expressions first. SST finds the parse from some seeds only. Then with as many items as SST has, for as
    many updates, and for as long; E-REINFORCE+ with the structures that served it best in short runs; and T-REINFORCE+
    with starts, too, since seeds end in different optima, which shows after 5,000 iterations; at last with operators
    that the encoder reads as others."""
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
