"""Stories of spanning trees and arborescences."""

from gumtrace.explore.stories import LETTERS, Frame, Option, Run, Story, decision, frame, listed
from gumtrace.steps import Step
from gumtrace.structures.arborescence import Arborescence
from gumtrace.structures.spanning_tree import SpanningTree
from gumtrace.traces.trace import Trace


class SpanningTreeStory(Story):
    name, title, drawn = "spanning-tree", "Spanning tree", "spanningTree"
    rule = (
        "All edges race. One that comes in joins two parts, and edges inside the new part leave: Kruskal's algorithm."
    )
    options = (Option("n", 6, lambda o: (2, 8)), Option("components", 1, lambda o: (1, o["n"] - 1), resizes=False))
    first = 25

    def shape(self, o):
        return o["n"], o["n"]

    def build(self, logits, o):
        return SpanningTree(logits, o["components"])

    def key(self, key, o):
        u, v = divmod(key, o["n"])
        return f"{LETTERS[u]}–{LETTERS[v]}"

    def start(self, run: Run) -> str:
        c = run.options["components"]
        stop = "until all nodes are in one part" if c == 1 else f"until {c} parts are left"
        return f"Every edge has a clock, and every node is a part of its own. Edges that come in join parts, {stop}."

    def decision(self, run: Run, step: Step, removed: list[int]) -> str:
        if len(step.racing) == 1:
            return f"{run.key(step.winner)} was the only edge left."
        left = ""
        if removed and step is run.steps[-1]:
            parts = run.options["components"]
            why = "Nothing is left to join" if parts == 1 else f"{parts} parts are left, so it stops"
            left = f" {why}; {'all others leave' if len(removed) > 1 else f'{run.key(removed[0])} leaves'}."
        elif removed:
            verb = "would close a cycle and leaves" if len(removed) == 1 else "would close cycles and leave"
            left = f" Now {run.keys(removed)} {verb}."
        return f"{len(step.racing)} {step.race} raced. {run.first(step)}{left}"

    def end(self, run: Run) -> str:
        n = run.options["n"]
        edges = [u * n + v for u, v in run.trace.value.triu(1).nonzero().tolist()]
        what = "tree" if run.options["components"] == 1 else "forest"
        alone = [LETTERS[v] for v in range(n) if not any(v in divmod(edge, n) for edge in edges)]
        besides = f"; {listed(alone)} {'stands' if len(alone) == 1 else 'stand'} alone" if alone else ""
        return f"The {what} is {run.keys(edges)}{besides}."


class ArborescenceStory(Story):
    name, title, drawn = "arborescence", "Arborescence", "arborescence"
    rule = (
        "At every node but the root the edges into it race. Where the winners form a cycle, it becomes one node, and "
        "the edges into it race on: the Chu-Liu-Edmonds algorithm."
    )
    options = (Option("n", 5, lambda o: (2, 7)), Option("root", 0, lambda o: (0, o["n"] - 1), is_node=True))
    look, first = 5, 32  # a cycle within a cycle

    def shape(self, o):
        return o["n"], o["n"]

    def build(self, logits, o):
        return Arborescence(logits, o["root"])

    def key(self, key, o):
        u, v = divmod(key, o["n"])
        return f"{LETTERS[u]}→{LETTERS[v]}"

    def group(self, key, o):
        return f"into {LETTERS[key % o['n']]}"

    def racing(self, o):
        return sorted(super().racing(o), key=lambda key: (key % o["n"], key // o["n"]))  # by the node they lead to

    def picture(self, o):
        return {"nodes": list(self.names(o)), "root": o["root"]}

    def start(self, run: Run) -> str:
        root = LETTERS[run.options["root"]]
        return f"Every edge has a clock. Every node but the root {root} takes the edge into it that comes first."

    def decision(self, run: Run, step: Step, removed: list[int]) -> str:
        into = _Supernodes(run.trace).name(step.decision)
        if len(step.racing) == 1:
            return f"{run.key(step.winner)} is the only edge into {into}."
        how = " by the time they had left" if step.decision >= run.options["n"] else ""
        return f"The {len(step.racing)} edges into {into} raced{how}. {run.first(step)}"

    def end(self, run: Run) -> str:
        n = run.options["n"]
        return f"The tree is {run.keys([u * n + v for u, v in run.trace.value.nonzero().tolist()])}."

    def frames(self, run: Run) -> list[Frame]:
        """Nodes first, then cycles, each contracted before its race; at last they open, from the outside in."""
        n, supernodes = run.options["n"], _Supernodes(run.trace)
        losers = [key for key in self.racing(run.options) if key not in supernodes.winners]
        frames = [frame("start", self.start(run), 0.0, racing=self.racing(run.options))]
        for step in run.steps:
            if step.decision >= n:
                inside = supernodes.nodes(step.decision)
                removed = [key for key in losers if key // n in inside and key % n in inside]
                losers = [key for key in losers if key not in removed]
                frames.append(_contraction(run, supernodes, step, removed, frames[-1]["running"]))
            frames.append(decision(run, step, self.decision(run, step, []), []))
        chosen = list(supernodes.winners)  # the edge into each supernode, as cycles open
        for step in reversed(run.steps):
            if step.decision >= n:
                frames.append(_opening(run, supernodes, step.decision, chosen, frames[-1]["running"]))
        return [*frames, frame("end", self.end(run), frames[-1]["running"], removed=losers)]


def _contraction(run: Run, supernodes: "_Supernodes", step: Step, removed: list[int], running: float) -> Frame:
    """The cycle becomes one node, and the edges into it are about to race."""
    cycle = [supernodes.winners[part] for part in supernodes.parts(step.decision)]
    leave = "Edges inside it leave. " if removed else ""
    text = (
        f"{run.keys(cycle)} form a cycle that the root does not reach: {supernodes.name(step.decision)} becomes one "
        f"node. {leave}Edges into it race on, each with the time left on its clock after the races it lost."
    )
    nodes = supernodes.nodes(step.decision)
    return frame("contraction", text, running, nodes=nodes, racing=list(step.racing), removed=removed)


def _opening(run: Run, supernodes: "_Supernodes", cycle: int, chosen: list[int], running: float) -> Frame:
    """The edge that enters a cycle takes the place of the one that its part had chosen."""
    entering = chosen[cycle]
    part = supernodes.entered(cycle, entering)
    dropped, chosen[part] = chosen[part], entering
    text = (
        f"{supernodes.name(cycle)} opens. {run.key(entering)} enters it at {supernodes.name(part)}, so "
        f"{run.key(dropped)}, which was taken there before, is dropped."
    )
    return frame("opening", text, running, nodes=supernodes.nodes(cycle), dropped=dropped)


class _Supernodes:
    """The nodes and the contracted cycles of a trace, numbered as its decisions are."""

    def __init__(self, trace: Trace):
        self.n = trace.layout.event_shape[-1]
        self.links = trace.links.tolist()  # the cycle that each became part of
        self.winners = trace.winners.tolist()  # the edge that each chose

    def nodes(self, supernode: int) -> list[int]:
        return [v for v in range(self.n) if supernode in self._around(v)]

    def parts(self, cycle: int) -> list[int]:
        """What was contracted, along the edges of the cycle."""
        order = [self.links.index(cycle)]
        while len(order) < self.links.count(cycle):
            order.insert(0, self.entered(cycle, self.winners[order[0]], by_source=True))
        return order

    def entered(self, cycle: int, edge: int, by_source: bool = False) -> int:
        """The part of a cycle that holds the end of an edge, or its source."""
        u, v = divmod(edge, self.n)
        return next(s for s in self._around(u if by_source else v) if self.links[s] == cycle)

    def name(self, supernode: int) -> str:
        names = [LETTERS[v] for v in self.nodes(supernode)]
        return names[0] if len(names) == 1 else f"{{{' '.join(names)}}}"

    def _around(self, supernode: int) -> list[int]:
        """Itself, and the cycles that hold it, from the inside out."""
        chain = [supernode]
        while self.links[chain[-1]] >= 0:
            chain.append(self.links[chain[-1]])
        return chain
