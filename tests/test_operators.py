"""The kernels as operators of torch: compiled without a break, mapped, checked by torch's own checks."""

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace.kernels import ops
from gumtrace.traces.trace import Trace

LENGTHS = torch.tensor([4, 3, 4])
MAKE = {
    "subset": lambda x: gt.Subset(x[..., 0, :], 2, validate_args=False),
    "permutation": lambda x: gt.Permutation(x[..., 0, :], validate_args=False),
    "matching": lambda x: gt.Matching(x, validate_args=False),
    "tree": lambda x: gt.SpanningTree(x, validate_args=False),
    "tree-ragged": lambda x: gt.SpanningTree(x, lengths=LENGTHS, validate_args=False),
    "arborescence": lambda x: gt.Arborescence(x, validate_args=False),
    "arborescence-ragged": lambda x: gt.Arborescence(x, lengths=LENGTHS, validate_args=False),
    "binary": lambda x: gt.BinaryTree(x[..., 0, :], validate_args=False),
}
every_structure = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def logits(*batch):
    return torch.randn(*batch, 4, 4, generator=seeded(1), dtype=torch.float64)


def step(make, x):
    """All that training asks of a structure."""
    d = make(x)
    trace = d.sample_trace((2,))
    g = d.conditional(trace)
    kept = torch.where(g.isneginf(), 0.0, g).flatten(1).sum()
    loss = gt.estimators.TraceREINFORCE(2)(d, lambda value: value.to(x.dtype).flatten(2).square().sum(-1))
    return d.trace_log_prob(trace).sum() + kept + loss.sum(), trace.value


@every_structure
def test_compiles_without_a_break(make):
    x = logits(3).requires_grad_()
    loss, value = torch.compile(lambda x: step(make, x), fullgraph=True, backend="aot_eager")(x)
    loss.backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0
    assert make(x.detach()).support.check(value).all()


def test_compiled_gradients_are_the_same():
    d = gt.SpanningTree(logits(3))
    trace = d.sample_trace((2,))

    def log_prob(x):
        own = gt.SpanningTree(x, validate_args=False)
        return own.trace_log_prob(Trace(own._layout, trace.choices, trace.links, own._seal))

    grads = []
    for f in (log_prob, torch.compile(log_prob, fullgraph=True, backend="aot_eager")):
        x = logits(3).requires_grad_()
        f(x).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1])


@every_structure
def test_mapped_log_probs_are_those_of_a_loop(make):
    """A dimension of vmap joins the batch: (5, 3) graphs as 5 mapped batches of 3, traces with 2 samples."""
    x = logits(5, 3)
    traces = [make(part).sample_trace((2,)) for part in x]
    choices, links = (torch.stack([getattr(t, name) for t in traces]) for name in ("choices", "links"))

    def log_prob(x, choices, links):
        d = make(x)
        return d.trace_log_prob(Trace(d._layout, choices, links, d._seal))

    leaf = x.clone().requires_grad_()
    mapped = torch.func.vmap(log_prob)(leaf, choices, links)
    looped = torch.stack([make(part).trace_log_prob(trace) for part, trace in zip(x, traces, strict=True)])
    torch.testing.assert_close(mapped, looped)
    mapped.sum().backward()
    other = x.clone().requires_grad_()
    for part, trace in zip(other, traces, strict=True):
        make(part).trace_log_prob(trace).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


@every_structure
def test_mapped_samples(make):
    x = logits(3).expand(6, 3, 4, 4)
    different = torch.func.vmap(lambda x: make(x).sample((2,)), randomness="different")(x)
    same = torch.func.vmap(lambda x: make(x).sample((2,)), randomness="same")(x)
    assert make(x[0]).support.check(different).all()
    assert (different != different[:1]).any()
    assert (same == same[:1]).all()
    with pytest.raises(RuntimeError, match="random"):
        torch.func.vmap(lambda x: make(x).sample())(x)


@every_structure
def test_torch_checks_the_operators(make):
    d = make(logits(3).requires_grad_())
    trace = d.sample_trace((2,))
    head, rows, sizes, seed = ops.parts(d._layout.geometry), d._rows(), d._row_sizes(), torch.tensor([1, 2])
    quiet = rows.detach()
    winners, links = trace.rows()
    _, totals = ops.log_prob(*head, quiet, winners, links)
    g, _, z, _ = ops.conditional(*head, quiet, sizes, winners, links, seed)
    alpha, h = -totals, torch.ones_like(totals)
    calls = {
        ops.check_logits: (quiet,),
        ops.perturb: (rows, 6, seed),
        ops.trace: (g, sizes),
        ops.sample: (quiet, sizes, 6, seed),
        ops.log_prob: (rows, winners, links),
        ops.log_prob_grad: (quiet, winners, links, totals, h.sum(-1)),
        ops.log_totals: (quiet.repeat(2, 1).requires_grad_(), winners, links),
        ops.to_keys: (winners, links, alpha, quiet.repeat(2, 1), h),
        ops.to_decisions: (winners, links, alpha, quiet.repeat(2, 1), torch.ones_like(g)),
        ops.log_spread: (winners, links, z.requires_grad_()),
        ops.conditional: (rows, sizes, winners, links, seed),
        ops.conditional_grad: (quiet, winners, links, totals, z.detach(), g, torch.ones_like(g)),
    }
    for operator, args in calls.items():
        torch.library.opcheck(operator.registered, (*head, *args), test_utils=("test_schema", "test_faketensor"))


def test_expanded_and_transposed_logits():
    """Kernels read rows in memory order: views are laid out first."""
    x = logits().mT.expand(3, 4, 4)
    d, plain = gt.SpanningTree(x), gt.SpanningTree(x.contiguous())
    trace = plain.sample_trace()
    torch.testing.assert_close(d.trace_log_prob(trace), plain.trace_log_prob(trace))
