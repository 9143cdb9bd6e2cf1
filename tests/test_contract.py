"""What every structure promises: shapes, dtypes, gradients, generators, and that it behaves as a distribution does."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from cases import CASES, generator, lengths

import gumtrace as gt

every = pytest.mark.parametrize("case", CASES, ids=str)
batches = pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)], ids=str)
samples = pytest.mark.parametrize("sample", [(), (5,), (2, 2)], ids=str)


def everything(d, seed=0, to=None):
    """All that d draws and computes for one seed, and the gradients of it to the logits it was built from."""
    g = generator(seed)
    trace = d.sample_trace((2,), generator=g)
    noise, given = d.perturb((2,), generator=g), d.conditional(trace, generator=g)
    numbers = [noise, given, d.trace_log_prob(trace), d.noise_log_prob(noise), d.decision_log_totals(trace)]
    grads = [grad_of(y, to) for y in numbers] if to is not None else []
    return [trace.value, d.mode, *(y.detach() for y in numbers), *grads]


def grad_of(y, x):
    return torch.autograd.grad(y.where(y.isfinite(), 0.0).sum(), x, retain_graph=True)[0]


def built(case, x, seed=0):
    x = x.detach().requires_grad_()
    return everything(case.build(x), seed, x)


def assert_same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)


# Shapes ------------------------------------------------------------------------------------------------


@every
@batches
@samples
def test_shapes(case, batch, sample):
    d = case(batch)
    trace, noise = d.sample_trace(sample), d.perturb(sample)
    assert (d.batch_shape, d.event_shape) == (batch, case.event)
    assert trace.shape == sample + batch
    assert trace.winners.shape[:-1] == sample + batch
    assert trace.value.shape == d.sample(sample).shape == sample + batch + case.event
    assert noise.shape == d.conditional(trace).shape == sample + batch + case.keys
    assert d.trace(noise).value.shape == sample + batch + case.event
    assert d.trace_log_prob(trace).shape == d.noise_log_prob(noise).shape == sample + batch
    assert d.decision_log_totals(trace).shape == trace.winners.shape
    assert d.trace(noise).equals(trace).shape == sample + batch
    assert d.mode.shape == batch + case.event
    if case.name.startswith(("subset", "permutation", "matching", "spanning", "forest", "binary")):
        assert d.log_prob(trace.value).shape == sample + batch


@every
def test_gradients_of_an_empty_batch_are_empty(case):
    x = case.logits((0,)).requires_grad_()
    d = case.build(x)
    trace = d.sample_trace((2,))
    for y in (d.perturb((2,)), d.trace_log_prob(trace), d.conditional(trace)):
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        assert grad.shape == x.shape


@every
@pytest.mark.parametrize("shape", [(0,), (0, 2)], ids=str)
def test_no_samples(case, shape):
    d = case((3,))
    trace = d.sample_trace(shape)
    assert trace.value.shape == (*shape, 3, *case.event)
    assert d.conditional(trace).shape == (*shape, 3, *case.keys)
    assert d.trace_log_prob(trace).shape == (*shape, 3)


# Values ------------------------------------------------------------------------------------------------


@every
@batches
def test_sample_is_the_value_of_sample_trace(case, batch):
    d = case(batch)
    assert_same(d.sample((4,), generator=generator()), d.sample_trace((4,), generator=generator()).value)


@every
def test_sample_trace_is_the_trace_of_perturb(case):
    d = case((3,))
    assert d.trace(d.perturb((4,), generator=generator())).equals(d.sample_trace((4,), generator=generator())).all()


@every
def test_mode_is_the_noiseless_run(case):
    d = case((3,))
    assert_same(d.mode, d.trace(d.logits).value)


@every
def test_values_are_of_the_right_kind(case):
    value = case((3,)).sample((20,))
    if case.kind == "ones":
        assert value.dtype == torch.float32
        assert ((value == 0) | (value == 1)).all()
    else:
        assert value.dtype == torch.long


@pytest.mark.parametrize("case", [c for c in CASES if c.kind != "labels"], ids=str)
def test_support(case):
    d = case((3,))
    value = d.sample((50,), generator=generator())
    assert d.support.event_dim == len(case.event)
    assert d.support.is_discrete
    assert d.support.check(value).all()
    for place in range(value[0, 0].numel()):
        assert not d.support.check(corrupt(value, place, case)).any()


def corrupt(value, place, case):
    """One number changed so that nothing right remains."""
    value = value.clone()
    flat = value.view(*value.shape[:2], -1)
    if case.kind == "order":
        flat[..., place] += 1  # twice the same key
    elif case.kind == "parents":
        flat[..., place] = place  # its own parent
    elif case.name.startswith("custom"):
        flat[..., place] = 0.5
    else:
        flat[..., place] = 1 - flat[..., place]
    return value


PADDED = {
    "subset": (gt.Subset(torch.zeros(4), 2, lengths=3), [0, 0, 1, 1]),
    "permutation": (gt.Permutation(torch.zeros(3), lengths=2), [0, 2, 1]),
    "permutation-matrix": (gt.Permutation(torch.zeros(2), matrix=True, lengths=1), [[1, 0], [0, 1]]),
    "matching": (gt.Matching(torch.zeros(2, 2), lengths=1), [[1, 0], [0, 1]]),
    "matching-wide": (gt.Matching(torch.zeros(2, 3), lengths=1), [[0, 0, 1], [1, 0, 0]]),
    "spanning-tree": (gt.SpanningTree(torch.zeros(3, 3), lengths=2), [[0, 0, 1], [0, 0, 0], [1, 0, 0]]),
    "arborescence": (gt.Arborescence(torch.zeros(3, 3), lengths=2), [[0, 0, 0], [0, 0, 0], [0, 1, 0]]),
    "binary-tree": (gt.BinaryTree(torch.zeros(3), lengths=2), [-1, 0, 1]),
}


@pytest.mark.parametrize("name", PADDED)
def test_support_ends_at_the_padding(name):
    d, value = PADDED[name]
    assert not d.support.check(torch.tensor(value, dtype=d.sample().dtype))


@pytest.mark.parametrize(
    ("d", "certain"),
    [
        (gt.Subset(torch.randn(4), 0), [0, 0, 0, 0]),
        (gt.Subset(torch.randn(4), 4), [1, 1, 1, 1]),
        (gt.Subset(torch.zeros(0), 0), []),
        (gt.Permutation(torch.randn(1)), [0]),
        (gt.Permutation(torch.zeros(0)), []),
        (gt.Matching(torch.randn(1, 1)), [[1]]),
        (gt.SpanningTree(torch.randn(1, 1)), [[0]]),
        (gt.SpanningTree(torch.randn(2, 2)), [[0, 1], [1, 0]]),
        (gt.SpanningTree(torch.randn(3, 3), components=3), [[0] * 3] * 3),
        (gt.BinaryTree(torch.randn(1)), [-1]),
        (gt.BinaryTree(torch.zeros(0)), []),
    ],
    ids=repr,
)
def test_what_is_certain_has_probability_one(d, certain):
    value = d.sample()
    assert value.tolist() == certain
    torch.testing.assert_close(d.log_prob(value), torch.tensor(0.0))


@pytest.mark.parametrize("case", [c for c in CASES if c.certain], ids=str)
def test_a_single_trace_has_probability_one(case):
    d = case((3,))
    trace = d.sample_trace((4,))
    assert_same(d.trace_log_prob(trace), torch.zeros(4, 3))
    assert d.trace(d.conditional(trace)).equals(trace).all()


# Noise and gradients ----------------------------------------------------------------------------------


@every
def test_who_does_not_race_has_no_noise(case):
    d, racing = case((2, 3)), case.racing((2, 3))
    trace = d.sample_trace((4,))
    assert_same(d.racing, racing)
    for noise in (d.perturb((4,)), d.conditional(trace)):
        assert noise[:, racing].isfinite().all()
        assert noise[:, ~racing].isneginf().all()


@every
def test_perturb_has_the_identity_for_gradient(case):
    x, weight, racing = case.logits((3,)).requires_grad_(), torch.randn(4, 3, *case.keys), case.racing((3,))
    (grad,) = torch.autograd.grad(case.build(x).perturb((4,)), x, weight)
    torch.testing.assert_close(grad, torch.where(racing, weight.sum(0), 0.0))


@every
def test_conditional_passes_no_gradient_where_nothing_races(case):
    x, weight, racing = case.logits((3,)).requires_grad_(), torch.randn(4, 3, *case.keys), case.racing((3,))
    d = case.build(x)
    given = d.conditional(d.sample_trace((4,)))
    (all_of_it,) = torch.autograd.grad(given, x, weight, retain_graph=True)
    (of_racing,) = torch.autograd.grad(given, x, torch.where(racing, weight, 0.0))
    torch.testing.assert_close(all_of_it, of_racing)
    assert (all_of_it[~racing] == 0).all()


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_noise_log_prob_is_that_of_gumbels(case, dtype):
    d, racing = case((3,), dtype), case.racing((3,))
    noise = d.perturb((4,)) + 0.5
    gumbel = torch.distributions.Gumbel(torch.where(racing, d.logits, 0.0), torch.ones((), dtype=dtype))
    want = torch.where(racing, gumbel.log_prob(torch.where(racing, noise, 0.0)), 0.0)
    torch.testing.assert_close(d.noise_log_prob(noise), want.flatten(2).sum(-1))


@every
def test_gradients_flow_where_they_should(case):
    d = case.build(case.logits((3,)).requires_grad_())
    trace = d.sample_trace((2,))
    noise = d.perturb((2,))
    for y in (noise, d.conditional(trace), d.trace_log_prob(trace), d.noise_log_prob(noise)):
        assert y.requires_grad
    for y in (d.sample(), trace.value, trace.winners, d.trace(noise).value, d.mode):
        assert not y.requires_grad


@every
def test_gradients_are_finite_and_zero_where_nothing_races(case):
    x, racing = case.logits((3,)).requires_grad_(), case.racing((3,))
    d = case.build(x)
    trace = d.sample_trace((2,))
    for y in (d.trace_log_prob(trace), d.conditional(trace), d.noise_log_prob(d.perturb((2,)))):
        grad = grad_of(y, x)
        assert grad.isfinite().all()
        assert (grad[~racing] == 0).all()


# Dtypes -------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_dtypes(case, dtype, computed):
    x = case.logits((3,), dtype).requires_grad_()
    d = case.build(x)
    trace, noise = d.sample_trace((2,)), d.perturb((2,))
    results = [
        noise,
        d.conditional(trace),
        d.trace_log_prob(trace),
        d.noise_log_prob(noise),
        d.decision_log_totals(trace),
    ]
    assert {y.dtype for y in results} == {computed}
    for y in results:
        grad = grad_of(y, x)
        assert grad.dtype == dtype
        assert grad.isfinite().all()
    if not case.certain:
        assert (grad_of(results[2], x) != 0).any()


@every
def test_half_logits_are_computed_in_single(case):
    x = case.logits((3,), torch.float16)
    for half, single in zip(built(case, x), built(case, x.float()), strict=True):
        torch.testing.assert_close(half.float(), single.float(), rtol=2e-3, atol=2e-3)  # gradients are rounded to half


# Batches ------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    ("batch", "new"), [((), (2, 3)), ((3,), (2, 3)), ((1,), (3,)), ((3,), (3,)), ((), ())], ids=str
)
def test_expand(case, batch, new):
    d = case(batch)
    wide = d.expand(torch.Size(new))
    assert type(wide) is type(d)
    assert (wide.batch_shape, d.batch_shape, wide.event_shape) == (new, batch, case.event)
    assert wide.logits.shape == new + case.keys
    assert wide.logits.data_ptr() == d.logits.data_ptr()
    if batch == new or batch == (3,):  # the cases give k and lengths by position in the last batch dimension
        written_out = case.build(d.logits.expand(new + case.keys).contiguous())
        assert_same(everything(wide), everything(written_out))
    value = wide.sample((2,))
    assert value.shape == (2, *new, *case.event)
    if case.kind != "labels":
        assert wide.support.check(value).all()


def test_expand_keeps_what_is_given_by_item():
    by_item = torch.tensor([[1], [3], [2]])
    subset = gt.Subset(torch.zeros(3, 1, 4), by_item).expand((3, 2))
    assert (subset.k == by_item).all()
    assert (subset.sample((9,)).sum(-1) == by_item).all()
    tree = gt.SpanningTree(torch.zeros(3, 1, 4, 4), lengths=by_item).expand((3, 2))
    assert (tree.sample((9,)).sum((-1, -2)) == 2 * (by_item - 1)).all()
    assert tree.support.check(tree.sample((9,))).all()


@every
def test_gradients_flow_through_expand(case):
    x = case.logits((3,)).requires_grad_()
    wide = case.build(x).expand((2, 3))
    noise = wide.perturb()
    (grad,) = torch.autograd.grad(noise.where(noise.isfinite(), 0.0).sum(), x)
    assert_same(grad, 2.0 * case.racing((3,)))


def _strided(x):
    return torch.stack([x, torch.full_like(x, 7.0)], -1)[..., 0]


def _transposed(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def _backwards(x):
    return x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))


@every
@pytest.mark.parametrize("arrange", [_strided, _transposed, _backwards], ids=lambda f: f.__name__)
def test_strides_do_not_matter(case, arrange):
    x = case.logits((2, 3))
    odd = arrange(x)
    assert_same(odd, x)
    assert x.numel() <= 6 or not odd.is_contiguous()
    torch.testing.assert_close(built(case, odd), built(case, x))  # torch may sum in another order
    d, noise = case.build(x), case.build(x).perturb((2,), generator=generator())
    assert d.trace(arrange(noise)).equals(d.trace(noise)).all()


@every
def test_stride_zero(case):
    x = case.logits(())
    for a, b in zip(
        everything(case.build(x.expand(3, *case.keys))),
        everything(case.build(x.repeat(3, *[1] * x.dim()))),
        strict=True,
    ):
        assert_same(a, b)


@every
def test_noise_may_be_expanded(case):
    d = case((3,))
    noise = d.perturb(generator=generator())
    traces = d.trace(noise.expand(4, *noise.shape))
    assert traces.shape == (4, 3)
    assert traces.equals(d.trace(noise)).all()


# Generators ---------------------------------------------------------------------------------------------


@every
def test_the_same_seed_gives_the_same(case):
    d = case((3,))
    assert_same(built(case, d.logits, seed=3), built(case, d.logits, seed=3))


@every
def test_another_seed_gives_another(case):
    d, racing = case((3,)), case.racing((3,))
    trace = d.sample_trace()
    assert (d.perturb(generator=generator(1)) != d.perturb(generator=generator(2)))[racing].all()
    a, b = (d.conditional(trace, generator=generator(seed)) for seed in (1, 2))
    assert (a != b)[racing].all()
    if not case.certain:
        a, b = (d.sample_trace((50,), generator=generator(seed)) for seed in (1, 2))
        assert not a.equals(b).all()


@every
def test_draws_in_a_row_differ(case):
    d, racing, g = case((3,)), case.racing((3,)), generator()
    assert (d.perturb(generator=g) != d.perturb(generator=g))[racing].all()
    noise = d.perturb((2,), generator=g)
    assert (noise[0] != noise[1])[racing].all()


@every
def test_the_global_seed_is_respected(case):
    d = case((3,))

    def draw(seed):
        torch.manual_seed(seed)
        trace = d.sample_trace((20,))
        return trace.value, d.perturb((2,)), d.conditional(trace)

    with torch.random.fork_rng():
        first, second, other = draw(5), draw(5), draw(6)
    assert_same(first, second)
    if case.racing((3,)).any():
        assert not torch.equal(first[1], other[1])


@every
def test_a_given_generator_leaves_the_global_one_alone(case):
    with torch.random.fork_rng():
        before = torch.get_rng_state()
        everything(case((3,)))
        assert_same(torch.get_rng_state(), before)


@every
def test_the_number_of_threads_does_not_matter(case, monkeypatch):
    monkeypatch.setattr("gumtrace.kernels.cpu.threads.SMALL", 0)  # share even this little
    x, threads = case.logits((33,)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = built(case, x)
        torch.set_num_threads(2)
        together = built(case, x)
    finally:
        torch.set_num_threads(threads)
    assert_same(alone, together)


# Traces -------------------------------------------------------------------------------------------------


@every
def test_indexing_a_trace(case):
    d = case((2, 3))
    trace = d.sample_trace((5,))
    log_prob = d.trace_log_prob(trace)
    assert len(trace) == 5
    for index in (1, -1, slice(1, 4), torch.tensor([4, 0, 0]), slice(None, None, 2)):
        assert_same(trace[index].value, trace.value[index])
        assert_same(d.trace_log_prob(trace[index]), log_prob[index])
    assert_same(trace[..., 0].value, trace.value[:, :, 0])
    assert_same(trace[2, 1].value, trace.value[2, 1])
    assert_same(trace[2, 1, 0].value, trace.value[2, 1, 0])
    assert [t.shape for t in trace] == [(2, 3)] * 5


@every
def test_a_single_trace_has_neither_items_nor_length(case):
    trace = case().sample_trace()
    with pytest.raises(IndexError, match="single trace"):
        trace[0]
    with pytest.raises(TypeError, match="single trace"):
        len(trace)
    with pytest.raises(IndexError):
        case((3,)).sample_trace()[3]


@every
def test_equality_of_traces(case):
    d = case((3,))
    trace = d.sample_trace((50,), generator=generator(1))
    other = d.sample_trace((50,), generator=generator(2))
    same = trace.equals(other)
    assert same.dtype == torch.bool
    assert trace.equals(trace).all()
    assert_same(same, other.equals(trace))
    assert_same(d.trace_log_prob(trace)[same], d.trace_log_prob(other)[same])
    assert_same(trace.value[same], other.value[same])
    assert same.all() == case.certain


@every
def test_traces_are_light(case):
    trace = case.build(case.logits((3,)).requires_grad_()).sample_trace((2,))
    moved = trace.to("cpu")
    assert moved.equals(trace).all()
    assert trace.device == torch.device("cpu")
    assert not trace.winners.is_floating_point()
    assert repr(trace).startswith("Trace(shape=(2, 3)")
    assert trace.to("meta").device.type == "meta"


# As a Python object -------------------------------------------------------------------------------------


def _pickled(x):
    return pickle.loads(pickle.dumps(x))


def _saved(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@every
@pytest.mark.parametrize("again", [_pickled, _saved, copy.copy, copy.deepcopy], ids=lambda f: f.__name__)
def test_copies(case, again):
    d = case((3,))
    trace = d.sample_trace((2,))
    twin, twin_trace = again(d), again(trace)
    assert repr(twin) == repr(d)
    assert_same(everything(twin), everything(d))
    assert twin_trace.equals(trace).all()
    assert_same(twin_trace.value, trace.value)
    assert_same(twin.trace_log_prob(twin_trace), d.trace_log_prob(trace))


@every
def test_repr(case):
    d = case((2, 3))
    assert repr(d) == f"{type(d).__name__}(batch_shape=(2, 3), event_shape={case.event}, dtype=torch.float32)"


# The public interface -----------------------------------------------------------------------------------


def test_public_names():
    assert sorted(gt.__all__) == [
        "Arborescence",
        "BinaryTree",
        "Custom",
        "Matching",
        "Permutation",
        "SpanningTree",
        "Subset",
        "Trace",
        "backends",
        "diagnostics",
        "divergences",
        "estimators",
        "plotting",
        "relax",
    ]
    assert all(hasattr(gt, name) for name in gt.__all__)


SIGNATURES = {
    gt.Subset: "logits, k",
    gt.Permutation: "logits, matrix=False",
    gt.Matching: "logits",
    gt.SpanningTree: "logits, components=1",
    gt.SpanningTree.from_edges: "logits, edge_index, num_nodes, components=1",
    gt.Arborescence: "logits, root=0",
    gt.BinaryTree: "logits",
    gt.Custom: "logits, algorithm",
}


@pytest.mark.parametrize("make", SIGNATURES, ids=lambda f: f.__qualname__)
def test_constructors(make):
    parameters = inspect.signature(make).parameters.values()
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    written = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in positional]
    assert ", ".join(written) == SIGNATURES[make]
    assert {"mask", "lengths", "validate_args"} <= {p.name for p in parameters}


@every
def test_methods(case):
    d = case((3,))
    assert isinstance(d, torch.distributions.Distribution)
    drawn = {"sample": (), "sample_trace": (), "perturb": (), "conditional": (d.sample_trace(),)}
    for name, args in drawn.items():
        getattr(d, name)(*args, generator=generator())
    for name in ("sample", "sample_trace", "perturb"):
        getattr(d, name)(torch.Size([2]))
    assert not d.has_rsample


def test_lengths_of_the_cases_differ():
    assert lengths((3,), 5).tolist() == [5, 4, 5]  # else the ragged cases would test nothing
