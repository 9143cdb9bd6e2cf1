"""Formulas as MathML, which browsers draw themselves: the site needs no script and nothing from the network."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)
SPELLINGS = {r"\dots": r"\ldots"}  # commands of LaTeX that docutils knows by another name
FUNCTION = r"\\(?:log|exp|min|max|arg)(?![A-Za-z])"
BEFORE = re.compile(rf"(?<=[\w)}}\]])\s*(?={FUNCTION})")
NOT_BEFORE = r"left|big|Big|[,;:!]"  # brackets, and spaces that are there
AFTER = re.compile(rf"({FUNCTION})\s*(?=[A-Za-z0-9]|\\(?!{NOT_BEFORE}))")


def spaced(formula: str) -> str:
    r"""With the thin spaces that LaTeX puts around names of functions, and docutils does not.

    >>> print(spaced(r"a \log P(T) - \log(x)"))
    a \, \log\, P(T) - \log(x)
    """
    return AFTER.sub(r"\1\\, ", BEFORE.sub(r" \\, ", formula))


def _markup(node: nodes.Element, block: bool) -> str:
    formula = spaced(node.astext())
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
