"""What a story of a run is made of: the options of its structure, names of its keys, and its frames in words.

A frame is one picture of a run: the start, a decision, for arborescences a cycle that is contracted or opened again,
the end. Numbers in frames are those of `gumtrace.steps`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gumtrace.steps import Names, Step, steps
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace

LETTERS = "ABCDEFGHIJKL"
LARGEST_LOGIT = 4.0
Frame = dict[str, Any]
Options = dict[str, int]


@dataclass(frozen=True)
class Option:
    """A whole number that sets up a structure. Its bounds may depend on the options before it."""

    name: str
    default: int
    bounds: Callable[[Options], tuple[int, int]]
    is_node: bool = False  # its values are nodes
    resizes: bool = True  # another value means other keys

    def within(self, before: Options) -> int:
        """The default, or what is nearest to it within the bounds."""
        low, high = self.bounds(before)
        return min(max(self.default, low), high)


class Run:
    """One trace of a distribution with its steps, and the words of its story."""

    def __init__(self, story: "Story", options: Options, dist: Structure, trace: Trace):
        self.story, self.options, self.dist, self.trace = story, options, dist, trace
        self.steps = steps(dist, trace, story.names(options))

    def key(self, key: int) -> str:
        return self.story.key(key, self.options)

    def keys(self, keys: Sequence[int]) -> str:
        return listed([self.key(key) for key in keys])

    def first(self, step: Step) -> str:
        return f"{self.key(step.winner)} is first, with probability {chance(step.probability)}."


class Story:
    """A structure as the explorer shows it. One subclass per structure; those that race in a row or in gaps only add
    words."""

    name: ClassVar[str]  # in requests
    title: ClassVar[str]
    rule: ClassVar[str]  # the algorithm, in a sentence or two
    options: ClassVar[tuple[Option, ...]]
    drawn: ClassVar[str] = "places"  # the picture that the page draws, one of its PICTURES
    look: ClassVar[int] = 0  # seed of the logits one starts with
    first: ClassVar[int] = 0  # seed of the noise one starts with

    def shape(self, o: Options) -> tuple[int, ...]:
        """Of the logits."""
        return (o["n"],)

    def build(self, logits: Tensor, o: Options) -> Structure:
        raise NotImplementedError

    def names(self, o: Options) -> Names:
        """As `steps` takes them."""
        return LETTERS[: o["n"]]

    def key(self, key: int, o: Options) -> str:
        return str(self.names(o)[key])

    def group(self, key: int, o: Options) -> str | None:
        """A heading for neighbouring keys that belong together."""
        return None

    def racing(self, o: Options) -> list[int]:
        """The keys that race, in the order in which they are shown."""
        return self.build(torch.zeros(self.shape(o), dtype=torch.float64), o).racing.flatten().nonzero()[:, 0].tolist()

    def logits(self, o: Options) -> list[float]:
        """To start with: one for each key that races, with a decimal that a slider can show."""
        generator = torch.Generator().manual_seed(self.look)
        drawn = 1.2 * torch.randn(len(self.racing(o)), generator=generator, dtype=torch.float64)
        return [round(x, 1) for x in drawn.clamp(-LARGEST_LOGIT, LARGEST_LOGIT).tolist()]

    def picture(self, o: Options) -> dict[str, Any]:
        """What the page must know to draw it, besides the keys."""
        return {"nodes": list(self.names(o))}

    # Words -----------------------------------------------------------------------------------------

    def start(self, run: Run) -> str:
        raise NotImplementedError

    def decision(self, run: Run, step: Step, removed: list[int]) -> str:
        raise NotImplementedError

    def end(self, run: Run) -> str:
        raise NotImplementedError

    def frames(self, run: Run) -> list[Frame]:
        last = {key: i for i, step in enumerate(run.steps) for key in step.racing}  # the last race of each key
        frames = [frame("start", self.start(run), 0.0, racing=self.racing(run.options))]
        for i, step in enumerate(run.steps):
            removed = [key for key in step.racing if last[key] == i and key != step.winner]
            frames.append(decision(run, step, self.decision(run, step, removed), removed))
        return [*frames, frame("end", self.end(run), frames[-1]["running"])]


def frame(kind: str, text: str, running: float, **more: Any) -> Frame:
    """`running`: log P of the trace so far; `removed`: the keys that race no more from here on."""
    return {"kind": kind, "text": text, "running": running, "removed": [], **more}


def decision(run: Run, step: Step, text: str, removed: list[int]) -> Frame:
    logits = run.dist.log_rates.detach().double().flatten()
    total = logits[step.winner] - step.log_prob  # log Λ
    return frame(
        "decision",
        text,
        step.running,
        race=step.race,
        racing=list(step.racing),
        chances=(logits[list(step.racing)] - total).exp().tolist(),
        winner=step.winner,
        removed=removed,
        probability=step.probability,
        log_prob=step.log_prob,
    )


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["A", "B", "C"])
    'A, B and C'
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def count(things: int, name: str) -> str:
    return f"{things} {name}" + "s" * (things != 1)


def chance(probability: float) -> str:
    return f"{probability:.3f}" if probability >= 0.001 else "less than 0.001"
