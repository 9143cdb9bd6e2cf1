"""Small networks of ListOps, and the same written out edge by edge and step by step."""

import itertools

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace_experiments.listops.expressions import CLOSE
from gumtrace_experiments.listops.model import Classifier, Critic, Encoder

EXACT = {"rtol": 1e-10, "atol": 1e-10}
HIDDEN, ITEMS, SAMPLES, ROUNDS, N = 10, 3, 2, 3, 7
LENGTHS = torch.tensor([7, 4, 2])
BOTH_WAYS = pytest.mark.parametrize("hard", [True, False])


def make(network, dtype=torch.float64, dropout=0.1):
    torch.manual_seed(0)
    sizes = {Encoder: (HIDDEN, dropout), Classifier: (HIDDEN, ROUNDS, dropout), Critic: (N, HIDDEN, dropout)}
    model = network(*sizes[network]).to(dtype).eval()
    with torch.no_grad():
        for p in (p for name, p in model.named_parameters() if "norm" in name):
            p.add_(0.3 * torch.randn_like(p))  # or else a scale of 1 and a bias of 0 are not seen
    return model


def tokens(n=N, batch=ITEMS):
    """Padding holds tokens like all the others: nobody may look at it."""
    return torch.randint(1, CLOSE + 4, (batch, n), generator=seeded(1))


def trees(*samples, dtype=torch.float64):
    dist = gt.Arborescence(torch.zeros(ITEMS, N, N, dtype=dtype), lengths=LENGTHS)
    return dist.sample(samples, generator=seeded(2))


def soft(*samples):
    """Any numbers, between tokens that are no padding."""
    inside = torch.arange(N) < LENGTHS[:, None]
    weights = torch.rand(*samples, ITEMS, N, N, dtype=torch.float64, generator=seeded(3))
    return weights * (inside[:, :, None] & inside[:, None, :])


def gradients(model, value, *others):
    """Of a random combination of the values, to all parameters that matter and to the others."""
    loss = (value * torch.randn(value.shape, dtype=value.dtype, generator=seeded(4))).sum()
    found = torch.autograd.grad(loss, [*model.parameters(), *others], materialize_grads=True, allow_unused=True)
    assert all(x.isfinite().all() for x in found)
    return found


def assert_equal(ours, theirs):
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, **EXACT)


def literal_classifier(model, tokens, structure, masks=None):
    """Tokens (B, n) and structures (S, B, n, n), one by one."""
    items = range(len(tokens))
    kept = [(masks.messages[:, b], masks.out[b]) if masks else (None, None) for b in items]
    samples = [[literal_item(model, tokens[b], sample[b], *kept[b]) for b in items] for sample in structure]
    return torch.stack([torch.stack(sample) for sample in samples])


def literal_item(model, tokens, x, kept=None, kept_last=None):
    own = [model.embedding.weight[token] for token in tokens]
    state = [model.norm(e) for e in own]
    for k in range(model.rounds):
        received = [torch.zeros(HIDDEN, dtype=x.dtype) for _ in own]
        for i, j in itertools.product(range(len(own)), repeat=2):
            keep = None if kept is None else kept[k, j]
            received[i] = received[i] + x[i, j] * literal_message(model, own[i], state[j], keep)
        state = [model.norm(e + r) for e, r in zip(own, received, strict=True)]
    return model.out2(literal_dropout(model, torch.relu(model.out1(state[0])), kept_last))


def literal_message(model, receiver, sender, keep=None):
    hidden = literal_dropout(model, torch.relu(model.message1(torch.cat([receiver, sender]))), keep)
    return torch.relu(model.message2(hidden))


def literal_dropout(model, x, keep):
    return x if keep is None else x * keep / (1 - model.dropout)


def literal_lstm(lstm, x):
    """Outputs (n, hidden) for inputs (n, hidden)."""
    h = c = torch.zeros(HIDDEN, dtype=x.dtype)
    outputs = []
    for step in x:
        gates = lstm.weight_ih_l0 @ step + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ h + lstm.bias_hh_l0
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs)
