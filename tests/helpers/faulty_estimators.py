"""Deliberately wrong copies of the unbiased estimators: the test of the test. Without a fault each is the original."""

import torch

from gumtrace import estimators as E
from gumtrace.estimators.base import advantage
from gumtrace.estimators.unordered import first_two
from gumtrace.structures.base import Structure


class Faulty:
    def __init__(self, *, fault, **settings):
        super().__init__(**settings)
        self.fault = fault

    def weigh(self, loss):
        """Losses less a baseline."""
        if self.fault == "own baseline":
            return loss - loss.mean(0)  # K / (K - 1) is missing
        return advantage(loss, self.samples > 1)


class FaultyScore(Faulty):
    def surrogate_loss(self, dist, objective, context, generator):
        value, score = self.draw(dist, generator)
        loss = self.evaluate(dist, objective, value)
        scale = 1.2 if self.fault == "scale" else 1.0
        return loss, scale * (self.weigh(loss.detach()) * score).mean(0)


class FaultyNoise(FaultyScore, E.NoiseREINFORCE):
    def draw(self, dist, generator):
        noise = dist.perturb((self.samples,), generator=generator)
        value = dist.trace(noise).value
        if self.fault == "other noise":
            noise = dist.perturb((self.samples,), generator=generator)
        if self.fault != "not detached":  # the logits cancel in G - logits
            noise = noise.detach()
        return value, dist.noise_log_prob(noise)


class FaultyTrace(FaultyScore, E.TraceREINFORCE):
    def draw(self, dist, generator):
        trace = dist.sample_trace((self.samples,), generator=generator)
        other = dist.sample_trace((self.samples,), generator=generator) if self.fault == "other trace" else trace
        return trace.value, dist.trace_log_prob(other)


class FaultyStructure(FaultyScore, E.StructureREINFORCE):
    """Of subsets."""

    def draw(self, dist, generator):
        value = dist.sample((self.samples,), generator=generator)
        if self.fault == "one order":  # the set's keys as if they had been chosen in order of index
            in_order = dist.trace(100 * value - torch.arange(value.shape[-1]))
            return value, dist.trace_log_prob(in_order)
        other = dist.sample((self.samples,), generator=generator) if self.fault == "other structure" else value
        return value, dist.log_prob(other)


class FaultyUnordered(Faulty, E.UnorderedREINFORCE):
    def estimate(self, dist, objective, context, generator):
        drawn = dist.distinct_traces(self.samples, generator=generator)
        loss = self.evaluate(dist, objective, drawn.traces)
        first, second, others = first_two(drawn.log_prob, drawn.log_rest[-1], drawn.found)
        if self.fault == "equal weights":  # as if draws were independent
            first = torch.full_like(first, 1 / self.samples)
        if self.fault == "own probabilities":  # normalised over the set
            first = drawn.log_prob.softmax(0)
        if self.fault == "own baseline":
            second = first.expand_as(second)
        if self.fault == "no rest":  # 1 - p is missing
            others = torch.ones_like(others)
        score = loss.detach()
        score = others * (score - (second * score).sum(1))
        surrogate = (first * score * dist.trace_log_prob(drawn.traces)).sum(0)
        return (first * loss).sum(0) + (surrogate - surrogate.detach())


class FaultyControl(Faulty):
    def _estimate(self, dist, objective, context, generator, differentiable):
        x = dist.log_rates.detach().requires_grad_()
        dist = dist.with_log_rates(x)
        noise = dist.perturb((self.samples,), generator=generator)
        trace = dist.trace(noise)
        other = dist.sample_trace((self.samples,), generator=generator) if self.fault == "other trace" else trace
        again = dist.conditional(other, generator=generator)
        loss = self.evaluate(dist, objective, trace.value)
        both = torch.cat([noise, again]).detach().requires_grad_()
        control, slopes = self._control_and_slope(dist, both, objective, context)
        slope, slope_again = slopes.chunk(2)
        score = self.weigh(loss.detach() - control) * dist.trace_log_prob(trace)
        terms = self.through_noise(inner(slope, noise), -inner(slope_again, again), -inner(slope_again, x))
        (grad,) = torch.autograd.grad((score.sum() + terms) / self.samples, x, create_graph=differentiable)
        return loss, grad, grad.square().sum()

    def through_noise(self, of_noise, of_again, of_again_shifted):
        """∇c(G) - ∇c(G̃)."""
        if self.fault == "no conditional noise":
            return of_noise
        if self.fault == "no noise":
            return -of_again
        if self.fault == "shift":  # G̃ moves with the logits as G does, not as its own law says
            return of_noise - of_again_shifted
        if self.fault == "scale in the weight only":
            return (of_noise - of_again) / self.scale
        return of_noise - of_again


class FaultyREBAR(FaultyControl, E.REBAR):
    pass


class FaultyRELAX(FaultyControl, E.RELAX):
    pass


class FaultySurrogate(Faulty, E.SurrogateREINFORCE):
    """Of subsets: the value is what the surrogate sees."""

    def surrogate_loss(self, dist, objective, context, generator):
        trace = dist.sample_trace((self.samples,), generator=generator)
        value = trace.value
        loss = self.evaluate(dist, objective, value)
        more = dist.sample_trace((self.extra,), generator=generator)
        if self.fault == "fits first":  # c then knows this iteration's draws
            self.surrogate.fit(value, loss.detach())
        with torch.no_grad():
            left = loss - self.surrogate(value)
            cheap = self.surrogate(more.value)
        evaluated = (self.weigh(left) * dist.trace_log_prob(trace)).mean(0)
        unevaluated = (self.weigh_extra(cheap) * dist.trace_log_prob(more)).mean(0)
        if self.training and self.fault != "fits first":
            self.surrogate.fit(value, loss.detach())
        return loss, evaluated + unevaluated

    def weigh_extra(self, cheap):
        if self.fault == "no extra term":
            return torch.zeros_like(cheap)
        if self.fault == "sign of the extra term":
            return -advantage(cheap, True)
        if self.fault == "own baseline of the extra term":
            return cheap - cheap.mean(0)
        return advantage(cheap, True)


class FaultyDecision(Faulty, E.DecisionREINFORCE):
    def _credit(self, dist, trace, terms, expected=None):
        if self.fault == "own baseline":
            return super()._credit(dist, trace, terms, expected) * (self.samples - 1) / self.samples
        if self.fault == "terms before it":  # in place of those after it
            return advantage(terms.cumsum(-1), True)
        if self.fault == "no term of its own":
            return advantage(dist.loss_to_go(trace, terms) - terms, True)
        if self.fault == "own term twice":
            return advantage(dist.loss_to_go(trace, terms), True)
        if self.fault == "order of a chain":
            return advantage(Structure.loss_to_go(dist, trace, terms), True)
        if self.fault == "baseline that knows the winner":
            centred = advantage(terms, True)
            return dist.loss_to_go(trace, centred) - (0 if expected is None else centred)
        return super()._credit(dist, trace, terms, expected)


class EachItsOwn(torch.nn.Module):
    """A linear surrogate for each item of a batch, so that replicates learn from their own draws alone."""

    def __init__(self):
        super().__init__()
        self.gram = self.moment = 0.0
        self.weight = None

    def forward(self, x, context=None):
        x = with_one(x)
        return x.new_zeros(x.shape[:-1]) if self.weight is None else (x * self.weight).sum(-1)

    @torch.no_grad()
    def fit(self, x, loss, context=None, generator=None):
        x = with_one(x)  # (samples, *batch, features)
        self.gram = self.gram + torch.einsum("s...i,s...j->...ij", x, x)
        self.moment = self.moment + (x * loss[..., None]).sum(0)
        ridge = 0.1 * torch.eye(x.shape[-1], dtype=x.dtype)
        self.weight = torch.linalg.solve(self.gram + ridge, self.moment)


def with_one(x):
    return torch.cat([torch.ones_like(x[..., :1]), x], -1)


def inner(slope, noise):
    return (slope * torch.where(noise.isneginf(), 0.0, noise)).sum()
