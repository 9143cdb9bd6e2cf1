"""Estimators: unbiased where they say so, against the exact gradient; the right value, shapes and errors for all."""

import pytest
import torch
from common import FALSE_ALARM, seeded

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import check_unbiased, exact_gradient, gradients

DISTS = {
    "subset": lambda: gt.Subset(randn(5), 2),
    "subset-ragged": lambda: gt.Subset(randn(2, 4), torch.tensor([1, 2]), lengths=torch.tensor([3, 4])),
    "permutation": lambda: gt.Permutation(randn(3), matrix=True),
    "matching": lambda: gt.Matching(randn(2, 3)),
    "matching-masked": lambda: gt.Matching(randn(3, 3), mask=torch.eye(3).bool() | torch.ones(3, 3).triu().bool()),
    "tree": lambda: gt.SpanningTree(randn(4, 4)),
    "tree-ragged": lambda: gt.SpanningTree(randn(2, 4, 4), lengths=torch.tensor([3, 4])),
    "forest": lambda: gt.SpanningTree(randn(4, 4), components=2),
    "arborescence": lambda: gt.Arborescence(randn(3, 3)),
    "arborescence-ragged": lambda: gt.Arborescence(randn(2, 4, 4), lengths=torch.tensor([2, 4])),
    "binary": lambda: gt.BinaryTree(randn(4)),
    "binary-ragged": lambda: gt.BinaryTree(randn(2, 4), lengths=torch.tensor([2, 4])),
}
NO_LOG_PROB = {"arborescence", "arborescence-ragged"}
NO_RELAXATION = {"forest", "binary", "binary-ragged"}
KS = pytest.mark.parametrize("samples", [1, 2, 4])


def randn(*shape):
    return torch.randn(*shape, generator=seeded(8), dtype=torch.float64)


def case(name):
    dist = DISTS[name]()
    return dist, lambda value: batched_objective(value, len(dist.event_shape))


def batched_objective(value, event_dim):
    """Neither linear nor centred: weights by position, squared."""
    flat = value.double().flatten(-event_dim) if event_dim > 1 else value.double()
    weights = torch.linspace(-1.0, 2.0, flat.shape[-1], dtype=torch.float64)
    return (flat @ weights).square() + 1.0


def critic_for(dist):
    torch.manual_seed(0)
    critic = E.MatrixCritic(8) if len(dist.key_shape) == 2 else E.VectorCritic(dist.key_shape[0], 16)
    return critic.double()


def unbiased(estimator, name, replicates=20_000):
    dist, f = case(name)
    return check_unbiased(estimator, dist, f, replicates, generator=seeded(9)).p_value > FALSE_ALARM


@KS
@pytest.mark.parametrize("name", DISTS)
def test_trace_reinforce(name, samples):
    assert unbiased(E.TraceREINFORCE(samples), name)


@KS
@pytest.mark.parametrize("name", DISTS)
def test_noise_reinforce(name, samples):
    assert unbiased(E.NoiseREINFORCE(samples), name)


@KS
@pytest.mark.parametrize("name", [n for n in DISTS if n not in NO_LOG_PROB])
def test_structure_reinforce(name, samples):
    assert unbiased(E.StructureREINFORCE(samples), name, 4000)


@KS
@pytest.mark.parametrize("name", DISTS)
def test_relax(name, samples):
    dist, _ = case(name)
    fixed = critic_for(dist).requires_grad_(False)  # training it would take a second derivative here
    assert unbiased(E.RELAX(fixed, samples), name, 8000)


@KS
@pytest.mark.parametrize("name", [n for n in DISTS if n not in NO_RELAXATION])
def test_rebar(name, samples):
    assert unbiased(E.REBAR(samples=samples, temperature=0.7, scale=0.8).double().requires_grad_(False), name, 3000)


@pytest.mark.parametrize("kind", ["expfamily", "euclidean", "categorical", "binary"])
def test_rebar_with_every_subset_relaxation(kind):
    assert unbiased(E.REBAR(kind, temperature=0.7).double().requires_grad_(False), "subset", 3000)


@KS
@pytest.mark.parametrize("surrogate", ["linear", "pairwise", "mlp"])
@pytest.mark.parametrize("name", ["subset", "tree-ragged", "binary"])
def test_surrogate_reinforce(name, surrogate, samples):
    """Fitted on something first, so that c is not zero, and then frozen: replicates must be independent."""
    dist, f = case(name)
    estimator = E.SurrogateREINFORCE(build_surrogate(surrogate, dist), samples, extra=8)
    for _ in range(5):
        estimator(dist, f, generator=seeded(10))
    estimator.eval()
    assert check_unbiased(estimator, dist, f, 20_000, generator=seeded(9)).p_value > FALSE_ALARM


def build_surrogate(kind, dist):
    if kind == "mlp":
        from gumtrace.estimators.surrogate import _entries

        torch.manual_seed(0)
        return E.MLPSurrogate(_entries(dist, dist.sample((1,))).shape[-1])
    return {"linear": E.LinearSurrogate, "pairwise": E.PairwiseSurrogate}[kind]()


class Broken(E.TraceREINFORCE):
    """Deliberately wrong copies: the test of the test."""

    def __init__(self, fault, samples=2):
        super().__init__(samples)
        self.fault = fault

    def surrogate(self, dist, objective, context, generator):
        trace = dist.sample_trace((self.samples,), generator=generator)
        loss = self.evaluate(dist, objective, trace.value)
        score = dist.trace_log_prob(trace)
        weight = loss.detach()
        if self.fault == "own baseline":
            weight = weight - weight.mean(0)  # without K / (K - 1)
        elif self.fault == "scale":
            weight = 1.2 * weight
        elif self.fault == "other trace":
            score = dist.trace_log_prob(dist.sample_trace((self.samples,), generator=generator))
        return loss, (weight * score).mean(0)


@pytest.mark.parametrize("fault", ["own baseline", "scale", "other trace"])
def test_a_broken_estimator_is_found(fault):
    assert not unbiased(Broken(fault), "tree", 50_000)


@pytest.mark.parametrize(
    "estimator",
    [
        E.NoiseREINFORCE(2),
        E.StructureREINFORCE(2),
        E.REBAR(scale=0.8),
        E.SurrogateREINFORCE(E.LinearSurrogate(), 2, extra=8),
    ],
    ids=lambda e: type(e).__name__,
)
def test_the_check_sees_a_wrong_objective(estimator):
    """Each unbiased estimator, of an objective a little off the one enumerated, fails."""
    dist, f = case("subset")
    if isinstance(estimator, E.REBAR):
        estimator = estimator.double()

    def both(d, _, **kw):
        return estimator(d, lambda x: 1.3 * f(x), **kw)

    assert check_unbiased(both, dist, f, 10_000, generator=seeded(9)).p_value < FALSE_ALARM


@pytest.mark.parametrize("kind", ["through", "no score"])
def test_a_broken_control_variate_is_found(kind):
    """RELAX without one of its terms is biased, and the check says so."""
    dist, f = case("tree")
    critic = critic_for(dist)

    class Wrong(E.RELAX):
        def control(self, d, noise, objective, context):
            control = super().control(d, noise, objective, context)
            if kind == "through":
                return 3.0 * control if self.training else control
            return control

        def _control_and_slope(self, d, noise, objective, context):
            control, slope = super()._control_and_slope(d, noise, objective, context)
            self.calls = getattr(self, "calls", 0) + 1
            if kind == "through" and self.calls % 2 == 0:
                slope = 0.0 * slope  # forgets -∇c(G̃)
            if kind == "no score" and self.calls % 2 == 0:
                control = control + 5.0 * noise.nan_to_num(neginf=0.0).flatten(-2).sum(-1).detach()
            return control, slope

    estimator = Wrong(critic)
    with torch.no_grad():
        critic.out.weight.mul_(20.0)
    assert check_unbiased(estimator, dist, f, 10_000, generator=seeded(9)).p_value < FALSE_ALARM


def test_variance_falls_from_noise_to_trace_to_structure():
    """Second moments: exact for trace and structure, and many standard errors apart for the noise."""
    dist, f = case("tree")
    law, values = gt.diagnostics.enumerate_traces(dist), gt.diagnostics.enumerate_values(dist)

    def second_moment(log_prob_of, outcomes, probabilities):
        total = 0.0
        loss = f(outcomes)
        for i in range(len(probabilities)):
            x = dist.log_rates.detach().requires_grad_()
            (grad,) = torch.autograd.grad(log_prob_of(dist.at(x), i), x)
            total += probabilities[i] * (loss[i] * grad[dist.racing]).square().sum()
        return total

    by_trace = second_moment(lambda d, i: d.trace_log_prob(law.outcomes[i]), law.outcomes.value, law.log_prob.exp())
    by_value = second_moment(lambda d, i: d.log_prob(values.outcomes[i]), values.outcomes, values.log_prob.exp())
    noise = dist.perturb((200_000,), generator=seeded(3))
    loss = f(dist.trace(noise).value)
    score = 1 - (dist.log_rates - noise)[:, dist.racing].exp()  # of a Gumbel
    by_noise = (loss[:, None] * score).square().sum(-1)
    assert by_value <= by_trace
    assert by_trace < by_noise.mean() - 5 * by_noise.std() / len(noise) ** 0.5


ALL = {
    "noise": lambda d: E.NoiseREINFORCE(6),
    "trace": lambda d: E.TraceREINFORCE(6),
    "structure": lambda d: E.StructureREINFORCE(6),
    "relax": lambda d: E.RELAX(critic_for(d), 2),
    "rebar": lambda d: E.REBAR(samples=2).double(),
    "surrogate": lambda d: E.SurrogateREINFORCE(samples=6, extra=4),
    "sst": lambda d: E.StochasticSoftmax(0.5, 2),
    "straight-through": lambda d: E.StraightThrough(0.5, 2),
    "gumbel-rao": lambda d: E.GumbelRao(0.5, 2, draws=3),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_one_call_for_all(name, batch):
    """Value, shape, and gradients to logits, to the objective's parameters and to the estimator's: in one backward."""
    logits = torch.zeros(*batch, 4, 4, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    dist = gt.SpanningTree(logits)
    estimator = ALL[name](dist)
    seen = []

    def f(x):
        seen.append(x.shape)
        return scale * (x.flatten(-2) @ torch.arange(16.0, dtype=x.dtype)).square() + 1.0

    loss = estimator(dist, f, generator=seeded(1))
    assert loss.shape == batch
    loss.mean().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 0
    assert scale.grad is not None
    assert all(p.grad is not None for p in estimator.parameters() if p.requires_grad)
    assert all(shape[1:] == (*batch, 4, 4) for shape in seen)


@pytest.mark.parametrize("name", [n for n in ALL if n != "sst"])
def test_value_is_the_mean_of_the_objective(name):
    dist = gt.SpanningTree(torch.zeros(4, 4, dtype=torch.float64, requires_grad=True))
    losses = []

    def f(x):
        losses.append(x[..., 0, 1].square())
        return losses[-1]

    loss = ALL[name](dist)(dist, f)
    torch.testing.assert_close(loss.detach(), losses[0].mean(0).detach())


@pytest.mark.parametrize("name", ["noise", "trace", "structure", "relax", "surrogate"])
def test_objectives_need_not_be_differentiable(name):
    dist = gt.SpanningTree(torch.zeros(4, 4, dtype=torch.float64, requires_grad=True))
    loss = ALL[name](dist)(dist, lambda x: torch.from_numpy((x.detach().numpy()[..., 0, 1] > 0).astype("float64")))
    loss.backward()
    assert dist.logits.grad.isfinite().all()


def test_gradient_of_the_objective_is_plain_backpropagation():
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    dist = gt.Subset(torch.zeros(5, dtype=torch.float64), 2)
    samples = dist.sample((4,), generator=seeded(2))
    E.TraceREINFORCE(4)(dist, lambda x: scale * x[..., 0], generator=seeded(2)).backward()
    assert scale.grad.item() == pytest.approx(samples[:, 0].mean().item())


@pytest.mark.parametrize("name", ["relax", "rebar"])
def test_training_on_the_variance_lowers_it(name):
    dist, f = case("tree")
    estimator = ALL[name](dist) if name == "relax" else E.REBAR(scale=3.0).double()
    before = gradients(estimator, dist, f, 3000, seeded(5)).var(0).sum()
    optimiser = torch.optim.Adam(estimator.parameters(), 0.02)
    for step in range(150):
        optimiser.zero_grad()
        many = dist.at(dist.log_rates.detach().expand(32, 4, 4))
        estimator(many, f, generator=seeded(100 + step)).mean().backward()
        optimiser.step()
    assert gradients(estimator, dist, f, 3000, seeded(5)).var(0).sum() < 0.9 * before


def test_variance_gradient_is_that_of_the_squared_norm():
    """The estimator's parameters get d/dφ of Σ g², by finite differences at fixed randomness."""
    dist, f = case("subset")
    estimator = E.REBAR(temperature=0.6, scale=0.9).double()
    estimator(dist, f, generator=seeded(4)).backward()

    def norm():
        return gradients(estimator, dist, f, 1, seeded(4)).square().sum()

    for p in estimator.parameters():
        values = []
        for step in (1e-5, -2e-5):
            p.data.add_(step)
            values.append(norm())
        p.data.add_(1e-5)
        up, down = values
        assert p.grad.item() == pytest.approx(((up - down) / 2e-5).item(), rel=1e-4)


def test_control_variate_does_not_leak_into_the_model():
    """The objective's parameters get their gradient from the hard structure alone, whatever REBAR does."""
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    dist = gt.Subset(torch.zeros(5, dtype=torch.float64, requires_grad=True), 2)
    hard = []

    def f(x):
        hard.append(x)
        return scale * x[..., 0].square()

    E.REBAR().double()(dist, f, generator=seeded(2)).backward()
    assert scale.grad.item() == pytest.approx(hard[0][0, 0].item())


def test_surrogate_takes_most_of_the_variance():
    """A quadratic objective and a pairwise surrogate: little is left after a few fits."""
    dist, f = case("tree")
    estimator = E.SurrogateREINFORCE(samples=8, extra=512)
    for step in range(30):
        estimator(dist, f, generator=seeded(step))
    ours = gradients(estimator.eval(), dist, f, 500, seeded(77)).std(0).square().mean().sqrt()
    plain = gradients(E.TraceREINFORCE(8), dist, f, 2000, seeded(78)).std(0).square().mean().sqrt()
    assert ours < 0.5 * plain


def test_gumbel_rao_has_the_mean_of_straight_through():
    dist, f = case("subset")
    rao = gradients(E.GumbelRao(0.7, draws=8), dist, f, 20_000, seeded(1))
    through = gradients(E.StraightThrough(0.7), dist, f, 20_000, seeded(2))
    error = ((rao.var(0) + through.var(0)) / 20_000).sqrt()
    z = (rao.mean(0) - through.mean(0)) / error
    assert (torch.special.erfc(z.abs() / 2**0.5) > FALSE_ALARM).all()
    assert rao.var(0).sum() < through.var(0).sum()


def test_context_reaches_critics_and_surrogates():
    context = torch.randn(3, 2, generator=seeded())
    logits = torch.randn(3, 4, generator=seeded(), requires_grad=True)
    f = lambda x: x[..., 0] * context[:, 0]  # noqa: E731
    E.RELAX(E.VectorCritic(4, context=2))(gt.Subset(logits, 2), f, context).mean().backward()
    E.SurrogateREINFORCE(E.MLPSurrogate(4, context=2), 2, 4)(gt.Subset(logits, 2), f, context).mean().backward()
    matrix = torch.randn(3, 4, 4, generator=seeded(), requires_grad=True)
    E.RELAX(E.MatrixCritic(context=2))(gt.SpanningTree(matrix), lambda x: x[..., 0, 1], context).mean().backward()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d: E.TraceREINFORCE(1, leave_one_out=True), ValueError, "samples >= 2"),
        (lambda d: E.TraceREINFORCE(0), ValueError, "at least 1"),
        (lambda d: E.TraceREINFORCE(2)(d, lambda x: x), ValueError, "one loss for each sample"),
        (lambda d: E.TraceREINFORCE(2)(d, lambda x: x.mean()), ValueError, "one loss for each sample"),
        (lambda d: E.TraceREINFORCE(2)(d, lambda x: 1.0), ValueError, "got float"),
        (
            lambda d: E.StructureREINFORCE(2)(gt.Arborescence(torch.zeros(3, 3)), lambda x: x[..., 0, 1]),
            NotImplementedError,
            "TraceREINFORCE",
        ),
        (
            lambda d: E.StochasticSoftmax()(gt.BinaryTree(torch.zeros(3)), lambda x: x[..., 0]),
            NotImplementedError,
            "BinaryTree has no relaxation",
        ),
        (lambda d: E.REBAR("sinkhorn")(d, lambda x: x[..., 0]), ValueError, "expfamily"),
        (lambda d: E.REBAR()(d, lambda x: (x[..., 0] > 0.5).to(x.dtype)), ValueError, "differentiable"),
        (lambda d: E.StochasticSoftmax(0.0), ValueError, "positive"),
        (
            lambda d: E.StochasticSoftmax()(gt.Permutation(torch.zeros(3)), lambda x: x[..., 0]),
            ValueError,
            "matrix=True",
        ),
        (lambda d: E.SurrogateREINFORCE(extra=1), ValueError, "at least 2"),
    ],
)
def test_bad_use_is_told(call, error, message):
    with pytest.raises(error, match=message):
        call(gt.Subset(torch.zeros(4, requires_grad=True), 2))


def test_exact_gradient_of_a_batch_is_that_of_its_items():
    dist, f = case("tree-ragged")
    value, grad = exact_gradient(dist, f)
    for i, n in enumerate([3, 4]):
        alone = gt.SpanningTree(dist.logits[i, :n, :n])

        def padded(x, i=i, n=n):
            full = torch.nn.functional.pad(x, (0, 4 - n, 0, 4 - n))
            return f(full[..., None, :, :].expand(-1, 2, 4, 4))[:, i]

        own_value, own_grad = exact_gradient(alone, padded)
        torch.testing.assert_close(value[i], own_value)
        torch.testing.assert_close(grad[i, :n, :n], own_grad)
