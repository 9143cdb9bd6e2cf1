"""RELAX's critic: both directions, padding, second derivatives."""

import pytest
import torch
from common import seeded
from torch import nn

from gumtrace_experiments.parentheses.critic import LSTMCritic
from gumtrace_experiments.parentheses.data import Split

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTHS = torch.tensor([6, 4, 2])
BATCH = Split(torch.tensor([[0, 2, 3, 1, 4, 5], [4, 5, 0, 1, 0, 0], [2, 3, 0, 0, 0, 0]]), LENGTHS)


def made():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LSTMCritic(types=3, hidden=5).double()


def noise(*sample):
    return torch.randn(*sample, 3, 6, generator=seeded(), dtype=torch.float64) * BATCH.racing


def test_it_is_a_bidirectional_lstm_on_tokens_and_noise():
    critic = made()
    lstm = _same_in_torch(critic)
    values = noise(2)
    found = critic(values, critic.read(BATCH))
    for s in range(2):
        for b, length in enumerate(LENGTHS.tolist()):
            row = values[s, b, :length]
            row = (row - row.mean()) / (row.var(correction=0) + 1e-5).sqrt()
            words = critic.embedding[BATCH.tokens[b, :length]]
            states = lstm(torch.cat([words, row[:, None]], -1)[None])[0][0]
            torch.testing.assert_close(found[s, b], (states @ critic.out.flatten()).sum())


def _same_in_torch(critic):
    lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=True).double()
    weights = {}
    for d, name in enumerate(("l0", "l0_reverse")):
        weights[f"weight_ih_{name}"] = _torch_order(critic.input[d].mT)
        weights[f"weight_hh_{name}"] = _torch_order(critic.carry[d].mT)
        weights[f"bias_ih_{name}"] = _torch_order(critic.bias[d, 0])
        weights[f"bias_hh_{name}"] = torch.zeros(20)
    lstm.load_state_dict(weights)
    return lstm


def _torch_order(gates):
    """Ours are input, forget, output and new; torch's are input, forget, new and output."""
    add, keep, show, new = gates.detach().chunk(4, 0)
    return torch.cat([add, keep, new, show])


def test_padding_changes_nothing():
    critic = made()
    wide = Split(torch.cat([BATCH.tokens, torch.full((3, 2), 3)], 1), LENGTHS)
    more = torch.cat([noise(), torch.zeros(3, 2, dtype=torch.float64)], 1).requires_grad_()
    found = critic(more, critic.read(wide))
    torch.testing.assert_close(found, critic(noise(), critic.read(BATCH)))
    (slope,) = torch.autograd.grad(found.sum(), more)
    assert slope[wide.racing].all()


def test_it_can_be_differentiated_twice():
    critic = made()
    context = critic.read(BATCH)
    assert torch.autograd.gradgradcheck(lambda x: critic(x, context), noise().requires_grad_())


def test_it_depends_on_differences_alone():
    """Orders do not depend on what is added to all noise."""
    critic, values = made(), noise(2)
    context = critic.read(BATCH)
    torch.testing.assert_close(critic(values, context), critic((values + 3) * BATCH.racing, context))
    assert not torch.allclose(critic(values, context), critic(values.roll(1, 0), context))
