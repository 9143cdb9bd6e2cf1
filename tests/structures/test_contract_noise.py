"""What every structure promises of noise: which keys have any, gradients, dtypes, and who draws it."""

import pytest
import torch
from cases import every, generator
from contract import assert_same, built, everything, grad_of

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


# Dtypes -----------------------------------------------------------------------------------------------


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


# Generators -------------------------------------------------------------------------------------------


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
