"""Graphs of autograd: objectives that break them, gradients that cannot be differentiated again, torch.func."""

import pytest
import torch
from common import seeded
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint
from unbiased import CONTROL, SMOOTH, make

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.relaxations.partition import arborescence_log_partition
from gumtrace.relaxations.sinkhorn import permutation_matrix, sinkhorn
from gumtrace.relaxations.subset import relax_subset
from gumtrace.relaxations.trees import arborescence_marginals, spanning_tree_marginals

quiet = pytest.mark.filterwarnings("ignore")  # what torch.compile says of torch's own code


def logits(*batch):
    return torch.randn(*batch, 6, generator=seeded(1), dtype=torch.float64)


def subset(x, **kwargs):
    return gt.Subset(x, 3, **kwargs)


def build(name):
    return make(name, subset(logits()), samples=2)


def network(size=6, layers=2):
    torch.manual_seed(0)
    each = [module for _ in range(layers) for module in (torch.nn.Linear(size, size), torch.nn.Tanh())]
    return torch.nn.Sequential(*each, torch.nn.Linear(size, 1)).double()


def computes_inside(name):
    """Whether it computes its gradient in the call, and injects it into the graph."""
    loss = build(name)(subset(logits().requires_grad_()), lambda value: value[..., 0].square(), generator=seeded(1))
    seen, ahead = set(), [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
    return any(type(node).__name__ == "InjectBackward" for node in seen)


INSIDE = [name for name in E.ESTIMATORS if computes_inside(name)]
OUTSIDE = [name for name in SMOOTH if name not in INSIDE]


# Objectives that break the gradient ----------------------------------------------------------------

ITEMS = torch.randn(6, 6, generator=seeded(2), dtype=torch.float64)
NET = network()
BROKEN = {  # most of them have a gradient of their own, to the network
    "indices": lambda x: NET(ITEMS[x.topk(3).indices]).sum((-1, -2)),
    "detached": lambda x: NET(x.detach()).squeeze(-1),
    "compared": lambda x: NET((x > 0.5).double()).squeeze(-1),
    "outside torch": lambda x: NET(torch.from_numpy(x.detach().numpy().copy())).squeeze(-1),
    "without a graph": lambda x: (x > 0.5).double().sum(-1),
    "cleared": lambda x: NET(x.zero_().detach()).squeeze(-1),
}


@pytest.mark.parametrize("objective", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("name", SMOOTH)
def test_an_objective_that_breaks_the_gradient_is_refused(name, objective):
    estimator = build(name)
    dist = subset(logits(3).requires_grad_())
    message = (
        f"{type(estimator).__name__}: the objective must be differentiable in the structure.* TraceREINFORCE and RELAX"
    )
    with pytest.raises(ValueError, match=message):
        estimator(dist, objective, generator=seeded(1))
    with torch.no_grad():
        assert estimator(dist, objective).isfinite().all()
    assert E.TraceREINFORCE(samples=2)(dist, objective).isfinite().all()


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, *grads):
        return 2 * ctx.saved_tensors[0] * grads[0]


def many_steps(x):
    """More than Python could follow by calling itself."""
    for _ in range(3000):
        x = x * 1.0001
    return x[..., 0]


def in_view(x):
    x[..., 0].mul_(2.0)
    return NET(x).squeeze(-1)


WHOLE = {
    "network": lambda x: NET(x).squeeze(-1),
    "deep": network(layers=50),
    "one entry": lambda x: NET(ITEMS).sum() + x[..., 0],
    "in place": lambda x: NET(x.mul_(2.0)).squeeze(-1),
    "in a view": in_view,
    "own function": lambda x: Squares.apply(x).sum(-1),
    "many steps": many_steps,
    "checkpoint": lambda x: checkpoint(NET, x, use_reentrant=False).squeeze(-1),
}


@pytest.mark.parametrize("objective", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("name", SMOOTH)
def test_others_are_not(name, objective):
    x = logits(3).requires_grad_()
    loss = build(name)(subset(x), lambda value: objective(value).reshape(2, 3), generator=seeded(1))
    loss.mean().backward()
    assert (x.grad != 0).any()


@quiet
@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("way", ["reentrant checkpoint", "compiled"])
def test_objectives_that_are_one_node_of_the_graph(name, way):
    x = logits(3).requires_grad_()
    net = (
        torch.compile(NET, backend="aot_eager")
        if way == "compiled"
        else lambda v: checkpoint(NET, v, use_reentrant=True)
    )
    build(name)(subset(x), lambda value: net(value).squeeze(-1), generator=seeded(1)).mean().backward()
    assert (x.grad != 0).any()


@pytest.mark.parametrize("name", [name for name in SMOOTH if name not in CONTROL])
def test_logits_without_a_gradient_are_not_asked_for_one(name):
    assert build(name)(subset(logits(3)), BROKEN["indices"]).requires_grad  # of the network


@quiet
@pytest.mark.parametrize("name", [n for n in OUTSIDE if "temperature" in E.ESTIMATORS[n].settings()])  # relaxed trees
def test_nothing_is_asked_where_torch_compiles(name):
    """The whole call as one graph: an objective without a gradient passes."""
    x = torch.zeros(2, 4, 4, requires_grad=True)

    estimator = build(name)

    def step(x, objective):
        return estimator(gt.SpanningTree(x, validate_args=False), objective).sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    compiled(x, lambda value: (value.flatten(2) @ torch.arange(16.0)).square()).backward()
    assert (x.grad != 0).any()
    compiled(x, lambda value: value.detach()[..., 0, 1])


# Gradients of gradients ----------------------------------------------------------------------------


def test_control_variates_compute_their_gradient_inside():
    assert {*CONTROL, "IMLE"} <= set(INSIDE)


@pytest.mark.parametrize("name", INSIDE)
def test_a_gradient_that_cannot_be_differentiated_again_says_so(name):
    x, scale = logits(3).requires_grad_(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    estimator = build(name).eval()  # the same estimate in each call
    of = [x, *estimator.parameters()]

    def loss():
        return estimator(subset(x), lambda value: scale * value[..., 0].square(), generator=seeded(1)).mean()

    expected = torch.autograd.grad(loss(), of)
    found = torch.autograd.grad(loss(), of, create_graph=True)
    torch.testing.assert_close(found, expected)
    message = f"{type(estimator).__name__}: its gradient cannot be differentiated again; that of TraceREINFORCE can"
    for first in found:
        for second in (*of, scale):
            with pytest.raises(NotImplementedError, match=message):
                torch.autograd.grad(first.sum(), second, retain_graph=True, allow_unused=True)
    (of_scale,) = torch.autograd.grad(loss() * scale, scale, create_graph=True)  # plain backpropagation
    torch.testing.assert_close(torch.autograd.grad(of_scale, scale)[0].item(), 2 * loss().item() / scale.item())


def test_the_gradient_that_is_named_instead_can_be():
    """At fixed samples and losses: that of Σ (L - b) ∇ log P."""
    x = logits().requires_grad_()
    estimator, f = E.TraceREINFORCE(samples=2), lambda value: value @ ITEMS[0]
    (first,) = torch.autograd.grad(estimator(subset(x), f, generator=seeded(1)), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    trace = subset(x).sample_trace((2,), generator=seeded(1))
    loss = f(trace.value)
    (slope,) = torch.autograd.grad(
        ((loss - loss.flip(0)) * subset(x).trace_log_prob(trace)).mean(), x, create_graph=True
    )
    torch.testing.assert_close(second, torch.autograd.grad(slope.square().sum(), x)[0])
    assert second.abs().sum() > 0


# torch.func ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", dict.fromkeys(SMOOTH + CONTROL))
def test_estimators_that_torch_func_cannot_transform(name):
    estimator, x = build(name), logits(3)

    def f(x):
        return estimator(subset(x, validate_args=False), lambda value: value[..., 0].square()).sum()

    for transformed in (grad(f), vmap(f, randomness="different"), vmap(grad(f), randomness="different")):
        with pytest.raises(NotImplementedError, match=f"{type(estimator).__name__}: torch.func cannot transform it"):
            transformed(x)


SQUARE = torch.randn(2, 4, 4, generator=seeded(3))
RELAXATIONS = {
    "relax": lambda u: gt.relax(gt.SpanningTree(torch.zeros(4, 4)), u, 0.5),
    "relax_subset": lambda u: relax_subset(u, 2, "binary"),
    "sinkhorn": sinkhorn,
    "spanning_tree_marginals": spanning_tree_marginals,
    "arborescence_marginals": arborescence_marginals,
    "arborescence_log_partition": arborescence_log_partition,
}


@pytest.mark.parametrize("name", RELAXATIONS)
def test_relaxations_that_torch_func_cannot_transform(name):
    f = RELAXATIONS[name]
    assert f(SQUARE).isfinite().all()
    for transformed in (grad(lambda u: f(u).sum()), vmap(f)):
        with pytest.raises(NotImplementedError, match=f"{name}: torch.func cannot transform it; differentiate with"):
            transformed(SQUARE)
    with pytest.raises(NotImplementedError, match=r"sinkhorn: torch\.func cannot"):
        vmap(permutation_matrix)(SQUARE)


@pytest.mark.parametrize("surrogate", [E.LinearSurrogate, E.PairwiseSurrogate, lambda: E.MLPSurrogate(6)])
def test_surrogates_do_not_learn_under_torch_func(surrogate):
    """What they would remember are tensors that are nothing outside."""
    estimator, x = E.SurrogateREINFORCE(surrogate=surrogate(), samples=2, extra=4), logits(3)

    def f(x):
        return estimator(subset(x, validate_args=False), lambda value: value[..., 0].square()).sum()

    f(x.requires_grad_()).backward()
    x = x.detach()
    for transformed in (grad(f), vmap(f, randomness="different")):
        before = {name: value.clone() for name, value in estimator.state_dict().items()}
        with pytest.raises(NotImplementedError, match=r"SurrogateREINFORCE: torch.func cannot .* eval\(\)"):
            transformed(x)
        torch.testing.assert_close(dict(estimator.state_dict()), before, rtol=0, atol=0)
    estimator.eval()
    assert grad(f)(x).isfinite().all()
    assert vmap(f, randomness="different")(x).isfinite().all()
