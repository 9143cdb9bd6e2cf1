"""The critic of ListOps against its formula; RELAX teaches all of it and differentiates its LSTM once."""

import copy

import pytest
import torch
from common import seeded
from listops_networks import ITEMS, LENGTHS, SAMPLES, N, assert_equal, literal_lstm, make, tokens, trees
from torch.autograd.function import once_differentiable

import gumtrace as gt
from gumtrace_experiments.listops.model import Critic

pytestmark = pytest.mark.usefixtures("one_thread")


def relax(critic, dtype=torch.float64):
    """Gradients of a call of RELAX to the critic's parameters, by name."""
    estimator = gt.estimators.RELAX(critic, samples=1)  # a baseline would hide the constant of the critic
    logits = torch.randn(ITEMS, N, N, dtype=dtype, generator=seeded(6)).requires_grad_()
    dist = gt.Arborescence(logits, lengths=LENGTHS)
    context = critic.read(tokens(), LENGTHS, seeded(7))
    loss = estimator(dist, lambda x: x[..., 0, :].sum(-1), context, generator=seeded(8))
    loss.mean().backward()
    assert logits.grad.isfinite().all()
    return {name: p.grad for name, p in critic.named_parameters()}


def test_the_critic_is_the_literal_one():
    critic = make(Critic)
    dist = gt.Arborescence(torch.zeros(ITEMS, N, N, dtype=torch.float64), lengths=LENGTHS)
    noise = torch.where(dist.racing, dist.perturb((SAMPLES,), generator=seeded()), 0.0)
    found = critic(noise, critic.read(tokens(), LENGTHS))
    assert found.shape == (SAMPLES, ITEMS)
    for b in range(ITEMS):
        last = literal_lstm(critic.lstm, critic.embedding.weight[tokens()[b, : LENGTHS[b]]])[-1]
        edges = [(i, j) for i in range(LENGTHS[b]) for j in range(1, LENGTHS[b]) if i != j]
        for s in range(SAMPLES):
            own = torch.stack([noise[s, b, i, j] for i, j in edges])
            seen = torch.zeros(N, N, dtype=torch.float64)
            for (i, j), x in zip(edges, (own - own.mean()) / (own.var(correction=0) + 1e-5).sqrt(), strict=True):
                seen[i, j] = x
            hidden = torch.tanh(critic.hidden(torch.cat([last, seen.flatten()])))
            assert_equal([found[s, b]], [critic.out(hidden)[0]])


def test_the_critic_is_smooth_in_the_noise():
    critic = make(Critic)
    noise = trees(1) * 0 + torch.randn(1, ITEMS, N, N, dtype=torch.float64, generator=seeded(9))
    context = critic.read(tokens(), LENGTHS)

    def call(x):
        return critic(x, context.detach())

    assert torch.autograd.gradcheck(call, noise.requires_grad_())
    assert torch.autograd.gradgradcheck(call, noise)


def test_relax_teaches_all_of_the_critic():
    found = relax(make(Critic).train())
    assert all(g.isfinite().all() and g.any() for g in found.values())


class OnceOnly(torch.autograd.Function):
    """What it is applied to can be differentiated, but not twice, as an LSTM of cuDNN."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad


def test_relax_differentiates_the_lstm_once():
    critic = make(Critic)
    expected = relax(copy.deepcopy(critic))
    critic.lstm.register_forward_hook(lambda module, inputs, outputs: (OnceOnly.apply(outputs[0]), None))
    assert relax(critic).keys() == expected.keys()
    for name, g in relax(copy.deepcopy(critic)).items():
        assert_equal([g], [expected[name]])
    context = critic.read(tokens(), LENGTHS)
    (slope,) = torch.autograd.grad(context.square().sum(), critic.embedding.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):  # so it would be noticed
        slope.sum().backward()
