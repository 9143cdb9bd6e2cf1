"""The site: sphinx-build docs docs/_build/html, or `make docs`."""

import logging
import os
import sys
from functools import partial
from pathlib import Path

from jupyter_cache.executors import utils as executors

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "_ext"), str(HERE.parent / "benchmarks")]
sys.path.insert(0, str(HERE.parent / "experiments" / "benchmarks"))

import gumtrace  # noqa: E402

project = "gumtrace"
author = "The gumtrace authors"
copyright = author
version = release = gumtrace.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.githubpages",  # .nojekyll: GitHub would leave out folders whose names begin with an underscore
    "sphinxcontrib.bibtex",
    # ours, in _ext
    "drawn",
    "explorer",
    "command",
    "mathml",
    "plain_docstrings",
    "recipes",
    "recorded",
]
exclude_patterns = ["_build", "_generated", "_static"]

# Pages ---------------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # never a cache: it would not notice that the library changed
nb_execution_raise_on_error = True
nb_execution_timeout = 180
nb_execution_in_temp = True  # pages may write files
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # their `gumtrace` is ours
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # kernels that are compiled meanwhile announce themselves there
# A printed line may come in two messages. nbclient joins them as they are, myst-nb with a new line between.
# And nobody need be told that a page is executed, nor that its kernel talks to this machine without encryption.
logging.getLogger("traitlets").setLevel(logging.WARNING)
QUIETLY = {"coalesce_streams": True, "extra_arguments": ["--log-level=ERROR"]}
executors.executenb = partial(executors.executenb, **QUIETLY)  # type: ignore[assignment]
nb_render_markdown_format = "myst"
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "unsrt"
bibtex_reference_style = "author_year"

# The reference -------------------------------------------------------------------------------------

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False  # what a method shares with the base class is told there
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Args common to all structures", "params_style"), ("Args of the call", "params_style")]
python_maximum_signature_line_length = 88
nitpicky = True
nitpick_ignore_regex = [
    # Other projects and Python's own library: their inventories would have to come from the network.
    ("py:.*", r"(torch|nn|np|numpy|matplotlib|collections|pathlib|typing)\..*"),
    ("py:.*", r"(Any|Callable|Iterable|Iterator|Mapping|Sequence|Path|Tensor)"),
    # Of the harness: what runs and commands hand to each other.
    ("py:class", r"gumtrace_experiments\.(loop\.(run\.Run|data\.SharedData)|registry\.E)"),
    # Types that only pass through: what a layout is, what `Structure` derives from, and the curve of a toy run.
    ("py:class", r"gumtrace\.(traces\.trace\.Layout|toy\.optimise\.Curve)"),
    ("py:class", r"gumtrace\.structures\.(description\.Description|words\.Words)"),
]

# Looks ---------------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"gumtrace {release}"  # above the navigation of every page, and in its title
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6aa8", "color-brand-content": "#0b6aa8"},
    "dark_css_variables": {"color-brand-primary": "#6cb6e8", "color-brand-content": "#6cb6e8"},
}
