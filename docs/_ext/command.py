"""What the command line says of itself:

```{command} toy --help
```

is the output of `gumtrace toy --help`.
"""

import io
import os
from contextlib import redirect_stdout, suppress
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gumtrace.cli import main

WIDTH = "90"


def output(words: list[str]) -> str:
    out = io.StringIO()
    with patch.dict(os.environ, COLUMNS=WIDTH, NO_COLOR="1"), redirect_stdout(out), suppress(SystemExit):
        main(words)
    return out.getvalue()


class Command(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        shown = f"$ gumtrace {self.arguments[0]}\n{output(self.arguments[0].split())}"
        return [nodes.literal_block(shown, shown, language="text")]


def setup(app: Sphinx) -> dict:
    app.add_directive("command", Command)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
