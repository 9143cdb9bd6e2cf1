"""Stories of subsets, permutations, matchings, binary trees, and of an algorithm of one's own."""

import torch

from gumtrace.explore.stories import LETTERS, Option, Options, Run, Story, count, listed
from gumtrace.recursions import MaximalIndependentSet
from gumtrace.steps import Step
from gumtrace.structures.binary_tree import BinaryTree, depth
from gumtrace.structures.custom import Custom
from gumtrace.structures.matching import Matching
from gumtrace.structures.permutation import Permutation
from gumtrace.structures.subset import Subset

WORDS = ["in", "one", "quiet", "wood", "a", "small", "tree", "grows", "out", "of", "pure", "noise"]


class SubsetStory(Story):
    name, title = "subset", "Subset"
    rule = "All keys race. The first k to come in are the subset."
    options = (Option("n", 8, lambda o: (2, 12)), Option("k", 3, lambda o: (1, o["n"]), resizes=False))
    first = 17

    def build(self, logits, o):
        return Subset(logits, o["k"])

    def start(self, run: Run) -> str:
        return f"Every key has a clock, and a higher logit makes it run faster. The first {run.options['k']} are in."

    def decision(self, run: Run, step: Step, removed: list[int]) -> str:
        full = f" The set is full: {run.keys(removed)} came too late." if removed else ""
        return f"{count(len(step.racing), 'key')} raced. {run.first(step)}{full}"

    def end(self, run: Run) -> str:
        chosen = run.trace.value.nonzero()[:, 0].tolist()
        return f"The subset is {run.keys(chosen)}. Its order of choice belongs to the trace, not to the set."


class PermutationStory(Story):
    name, title = "permutation", "Permutation"
    rule = "All keys race. The order in which they come in is the permutation."
    options = (Option("n", 7, lambda o: (2, 12)),)
    look = 1

    def build(self, logits, o):
        return Permutation(logits)

    def start(self, run: Run) -> str:
        return "Every key has a clock, and a higher logit makes it run faster. Places go by order of arrival."

    def decision(self, run: Run, step: Step, removed: list[int]) -> str:
        place = run.trace.value.tolist().index(step.winner) + 1
        if len(step.racing) == 1:
            return f"{run.key(step.winner)} is alone, and takes place {place}."
        return f"{count(len(step.racing), 'key')} raced. {run.first(step)} It takes place {place}."

    def end(self, run: Run) -> str:
        order = " ".join(run.key(key) for key in run.trace.value.tolist())
        return f"The permutation is {order}. It has one trace only, so both have the same probability."


class MatchingStory(Story):
    name, title, drawn = "matching", "Matching", "matching"
    rule = "All cells race. A cell that comes in takes its row and its column out of the race."
    options = (Option("rows", 4, lambda o: (1, 6)), Option("columns", 5, lambda o: (o["rows"], 6)))
    look = 2

    def shape(self, o):
        return o["rows"], o["columns"]

    def build(self, logits, o):
        return Matching(logits)

    def names(self, o):
        return LETTERS[: o["rows"]], [str(j + 1) for j in range(o["columns"])]

    def key(self, key, o):
        rows, columns = self.names(o)
        return f"{rows[key // len(columns)]}{columns[key % len(columns)]}"

    def group(self, key, o):
        return f"row {LETTERS[key // o['columns']]}"

    def picture(self, o):
        rows, columns = self.names(o)
        return {"rows": list(rows), "columns": list(columns)}

    def start(self, run: Run) -> str:
        return (
            "Every cell has a clock. The first takes its row and its column, then the first of what is left, and so on."
        )

    def decision(self, run: Run, step: Step, removed: list[int]) -> str:
        row, column = (LETTERS[step.winner // run.options["columns"]], step.winner % run.options["columns"] + 1)
        left = (
            f" {count(len(removed), 'other cell')} of row {row} and column {column} can race no more."
            if removed
            else ""
        )
        return f"{count(len(step.racing), 'cell')} raced, of {step.race}. {run.first(step)}{left}"

    def end(self, run: Run) -> str:
        cells = run.trace.value.flatten().nonzero()[:, 0].tolist()
        return f"The matching is {run.keys(cells)}."


class BinaryTreeStory(Story):
    name, title, drawn = "binary-tree", "Binary tree", "binaryTree"
    rule = "The words race. The first is the root; the words on either side of it race on among themselves."
    options = (Option("n", 7, lambda o: (1, 12)),)
    look = 3

    def build(self, logits, o):
        return BinaryTree(logits)

    def names(self, o):
        return WORDS[-o["n"] :]

    def picture(self, o):
        return {"nodes": self.names(o)}

    def start(self, run: Run) -> str:
        return "Every word has a clock. All of them are one gap, and the first word of a gap splits it in two."

    def decision(self, run: Run, step: Step, removed: list[int]) -> str:
        parents = run.trace.value.tolist()
        parent = parents[step.winner]
        side = "left" if step.winner < parent else "right"
        role = f"It hangs {side} of “{run.key(parent)}”." if parent >= 0 else "It is the root."
        if len(step.racing) == 1:
            return f"“{run.key(step.winner)}” is alone in its gap. {role}"
        who = f"“{run.key(step.winner)}” is first, with probability {step.probability:.3f}."
        return f"The {len(step.racing)} words “{step.race}” raced. {who} {role}"

    def end(self, run: Run) -> str:
        parents = run.trace.value.tolist()
        deepest = max(depth(v, parents) for v in range(len(parents)))
        levels = count(deepest + 1, "level")
        return f"The tree has {levels}. It has one trace only, up to order, so both have the same probability."


class IndependentSetStory(Story):
    name, title, drawn = "independent-set", "Custom", "independentSet"
    rule = (
        "An algorithm written as four hooks for Custom, here a random maximal independent set: the first node to come "
        "in enters the set, its neighbours leave, and so on."
    )
    options = (Option("n", 9, lambda o: (3, 12)),)
    look, first = 4, 29

    def build(self, logits, o):
        return Custom(logits, MaximalIndependentSet(self.graph(o)))

    def graph(self, o: Options) -> torch.Tensor:
        """A ring, with every third node tied to the one opposite."""
        n = o["n"]
        ring = torch.eye(n).roll(1, 1)
        for v in range(0, n, 3):
            ring[v, (v + n // 2) % n] = 1
        return ring

    def picture(self, o):
        near = (self.graph(o) + self.graph(o).mT).triu(1)
        return {"nodes": list(self.names(o)), "edges": near.nonzero().tolist()}

    def start(self, run: Run) -> str:
        return "Every node has a clock. The first enters the set and its neighbours leave; then the first of the rest."

    def decision(self, run: Run, step: Step, removed: list[int]) -> str:
        if len(step.racing) == 1:
            return f"{run.key(step.winner)} is alone, and enters the set."
        verb = "leaves" if len(removed) == 1 else "leave"
        left = f" Next to it, {run.keys(removed)} {verb}." if removed else ""
        return f"{count(len(step.racing), 'node')} raced. {run.first(step)}{left}"

    def end(self, run: Run) -> str:
        return f"The set is {listed([run.key(v) for v in run.trace.value.nonzero()[:, 0].tolist()])}."
