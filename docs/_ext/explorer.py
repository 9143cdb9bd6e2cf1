"""The trace explorer in the site: recorded runs and the page's own scripts, and a directive that puts it on a page.

```{explorer} spanning-tree
```
"""

from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from gumtrace.explore.precompute import write
from gumtrace.explore.requests import STORIES

FOLDER = "_static/explorer"
PAGE = """<link rel="stylesheet" href="{up}generated/explorer.css">
<section class="gx" data-runs="{up}generated/" data-structure="{structure}" aria-label="Trace explorer">
<p>The explorer needs JavaScript, and this page must come from a web server: scripts of pages opened as files are not
run. This is what it looks like:</p>
<img src="{up}desktop.png" alt="The trace explorer: lanes of racing keys beside the structure that they make">
</section>
<script type="module" src="{up}generated/embed.js"></script>"""


class Explorer(Directive):
    """The explorer, open at the structure that is named."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (structure,) = self.arguments
        if structure not in STORIES:
            raise self.error(f"unknown structure {structure!r}: choose from {', '.join(STORIES)}")
        deep = self.state.document.settings.env.docname.count("/")
        page = PAGE.format(up=f"{'../' * deep}{FOLDER}/", structure=structure)
        return [nodes.raw("", page, format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("explorer", Explorer)
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / FOLDER / "generated"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
