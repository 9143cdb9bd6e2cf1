"""Tables of recorded runs: no number on the site is typed by hand.

```{recorded} NAME
```

is the table NAME of benchmarks/table.py or experiments/benchmarks/experiment_tables.py, or those of an experiment in
its lab notes, experiments/results/NAME/NOTES.md, without what is folded there.

{measured}`estimator | structure | objective` is one number of benchmarks/results/variance.json,
{in-training}`model | estimator | point | which` one of experiments/benchmarks/results/training-variance.json.
"""

import re
from pathlib import Path

import experiment_tables  # experiments/benchmarks/experiment_tables.py
import table as benchmarks  # benchmarks/table.py
import training_tables  # experiments/benchmarks/training_tables.py
from docutils import nodes
from docutils.statemachine import StringList
from recordings import load  # benchmarks/recordings.py
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

NOTES = sorted(experiment_tables.RUNS.glob("*/NOTES.md"))


def table(name: str) -> str:
    """The Markdown of a recorded table."""
    for module in (benchmarks, experiment_tables):
        if name in module.TABLES:
            return module.table(name)
    notes = [path.read_text() for path in NOTES]
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", "".join(notes), re.DOTALL)
    if found is None:
        known = ", ".join([*benchmarks.TABLES, *experiment_tables.TABLES])
        raise ValueError(f"unknown table {name!r}: choose from {known}, or one of the lab notes")
    return experiment_tables.unfolded(found[1])


class Recorded(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        for file in (Path(benchmarks.__file__), Path(experiment_tables.__file__), *NOTES):
            self.env.note_dependency(str(file))
        try:
            lines = StringList(table(self.arguments[0]).splitlines(), source=self.get_source_info()[0])
        except ValueError as problem:
            raise self.error(str(problem)) from None
        holder = nodes.container()
        self.state.nested_parse(lines, self.content_offset, holder)
        return holder.children


class Measured(SphinxRole):
    """A standard deviation relative to T-REINFORCE+'s."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        want = [part.strip() for part in self.text.split("|")]
        records = load("variance.json")["records"]
        found = [r for r in records if [r["estimator"], r["structure"], r["objective"]] == want]
        if len(found) != 1:
            message = self.inliner.reporter.error(f"variance.json has no record {want}", line=self.lineno)
            return [], [message]
        return [nodes.Text(f"{found[0]['ratio']:.2f}")], []


class InTraining(SphinxRole):
    """See training_tables.number."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            return [nodes.Text(training_tables.number(self.text))], []
        except (ValueError, KeyError) as problem:
            message = self.inliner.reporter.error(f"training-variance.json: {self.text}: {problem}", line=self.lineno)
            return [], [message]


def setup(app: Sphinx) -> dict:
    app.add_directive("recorded", Recorded)
    app.add_role("measured", Measured())
    app.add_role("in-training", InTraining())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
