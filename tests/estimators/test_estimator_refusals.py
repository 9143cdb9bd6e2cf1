"""What estimators refuse before it fails in torch's words: losses of another shape, what is no objective, a context
that does not fit the batch."""

import re

import pytest
import torch

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import exact_gradient, gradient_statistics


@pytest.mark.parametrize(
    ("batch", "expand"),
    [((), r", or, if it is a mini-batch, give each item a draw of its own, dist.expand\(\(9,\)\)"), ((2,), "")],
)
def test_losses_of_more_dimensions_get_advice(batch, expand):
    items = torch.ones(9, 5)
    objective = lambda x: (x[..., None, :] * items).sum(-1)  # noqa: E731
    with pytest.raises(ValueError, match=rf"9\); take the mean or sum over the last dimension{expand}$"):
        E.TraceREINFORCE()(gt.Subset(torch.zeros(*batch, 5), 2), objective)


def test_losses_of_two_more_dimensions():
    with pytest.raises(
        ValueError, match=r"take the mean or sum over the last 2 dimensions, or, .* dist.expand\(\(9, 5\)\)$"
    ):
        E.TraceREINFORCE()(gt.Subset(torch.zeros(5), 2), lambda x: x[:, None] * torch.ones(9, 5))


@pytest.mark.parametrize("on", ["value", "trace"])
def test_an_objective_that_is_no_function_is_named(on):
    dist, losses = gt.Subset(torch.zeros(5), 2), torch.zeros(4)
    message = f"the objective must be a function of the {on}s .*, got Tensor; pass lambda {on}s: "
    for call in (
        lambda: E.TraceREINFORCE()(dist, losses, on=on),
        lambda: exact_gradient(dist, losses, on=on),
        lambda: gradient_statistics({"T": E.TraceREINFORCE()}, dist, losses, 2, on=on, exact=False),
    ):
        with pytest.raises(TypeError, match=message):
            call()


@pytest.mark.parametrize("shape", [(5,), (3,), (5, 2), (1, 2), (2, 3, 2)])
@pytest.mark.parametrize("kind", ["critic", "surrogate"])
def test_a_context_that_does_not_fit_the_batch_is_named(kind, shape):
    """Of (5,), expand would make 5 features, the same for all items."""
    if kind == "critic":
        estimator = E.RELAX(E.VectorCritic(4, context=shape[-1]))
    else:
        estimator = E.SurrogateREINFORCE(samples=2, extra=4, surrogate=E.MLPSurrogate(4, context=shape[-1]))
    message = rf"{type(estimator).__name__}: the context must have the batch shape \(3,\) and then features, got "
    with pytest.raises(ValueError, match=message + re.escape(f"{shape}; ") + "expand one"):
        estimator(gt.Subset(torch.zeros(3, 4), 2), lambda x: x[..., 0], torch.zeros(shape))
