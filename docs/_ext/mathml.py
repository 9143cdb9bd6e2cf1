"""Formulas as MathML, which browsers draw themselves: the site needs no script and nothing from the network."""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)
SPELLINGS = {r"\dots": r"\ldots"}  # commands of LaTeX that docutils knows by another name


def _markup(node: nodes.Element, block: bool) -> str:
    formula = node.astext()
    for theirs, ours in SPELLINGS.items():
        formula = formula.replace(theirs, ours)
    try:
        return tex2mathml(formula, as_block=block)
    except MathError as error:
        logger.warning("%s in the formula %r", error, formula, location=node)
        return ""


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_markup(node, block=False))
    raise nodes.SkipNode


def display(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body += [self.starttag(node, "div", CLASS="math"), _markup(node, block=True), "</div>\n"]
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    app.config.html_math_renderer = "mathml"  # type: ignore[attr-defined]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
