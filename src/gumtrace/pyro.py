"""Structures for Pyro: each of `gumtrace` once more, as a distribution that `pyro.sample` takes.

Constructors and methods are those of `gumtrace`; Pyro's own (`to_event`, `mask`, `expand_by`) are there too. Needs the
extra `pyro`.

>>> import pyro
>>> import torch
>>> with pyro.plate("tokens", 5):
...     pyro.sample("experts", Subset(torch.zeros(8), k=2)).shape
torch.Size([5, 8])
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor

from gumtrace import structures
from gumtrace.extras import require
from gumtrace.structures.base import Structure
from gumtrace.structures.exact import TooManyOrders
from gumtrace.traces.trace import Trace

__all__ = ["trace_of"]
__all__ += structures.__all__

PyroMethods: Any = require("pyro.distributions.torch_distribution", "pyro", "pyro-ppl").TorchDistributionMixin
provenance: Any = require("pyro.ops.provenance", "pyro", "pyro-ppl")
Described = Structure if TYPE_CHECKING else object  # the structure comes next among the bases of each class


def _noting_sources(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor, which gets plain tensors and notes which sites they come from.

    TraceGraph_ELBO wraps all that depends on a site into tensors that say so, and reads it off the log-probabilities.
    Their sizes are plain tuples, and kernels could not take them.
    """

    @functools.wraps(init)
    def plain(self: "Site", *args: Any, **settings: Any) -> None:
        (args, settings), self._sources = provenance.extract_provenance([args, settings])
        init(self, *args, **settings)

    return plain


class Site(Described):
    """What all of them share: whether the variable of a site is the structure or its trace.

    It is the structure, with its exact `log_prob`, where that is known (`has_log_prob`), and otherwise the trace.
    """

    _over_traces: bool | None = None
    _sources: frozenset = frozenset()  # the sites that the arguments depend on

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__init__ = _noting_sources(cls.__init__)

    @property
    def is_over_traces(self) -> bool:
        """Whether the variable is the trace."""
        return not self.has_log_prob if self._over_traces is None else self._over_traces

    def over_traces(self) -> Self:
        """The same distribution with the trace as the variable, for structures of any size.

        Values are structures all the same; each carries its trace, whose log-probability `log_prob` is. Take it in the
        model and in the guide: the ELBO then has the KL between traces, which is at least that between structures.

        >>> d = SpanningTree(torch.zeros(50, 50)).over_traces()
        >>> tree = d.sample()
        >>> torch.equal(d.log_prob(tree), d.trace_log_prob(trace_of(tree)))
        True
        """
        new = cast(Self, self.expand(self.batch_shape))
        new._over_traces = True
        return new

    def sample(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Tensor:
        """Structures of independent runs, with their traces if those are the variable."""
        trace = self.sample_trace(sample_shape, generator=generator)
        value = trace.value
        if self.is_over_traces:
            value._gumtrace_trace = trace  # type: ignore[attr-defined]
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability of the variable, sample + batch: of the structure, or of the trace that it carries."""
        value, sources = provenance.extract_provenance(value)
        return provenance.track_provenance(self._log_prob(value), sources | self._sources)

    def _log_prob(self, value: Tensor) -> Tensor:
        if self.is_over_traces:
            return self.trace_log_prob(trace_of(value))
        if hasattr(value, "_gumtrace_trace"):
            raise ValueError(
                f"{type(self).__name__}: the value comes from a distribution over traces, and this one is over "
                "structures; take over_traces() of both, in the model and in the guide"
            )
        try:
            return super().log_prob(value)
        except TooManyOrders as error:
            error.add_note("In Pyro: take over_traces() of the distribution, in the model and in the guide.")
            raise


def trace_of(value: Tensor) -> Trace:
    """The trace of a value that a distribution over traces drew: who won, in order, as `trace_of(value).winners`.

    Only the very tensor that `pyro.sample` returned has one, not what is computed from it.

    >>> tree = Arborescence(torch.zeros(4, 4)).sample((5,))
    >>> trace_of(tree)
    Trace(shape=(5,), decisions=6)
    """
    trace = getattr(provenance.detach_provenance(value), "_gumtrace_trace", None)
    if trace is None:
        raise ValueError(
            "gumtrace.pyro: the value carries no trace, as only values that a distribution over traces drew do; an "
            "observed structure needs one over structures, and a value that was drawn must be passed on as it is"
        )
    return trace


class SpanningTree(Site, structures.SpanningTree, PyroMethods):
    """`gumtrace.SpanningTree` for Pyro."""

    @classmethod
    def _given_by_edges(cls):
        one, several = super()._given_by_edges()
        return globals()[one.__name__], globals()[several.__name__]


def _for_pyro(structure: type[Structure]) -> type[Structure]:
    over = "" if structure.has_log_prob else ": a site over traces"
    about = {"__doc__": f"`gumtrace.{structure.__name__}` for Pyro{over}.", "__module__": __name__}
    return type(structure.__name__, (Site, structure, PyroMethods), about)


# All others are no more than their bases.
globals().update({name: _for_pyro(getattr(structures, name)) for name in structures.__all__ if name not in globals()})
if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
