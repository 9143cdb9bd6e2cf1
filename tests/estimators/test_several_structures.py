"""Items of several structures with one loss: `torch.distributions.Independent` in estimators, relaxations, divergences
and diagnostics. False alarms: one in a million for each statistical test; seeds are fixed."""

import pytest
import torch
from common import FALSE_ALARM, seeded
from torch.distributions import Independent, Normal
from unbiased import batched_objective, make

import gumtrace as gt
from gumtrace import diagnostics as D
from gumtrace import divergences as V
from gumtrace import estimators as E
from gumtrace.recursions import MaximalIndependentSet

UNBIASED = [name for name, cls in E.ESTIMATORS.items() if cls.unbiased]
PATH = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])


def randn(*shape):
    return torch.randn(*shape, generator=seeded(4), dtype=torch.float64)


STRUCTURES = {  # two items of two structures
    "subset": lambda: gt.Subset(randn(2, 2, 3), torch.tensor([[1, 2], [2, 1]])),
    "subset-masked": lambda: gt.Subset(randn(2, 2, 4), 2, mask=torch.tensor([True, True, False, True])),
    "order": lambda: gt.Permutation(randn(2, 2, 3)),
    "permutation": lambda: gt.Permutation(randn(2, 2, 3), matrix=True),
    "matching": lambda: gt.Matching(randn(2, 2, 2, 3)),
    "tree-ragged": lambda: gt.SpanningTree(randn(2, 2, 3, 3), lengths=torch.tensor([[3, 2], [2, 3]])),
    "arborescence": lambda: gt.Arborescence(randn(2, 2, 3, 3)),
    "binary": lambda: gt.BinaryTree(randn(2, 2, 3)),
    "custom": lambda: gt.Custom(randn(2, 2, 3), MaximalIndependentSet(PATH), event_dim=1),
}


CASES = [
    (estimator, name)
    for estimator in UNBIASED
    for name, build in STRUCTURES.items()
    if E.ESTIMATORS[estimator].supports(Independent(build(), 1))
]


def case(name):
    """Its loss is not a sum over the structures."""
    dist = Independent(STRUCTURES[name](), 1)
    return dist, lambda value: batched_objective(value, len(dist.event_shape))


@pytest.mark.parametrize("name", E.ESTIMATORS)
def test_one_loss_for_the_structures_of_an_item(name):
    logits = randn(5, 3, 4).requires_grad_()
    dist = Independent(gt.Subset(logits, 2), 1)
    estimator = E.ESTIMATORS[name].from_settings({"samples": 2}, critic=lambda: E.VectorCritic(4)).double()
    loss = estimator(dist, lambda x: x.flatten(-2).cumsum(-1).square().sum(-1))
    assert loss.shape == (5,)
    loss.sum().backward()
    assert logits.grad.shape == logits.shape
    assert logits.grad.isfinite().all()
    with torch.no_grad():
        assert estimator(dist, lambda x: x.sum((-1, -2))).shape == (5,)


def test_the_exact_gradient_is_that_of_the_product():
    """A subset of one key is a categorical variable, whose joint law can be written out."""
    logits, loss = randn(3, 4).requires_grad_(), randn(4, 4, 4)
    a, b, c = logits.softmax(-1)
    expected = torch.einsum("i,j,k,ijk->", a, b, c, loss)
    (gradient,) = torch.autograd.grad(expected, logits)

    def objective(x):
        return torch.einsum("...i,...j,...k,ijk->...", *x.unbind(-2), loss)

    value, exact = D.exact_gradient(Independent(gt.Subset(logits, 1), 1), objective)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(exact, gradient)


@pytest.mark.parametrize(("estimator", "name"), CASES)
@pytest.mark.slow
def test_unbiased(estimator, name):
    dist, f = case(name)
    made = make(estimator, STRUCTURES[name](), samples=2, temperature=0.7, scale=0.8).requires_grad_(False)
    for step in range(10 if "surrogate" in E.ESTIMATORS[estimator].settings() else 0):
        made(dist, f, generator=seeded(step))
    assert D.check_unbiased(made.eval(), dist, f, 1500, generator=seeded(9)).p_value > FALSE_ALARM


@pytest.mark.parametrize("name", STRUCTURES)
def test_no_case_is_blind(name):
    """The gradient of one structure's score alone, without that of the others, would be seen: both parts of it are at
    least seven standard errors."""
    dist, f = case(name)
    _, exact = D.exact_gradient(dist, f)
    error = (D.exact_variance(dist, f, 2).trace / 1500).sqrt()
    for each in range(2):
        alive = exact[:, each].abs() > 1e-9
        assert (exact[:, each][alive].abs() / error[:, each][alive]).max() > 7


def test_one_structure_alone_is_found_out():
    """A score that leaves out the second structure is biased, and `check_unbiased` says so."""
    dist, f = case("subset")

    def first_only(dist, objective, generator):
        trace = dist.sample_trace((2,), generator=generator)
        score = dist.base_dist.trace_log_prob(trace)[..., 0]
        return ((lambda loss: loss - loss.flip(0))(objective(trace.value)) * score).mean(0)

    assert D.check_unbiased(first_only, dist, f, 1500, generator=seeded(9)).p_value < FALSE_ALARM


@pytest.mark.parametrize("name", E.ESTIMATORS)
def test_nested_is_the_same_as_at_once(name):
    logits = randn(2, 2, 3, 4)
    base = gt.Subset(logits, 2)
    results = []
    for dist in (Independent(base, 2), Independent(Independent(base, 1), 1), Independent(Independent(base, 2), 0)):
        estimator = make(name, base)
        grads = D.gradients(estimator, dist, lambda x: x.cumsum(-1).square().sum((-1, -2, -3)), 3, seeded())
        assert grads.shape == (3, *logits.shape)
        results.append(grads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_none_of_the_dimensions_is_the_structure_itself():
    base = gt.Subset(randn(3, 4), 2)
    loss = [E.TraceREINFORCE()(d, lambda x: x[..., 0], generator=seeded()) for d in (base, Independent(base, 0))]
    assert torch.equal(*loss)


@pytest.mark.parametrize("name", [n for n, cls in E.ESTIMATORS.items() if "critic" not in cls.settings()])
def test_items_without_structures(name):
    logits = randn(2, 0, 4).requires_grad_()
    loss = make(name, gt.Subset(logits, 2))(Independent(gt.Subset(logits, 2), 1), lambda x: 1 + x.sum((-1, -2)))
    assert torch.equal(loss.detach(), torch.ones(2, dtype=torch.float64))


def test_half_precision_and_expansion():
    logits = randn(3, 4).half().requires_grad_()
    dist = Independent(gt.Subset(logits, 2), 1).expand((5,))
    loss = E.TraceREINFORCE(samples=2)(dist, lambda x: x.sum((-1, -2)))
    loss.sum().backward()
    assert loss.shape == (5,)
    assert logits.grad.shape == (3, 4)


# Errors --------------------------------------------------------------------------------------------


def test_the_shape_of_losses():
    base = gt.Subset(torch.zeros(5, 3, 4), 2)
    estimator = E.TraceREINFORCE(samples=2)
    message = (
        r"shape \(2, 5\), for values of shape \(2, 5, 3, 4\); got shape \(2, 5, 3\); take the mean or sum over the last"
    )
    with pytest.raises(ValueError, match=message):
        estimator(Independent(base, 1), lambda x: x.sum(-1))
    with pytest.raises(ValueError, match=r"got shape \(2, 5\); if several structures .* pass .*Independent\(dist, 1\)"):
        estimator(base, lambda x: x.sum((-1, -2)))
    with pytest.raises(ValueError, match=r"got shape \(3,\)$"):
        estimator(base, lambda x: x[0, 0, :, 0])


def test_a_loss_that_is_not_finite_is_named():
    dist = Independent(gt.Subset(torch.zeros(5, 3, 4), 2), 1)

    def objective(x):
        return x.sum((-1, -2)).index_fill(-1, torch.tensor(4), torch.nan)

    with pytest.raises(ValueError, match=r"the loss of sample 0 of item \(4,\) of the batch is nan"):
        E.TraceREINFORCE()(dist, objective)
    unchecked = Independent(gt.Subset(torch.zeros(5, 3, 4), 2, validate_args=False), 1)
    assert E.TraceREINFORCE()(unchecked, objective).isnan().tolist() == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("dist", "named"),
    [(Normal(0.0, 1.0), "got Normal"), (Independent(Normal(torch.zeros(3), 1.0), 1), "got Independent of Normal")],
)
def test_other_distributions_are_refused(dist, named):
    calls = [lambda: E.TraceREINFORCE()(dist, lambda x: x), lambda: gt.relax(dist, torch.zeros(3), 1.0)]
    calls += [lambda: D.exact_gradient(dist, lambda x: x), lambda: V.trace_entropy(dist)]
    for call in calls:
        with pytest.raises(TypeError, match=f"needs a structure, or torch.distributions.Independent of one; {named}"):
            call()


def test_structures_without_log_prob_or_relaxation():
    arborescences = Independent(gt.Arborescence(torch.zeros(2, 3, 3)), 1)
    trees = Independent(gt.BinaryTree(torch.zeros(2, 3)), 1)
    assert not E.StructureREINFORCE.supports(arborescences)
    assert E.REBAR.supports(arborescences)
    assert not E.REBAR.supports(trees)
    with pytest.raises(NotImplementedError, match="StructureREINFORCE needs log_prob"):
        E.StructureREINFORCE()(arborescences, lambda x: x.sum((-1, -2, -3)))
    with pytest.raises(NotImplementedError, match="BinaryTree has no relaxation"):
        E.StochasticSoftmax()(trees, lambda x: x.sum((-1, -2)))


# Critics and surrogates ----------------------------------------------------------------------------


def test_critics_of_a_structure_are_added():
    dist = Independent(gt.Subset(randn(5, 3, 4), 2), 1)
    noise = dist.base_dist.perturb((2,), generator=seeded())
    torch.manual_seed(0)
    each, whole = E.VectorCritic(4).double(), E.MatrixCritic(size=(3, 4)).double()
    joint = gt.structures.joint.as_structure("test", dist)
    assert torch.equal(E.RELAX(each).control(joint, noise, None, None), each(noise).sum(-1))
    assert torch.equal(E.RELAX(whole).control(joint, noise, None, None), whole(noise))
    with pytest.raises(ValueError, match=r"critic must return shape \(2, 5\), got \(2, 5, 3, 4\)"):
        E.RELAX(lambda noise, context: noise).control(joint, noise, None, None)


def test_a_critic_of_all_structures_with_context():
    logits, context = randn(5, 3, 4).requires_grad_(), randn(5, 2)
    relax = E.RELAX(E.MatrixCritic(size=(3, 4), context=2)).double()
    relax(Independent(gt.Subset(logits, 2), 1), lambda x: x.sum((-1, -2)), context).sum().backward()
    assert all(p.grad is not None for p in relax.parameters())


@pytest.mark.parametrize(("name", "entries"), [("subset", 2 * 3), ("tree-ragged", 2 * 3), ("order", 2 * 12)])
def test_surrogates_see_all_structures(name, entries):
    dist, f = case(name)
    estimator = E.SurrogateREINFORCE(samples=2, extra=4, surrogate=E.LinearSurrogate())
    estimator(dist, f, generator=seeded())
    assert estimator.surrogate.features(torch.zeros(1, entries)).shape[-1] == len(estimator.surrogate.gram)
    assert estimator.surrogate.gram.diagonal().count_nonzero() > entries / 3  # of both structures


# Relaxations, divergences, diagnostics -------------------------------------------------------------


def test_relax():
    base = gt.Subset(randn(5, 3, 4), 2)
    noise = base.perturb(generator=seeded())
    soft = gt.relax(Independent(base, 1), noise, 0.5)
    assert torch.equal(soft, gt.relax(base, noise, 0.5))
    temperature = torch.linspace(0.5, 1, 5)
    soft = gt.relax(Independent(base, 1), noise, temperature)
    assert torch.equal(soft, gt.relax(base, noise, temperature[:, None].expand(5, 3)))


@pytest.mark.parametrize("name", STRUCTURES)
def test_divergences_are_sums(name):
    """Those of a batch are those of its items, and `Independent` adds them."""
    p = STRUCTURES[name]()
    q = p.with_log_rates(p.log_rates * 0.5)
    together = Independent(p, 1), Independent(q, 1)
    torch.testing.assert_close(V.noise_kl(*together), V.noise_kl(p, q).sum(-1))
    torch.testing.assert_close(V.exact_entropy(together[0]), V.exact_entropy(p).sum(-1))
    torch.testing.assert_close(V.exact_kl(*together), V.exact_kl(p, q).sum(-1))
    alone = V.exact_kl(p.item((1, 0)), q.item((1, 0)))
    torch.testing.assert_close(V.exact_kl(p, q)[1, 0], alone)
    entropies = (V.trace_entropy(d, generator=seeded()) for d in (together[0], p))
    kls = (V.trace_kl(*d, generator=seeded()) for d in (together, (p, q)))
    for total, each in (entropies, kls):
        torch.testing.assert_close(total, each.sum(-1))
    with pytest.raises(ValueError, match="differ in which of their structures make an item"):
        V.noise_kl(together[0], q)


def test_the_entropy_of_a_joint_trace_is_the_sum():
    dist, _ = case("subset")
    joint = gt.structures.joint.as_structure("test", dist)
    law = [D.enumerate_traces(joint.item((i,))).log_prob for i in range(2)]
    expected = torch.stack([-(x.exp() * x).sum() for x in law])
    torch.testing.assert_close(V.exact_entropy(dist), expected)


def test_an_impossible_run_leaves_no_gradient():
    """Where one structure of an item has an infinite KL, the others get none from it either."""
    logits = randn(2, 2, 3).requires_grad_()
    mask = torch.ones(2, 2, 3, dtype=torch.bool)
    mask[1, 0, 2] = False
    p, q = gt.Subset(logits, 2), gt.Subset(torch.zeros(2, 2, 3), 2, mask=mask)
    kl = V.exact_kl(Independent(p, 1), Independent(q, 1))
    assert kl.isinf().tolist() == [False, True]
    (grad,) = torch.autograd.grad(kl.sum(), logits)
    assert (grad[0] != 0).any()
    assert (grad[1] == 0).all()


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.slow
def test_laws_of_all_structures_of_an_item(name):
    item = Independent(STRUCTURES[name]().item((0,)), 1)
    law, first, second = (D.enumerate_traces(d) for d in (item, *(item.base_dist.item((i,)) for i in range(2))))
    assert len(law) == len(first) * len(second)
    assert abs(law.total - 1) < 1e-9
    assert abs(D.enumerate_values(item).total - 1) < 1e-9
    draws = 2000 if name == "custom" else 20_000
    assert D.goodness_of_fit(item, draws, generator=seeded()).p_value > FALSE_ALARM
    report = D.check_conditional(item, draws, generator=seeded())
    assert report.broken == 0
    assert report.p_value > FALSE_ALARM


def test_exact_variance_of_the_product():
    """Against the definition: the second moment of the estimate, less the square of the gradient."""
    dist, f = case("subset")
    variance = D.exact_variance(dist, f)
    joint = gt.structures.joint.as_structure("test", dist)
    for i in range(2):
        item = joint.item((i,))
        traces = item.enumerate_traces()
        x = item.log_rates.expand(len(traces), *item.key_shape).clone().requires_grad_()
        log_prob = item.with_log_rates(x).trace_log_prob(traces)
        (score,) = torch.autograd.grad(log_prob.sum(), x)
        p, loss = log_prob.detach().exp(), batched_objective(traces.value, 2)
        mean, square = (torch.einsum("t,tij->ij", p, (loss[:, None, None] * score) ** power) for power in (1, 2))
        torch.testing.assert_close(variance.trace[i], square - mean.square())


def test_gradient_statistics():
    dist, f = case("subset")
    table = D.gradient_statistics({"T": E.TraceREINFORCE(samples=2)}, dist, f, 500, generator=seeded())
    assert table[0].calls == 2
    assert table[0].bias < 6 * table[0].bias_error


@pytest.mark.slow
def test_compiled():
    logits = randn(5, 3, 4).float().requires_grad_()

    def loss(logits):
        dist = Independent(gt.Subset(logits, 2, validate_args=False), 1)
        return E.TraceREINFORCE(samples=2)(dist, lambda x: x.cumsum(-1).square().sum((-1, -2))).mean()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(logits)
    compiled.backward()
    assert logits.grad.isfinite().all()


def test_mapped_by_torch_func():
    logits = randn(4, 5, 3, 4)

    def loss(logits):
        dist = Independent(gt.Subset(logits, 2, validate_args=False), 1)
        return E.TraceREINFORCE(samples=2)(dist, lambda x: x.cumsum(-1).square().sum((-1, -2))).mean()

    grads = torch.func.vmap(torch.func.grad(loss), randomness="different")(logits)
    assert grads.shape == logits.shape


def test_no_items_of_several_structures():
    d = Independent(gt.Subset(torch.zeros(0, 3, 6, requires_grad=True), 2), 1)
    for estimator in (gt.estimators.StructureREINFORCE(), gt.estimators.TraceREINFORCE()):
        assert estimator(d, lambda x: x.sum((-1, -2))).shape == (0,)
