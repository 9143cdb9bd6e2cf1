"""Bad input is refused with a message that names the structure and, in a batch, the item. Nothing crashes."""

import json
import re
import subprocess
import sys

import hostile
import numpy as np
import pytest
import reference_algorithms as reference
import torch
from cases import CASES, EDGES, every, generator
from contract import assert_same, everything
from refusals import BATCH, CONSTRUCTORS, HERE, INF, ITEM, NAN, one_bad, refuses, sparse

import gumtrace as gt
from gumtrace.structures import NotFinite, checks

# Logits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: gt.Subset(torch.zeros(1).expand(2**31), 2, validate_args=False),
        lambda: gt.Permutation(torch.zeros(1).expand(3, 2**31), validate_args=False),
        lambda: gt.SpanningTree(torch.zeros(1, 1).expand(46_341, 46_341), validate_args=False),
    ],
)
def test_more_keys_than_a_trace_can_number(make):
    refuses(make, "keys are more than 2147418112")


@pytest.mark.parametrize("validate_args", [None, False])
def test_more_nodes_than_an_edge_can_name(validate_args):
    edges, settings = torch.tensor([[5], [2**32 + 5]]), {"validate_args": validate_args}
    refuses(
        lambda: gt.SpanningTree.from_edges(torch.zeros(1), edges, num_nodes=2**33, **settings),
        "8589934592 nodes are more than 2147418112",
    )


def test_more_samples_than_kernels_on_cuda_can_number():
    shape = torch.Size([2**30, 3])
    refuses(
        lambda: checks.items("Subset", shape, torch.device("cuda")), "3221225472 samples of all items are more than"
    )
    assert checks.items("Subset", shape, torch.device("cpu")) == shape.numel()


@every
@pytest.mark.parametrize("value", [NAN, INF])
def test_logits_are_not_numbers(case, value):
    x, racing = case.logits(BATCH), case.racing(BATCH)
    name = type(case(BATCH)).__name__
    for key in racing[ITEM].nonzero()[:3].tolist():
        bad = x.clone()
        bad[(*ITEM, *key)] = value
        refuses(lambda bad=bad: case.build(bad), name, HERE)
        refuses(lambda bad=bad: case.build(bad[1, 2:]), name, r"\(0,\)") if case.name[-6:] != "ragged" else None
        refuses(lambda bad=bad: case.build(x).trace(bad), name, HERE)
        lenient = case.build(bad, validate_args=False)
        refuses(lambda d=lenient: d.sample_trace((2,)), name, HERE)


@pytest.mark.parametrize("case", [c for c in CASES if not c.racing(BATCH).all()], ids=str)
@pytest.mark.parametrize("value", [NAN, INF])
def test_what_does_not_race_may_be_anything(case, value):
    good, racing = case.logits(BATCH), case.racing(BATCH)
    results = []
    for x in (good, torch.where(racing, good, value)):
        x.requires_grad_()
        d = case.build(x)
        trace = d.sample_trace((3,), generator=generator())
        noise, given = d.perturb((3,), generator=generator()), d.conditional(trace, generator=generator())
        numbers = [noise[:, racing], given[:, racing], d.trace_log_prob(trace), d.noise_log_prob(noise)]
        grads = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in numbers]
        results.append([trace.value, d.mode, d.trace(x).value, *numbers, *grads])
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("case", [c for c in CASES if not c.racing(BATCH).all()], ids=str)
def test_noise_that_does_not_race_may_be_anything(case):
    d, racing = case(BATCH), case.racing(BATCH)
    noise = d.perturb((3,), generator=generator())
    junk = torch.where(racing, noise, NAN)
    assert d.trace(junk).equals(d.trace(noise)).all()
    torch.testing.assert_close(d.noise_log_prob(junk), d.noise_log_prob(noise))


@pytest.mark.parametrize("name", CONSTRUCTORS)
class TestEveryConstructor:
    def test_too_few_dimensions(self, name):
        dims, make = CONSTRUCTORS[name]
        refuses(lambda: make(torch.zeros([3] * (dims - 1))), name, "dimension")

    @pytest.mark.parametrize("logits", [torch.zeros(3, 3, dtype=torch.long), torch.ones(3, 3) > 0, [[0.0] * 3] * 3])
    def test_logits_are_no_floats(self, name, logits):
        refuses(lambda: CONSTRUCTORS[name][1](logits), name, "logits", error=TypeError)

    def test_complex_logits(self, name):
        refuses(lambda: CONSTRUCTORS[name][1](torch.zeros(3, 3, dtype=torch.complex64)), name, error=TypeError)

    @pytest.mark.parametrize("shape", [(2,), (4, 3), (2, 3, 3)], ids=str)
    def test_mask_of_another_shape(self, name, shape):
        refuses(lambda: CONSTRUCTORS[name][1](torch.zeros(3, 3), mask=torch.ones(shape) > 0), name, "mask")

    @pytest.mark.parametrize("mask", [torch.ones(3, 3), torch.ones(3, 3).long(), [[True] * 3] * 3])
    def test_mask_is_not_bool(self, name, mask):
        refuses(lambda: CONSTRUCTORS[name][1](torch.zeros(3, 3), mask=mask), name, "mask", error=TypeError)

    @pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 2, 3)], ids=str)
    def test_lengths_of_another_shape(self, name, shape):
        dims, make = CONSTRUCTORS[name]
        lengths = torch.full(shape, 3)
        refuses(lambda: make(torch.zeros(2, *[3] * dims), lengths=lengths), name, "lengths")

    @pytest.mark.parametrize("lengths", [torch.tensor([3.0, 3.0]), torch.tensor([True, True]), [2.5, 3.0]])
    def test_lengths_are_no_integers(self, name, lengths):
        dims, make = CONSTRUCTORS[name]
        refuses(lambda: make(torch.zeros(2, *[3] * dims), lengths=lengths), name, "lengths", error=TypeError)

    @pytest.mark.parametrize("length", [-1, 4])
    def test_lengths_out_of_range(self, name, length):
        dims, make = CONSTRUCTORS[name]
        lengths = torch.full(BATCH, 3)
        lengths[ITEM] = length
        refuses(lambda: make(torch.zeros(*BATCH, *[3] * dims), lengths=lengths), name, HERE, str(length))

    @pytest.mark.parametrize("shape", [(), (3,), (2, 2), (3, 2, 4), (2, 1)], ids=str)
    def test_noise_of_another_shape(self, name, shape):
        dims, make = CONSTRUCTORS[name]
        d = make(torch.zeros(2, *[3] * dims))
        for method in (d.trace, d.noise_log_prob):
            refuses(lambda method=method: method(torch.zeros(shape)), name, "noise")

    def test_noise_is_not_a_number(self, name):
        dims, make = CONSTRUCTORS[name]
        d = make(torch.zeros(*BATCH, *[3] * dims))
        noise = torch.zeros(5, *BATCH, *[3] * dims)
        noise[(3, *ITEM, *[0] * (dims - 1), 1)] = NAN
        refuses(lambda: d.trace(noise), name, HERE)

    def test_enumeration_of_a_batch(self, name):
        dims, make = CONSTRUCTORS[name]
        refuses(make(torch.zeros(2, *[3] * dims)).enumerate_traces, name, r"\(2,\)")


# Arguments of their own -------------------------------------------------------------------------------

BAD = {
    "k > d": (lambda: gt.Subset(torch.zeros(3), 4), ["Subset", "4"]),
    "k < 0": (lambda: gt.Subset(torch.zeros(3), -1), ["Subset", "-1"]),
    "k > d of an item": (lambda: gt.Subset(torch.zeros(*BATCH, 3), one_bad((), [], 4).long()), ["Subset", HERE]),
    "k < 0 of an item": (lambda: gt.Subset(torch.zeros(*BATCH, 3), one_bad((), [], -1).long()), ["Subset", HERE]),
    "k of another shape": (lambda: gt.Subset(torch.zeros(2, 3), torch.tensor([1, 1, 1])), ["Subset", "k"]),
    "k of a batch that is none": (lambda: gt.Subset(torch.zeros(3), torch.tensor([1, 1])), ["Subset", "k"]),
    "root too large": (lambda: gt.Arborescence(torch.zeros(3, 3), root=3), ["Arborescence", "root", "3"]),
    "root negative": (lambda: gt.Arborescence(torch.zeros(3, 3), root=-1), ["Arborescence", "root", "-1"]),
    "root in the padding": (
        lambda: gt.Arborescence(torch.zeros(*BATCH, 3, 3), root=2, lengths=one_bad((), [], 2, good=3).long()),
        ["Arborescence", "root 2", HERE],
    ),
    "no components": (lambda: gt.SpanningTree(torch.zeros(3, 3), components=0), ["SpanningTree", "components", "0"]),
    "no sparse components": (lambda: sparse(torch.zeros(8), components=0), ["SpanningTree", "components", "0"]),
    "tree not square": (lambda: gt.SpanningTree(torch.zeros(3, 4)), ["SpanningTree", "square"]),
    "arborescence not square": (lambda: gt.Arborescence(torch.zeros(3, 4)), ["Arborescence", "square"]),
    "more rows than columns": (lambda: gt.Matching(torch.zeros(4, 3)), ["Matching", "transpose"]),
    "edges and logits": (lambda: sparse(torch.zeros(7)), ["SpanningTree", "8 edges"]),
    "scalar logits of edges": (lambda: sparse(torch.tensor(0.0)), ["SpanningTree", "at least 1 dimensions"]),
    "edges transposed": (
        lambda: gt.SpanningTree.from_edges(torch.zeros(8), EDGES.T, 5),
        ["SpanningTree", "edge_index", r"\(8, 2\)"],
    ),
    "edges flat": (lambda: gt.SpanningTree.from_edges(torch.zeros(8), EDGES[0], 5), ["SpanningTree", "edge_index"]),
    "edge to nowhere": (
        lambda: gt.SpanningTree.from_edges(torch.zeros(8), EDGES, 4),
        ["SpanningTree", "edge 3", r"\[3, 4\]"],
    ),
    "edge from nowhere": (
        lambda: gt.SpanningTree.from_edges(torch.zeros(8), EDGES - 1, 5),
        ["SpanningTree", "edge 0", r"\[-1, 0\]"],
    ),
    "more than 20 rows": (
        lambda: gt.Matching(torch.zeros(*BATCH, 21, 21)).log_prob(torch.eye(21).expand(*BATCH, 21, 21)),
        ["Matching", "trace_log_prob"],
    ),
    "custom event": (
        lambda: gt.Custom(torch.zeros(3), reference.Subset(3, 1), event_dim=2),
        ["Custom", "2 dimensions"],
    ),
    "custom event < 0": (
        lambda: gt.Custom(torch.zeros(3), reference.Subset(3, 1), event_dim=-1),
        ["Custom", "event_dim"],
    ),
}
WRONG_TYPES = {
    "k is a float": (lambda: gt.Subset(torch.zeros(3), 1.0), ["Subset", "k"]),
    "k are floats": (lambda: gt.Subset(torch.zeros(2, 3), torch.tensor([1.0, 2.0])), ["Subset", "k"]),
    "k is bool": (lambda: gt.Subset(torch.zeros(3), True), ["Subset", "k"]),
    "root is a float": (lambda: gt.Arborescence(torch.zeros(3, 3), root=1.5), ["Arborescence", "root"]),
    "components are a float": (
        lambda: gt.SpanningTree(torch.zeros(3, 3), components=1.5),
        ["SpanningTree", "components"],
    ),
    "edges are a list": (
        lambda: gt.SpanningTree.from_edges(torch.zeros(1), [[0], [1]], 2),
        ["SpanningTree", "edge_index"],
    ),
    "edges are floats": (
        lambda: gt.SpanningTree.from_edges(torch.zeros(8), EDGES.float(), 5),
        ["SpanningTree", "edge"],
    ),
    "edges are bool": (
        lambda: gt.SpanningTree.from_edges(torch.zeros(8), EDGES > 0, 5),
        ["SpanningTree", "edge_index"],
    ),
    "logits of edges are a list": (lambda: sparse([0.0] * 8), ["SpanningTree", "logits"]),
    "logits of edges are integers": (lambda: sparse(torch.zeros(8).long()), ["SpanningTree", "logits"]),
    "algorithm is none": (lambda: gt.Custom(torch.zeros(3), object()), ["Custom", "start"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_values(what):
    make, words = BAD[what]
    refuses(make, *words)


@pytest.mark.parametrize("what", WRONG_TYPES)
def test_wrong_types(what):
    make, words = WRONG_TYPES[what]
    refuses(make, *words, error=(TypeError, ValueError))


@pytest.mark.parametrize("owned", [lambda x: torch.tensor(x), lambda x: torch.tensor(x).int(), np.array])
@pytest.mark.parametrize("argument", [name for name in hostile.ARGUMENTS if name != "sparse tree: edges"])
def test_what_is_written_into_an_argument_later_changes_nothing(argument, owned):
    changes_nothing(*hostile.ARGUMENTS[argument], owned)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_what_is_written_into_edges_later_changes_nothing(dtype):
    changes_nothing(*hostile.ARGUMENTS["sparse tree: edges"], lambda x: torch.tensor(x, dtype=dtype))


def changes_nothing(make, numbers, owned):
    given = owned(numbers)
    d, untouched = make(given), make(torch.tensor(numbers))
    given[...] = 0
    assert_same(everything(d), everything(untouched))
    assert torch.equal(d.racing, untouched.racing)
    assert d.support.check(d.sample((20,))).all()
    assert_same(d.noise_log_prob(d.log_rates), untouched.noise_log_prob(d.log_rates))


# Nothing may crash ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endings():
    """How each hostile input ended, in processes of their own."""
    run = subprocess.run([sys.executable, hostile.__file__], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("what", hostile.HOSTILE)
@pytest.mark.slow
def test_nothing_crashes(what, endings):
    assert not endings[what].startswith("crashed")


@pytest.mark.parametrize("case", [c for c in CASES if c.racing((3,)).any()], ids=str)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_what_is_no_number_is_refused_at_sampling(case, value, endings):
    assert issubclass(NotFinite, ValueError)
    name = f"{NotFinite.__module__}.{NotFinite.__name__}"
    assert re.match(rf"{name}: {type(case()).__name__}.*nan", endings[f"{case}: sample from {value}"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gt.Subset(torch.zeros(4), 2.0), r"k must be an int or an integer tensor, got 2\.0"),
        (lambda: gt.Subset(torch.zeros(2, 4), torch.ones(2)), r"got torch\.float32 \(k\.long\(\) makes it one\)"),
        (lambda: gt.Subset(torch.zeros(4), 2).log_prob(gt.Subset(torch.zeros(4), 2).sample_trace()), "trace_log_prob"),
    ],
)
def test_the_remedy_is_named(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_too_many_trees():
    with pytest.raises(ValueError, match="the item cannot be split into 4 trees: it has fewer than 4 nodes, or more"):
        gt.SpanningTree(torch.zeros(3, 3), components=4)
