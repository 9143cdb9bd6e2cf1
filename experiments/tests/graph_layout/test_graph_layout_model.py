"""The networks of graph layout against Neural Relational Inference written out pair by pair, and the fused decoder
against the plain one."""

import copy

import pytest
import torch
from common import seeded
from layout_networks import FRAMES, HIDDEN, ITEMS, SAMPLES, frames, make, soft, trees
from torch import nn
from torch.nn import functional as F

from gumtrace_experiments.graph_layout.decoder import Decoder, FusedDecoder
from gumtrace_experiments.graph_layout.encoder import Encoder

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = pytest.mark.parametrize("n", [5, 10])
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def ordered_pairs(n):
    return [(i, j) for i in range(n) for j in range(n) if i != j]


# --- the literal networks ---


def literal_mlp(mlp, x):
    """On x (B, things, inputs)."""
    x = F.elu(mlp.fc2(F.elu(mlp.fc1(x))))
    norm, usual = mlp.norm, nn.BatchNorm1d(HIDDEN)
    learned = norm.running_mean, norm.running_var, norm.weight, norm.bias
    return F.batch_norm(x.flatten(0, 1), *learned, norm.training, usual.momentum, usual.eps).view_as(x)  # type: ignore


def literal_encoder(model, positions):
    n = positions.shape[2]
    pairs = ordered_pairs(n)
    senders, receivers = [list(x) for x in zip(*pairs, strict=True)]

    def to_pairs(x):
        return torch.cat([x[:, senders], x[:, receivers]], -1)

    x = positions.transpose(1, 2).flatten(2)
    x = literal_mlp(model.mlp1, x)
    skip = literal_mlp(model.mlp2, to_pairs(x))
    x = torch.stack([sum(skip[:, p] for p, (_, j) in enumerate(pairs) if j == node) for node in range(n)], 1) / n
    x = literal_mlp(model.mlp3, x)
    x = literal_mlp(model.mlp4, torch.cat([to_pairs(x), skip], -1))
    numbers = dict(zip(pairs, model.out(x)[..., 0].unbind(1), strict=True))
    zero = torch.zeros_like(positions[:, 0, 0, 0])
    logits = torch.stack([torch.stack([numbers.get((i, j), zero) for j in range(n)], -1) for i in range(n)], -2)
    return (logits + logits.mT) / 2


def literal_step(model, x, structure):
    """Nodes (*B, n, 2) and structures (*B, n, n), or what can be expanded to it."""
    n = x.shape[-2]
    received = [torch.zeros(()) for _ in range(n)]
    for i, j in ordered_pairs(n):
        both = torch.cat([x[..., i, :], x[..., j, :]], -1)
        for weight, fc1, fc2 in zip((1 - structure, structure), model.message1, model.message2, strict=True):
            message = torch.relu(fc2(torch.relu(fc1(both))))
            received[j] = received[j] + weight[..., i, j, None] * message
    hidden = torch.cat([x, torch.stack(received, -2)], -1)
    return x + model.out3(torch.relu(model.out2(torch.relu(model.out1(hidden)))))


def plain(model):
    """The plain decoder, with the parameters themselves of a fused one."""
    made = Decoder(model.nodes, HIDDEN)
    for name, part in model.named_children():
        setattr(made, name, part)
    return made


# --- comparisons ---


def gradients(model, value, *others):
    """Of a random combination of the values, to all parameters and the others."""
    loss = (value * torch.randn(value.shape, dtype=value.dtype, generator=seeded(4))).sum()
    found = torch.autograd.grad(loss, [*model.parameters(), *others])
    assert all(x.abs().max() > 1e-6 for x in found)  # nothing compared is trivially zero
    return found


def assert_equal(ours, theirs):
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, **EXACT)


@SIZES
@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_is_the_literal_one(n, training):
    model = make(Encoder, n).train(training)
    other = copy.deepcopy(model)
    positions = frames(n, ITEMS, FRAMES)
    ours, theirs = model(positions), literal_encoder(other, positions)
    assert_equal([ours], [theirs])
    assert_equal(gradients(model, ours), gradients(other, theirs))
    assert_equal(*([b for b in m.buffers() if b.is_floating_point()] for m in (model, other)))  # running statistics
    start = make(Encoder, n).mlp4.norm.running_var
    assert torch.equal(model.mlp4.norm.running_var, start) == (not training)


@SIZES
@pytest.mark.parametrize("structures", [trees, soft])
def test_the_plain_decoder_is_the_literal_one(n, structures):
    model, structure = make(Decoder, n), structures(n, SAMPLES, ITEMS).requires_grad_()
    positions = frames(n, SAMPLES, ITEMS, FRAMES).requires_grad_()
    ours, theirs = model(positions, structure), literal_step(model, positions, structure[:, :, None])
    assert_equal([ours], [theirs])
    assert_equal(gradients(model, ours, positions, structure), gradients(model, theirs, positions, structure))
    twice = model.unroll(positions[:, :, 0], structure, 2)
    assert_equal([twice[:, :, 0]], [ours[:, :, 0]])
    assert_equal([twice[:, :, 1]], [literal_step(model, twice[:, :, 0], structure)])


@SIZES
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_the_fused_decoder_is_the_plain_one(n, hard, shared):
    model = make(FusedDecoder, n)
    structure = (trees if hard else soft)(n, SAMPLES, ITEMS)
    own = frames(n, SAMPLES, ITEMS, FRAMES)
    positions = own[0] if shared else own
    ours = model(positions, structure, hard=hard)
    theirs = plain(model)(positions, structure)
    assert_equal([ours], [theirs])
    assert_equal(gradients(model, ours), gradients(model, theirs))


@SIZES
@pytest.mark.parametrize("hard", [True, False])
def test_the_unrolled_fused_decoder_is_the_plain_one(n, hard):
    model = make(FusedDecoder, n)
    structure = (trees if hard else soft)(n, SAMPLES, ITEMS)
    first = frames(n, ITEMS).requires_grad_()
    ours = model.unroll(first, structure, 3, hard=hard)
    theirs = plain(model).unroll(first, structure, 3)
    assert ours.shape == (SAMPLES, ITEMS, 3, n, 2)
    assert_equal([ours], [theirs])
    assert_equal(gradients(model, ours, first), gradients(model, theirs, first))


@SIZES
def test_gradients_reach_soft_structures(n):
    model = make(FusedDecoder, n)
    structure = soft(n, SAMPLES, ITEMS).requires_grad_()
    positions = frames(n, SAMPLES, ITEMS, FRAMES)
    for ours, theirs in (
        (model(positions, structure, hard=False), plain(model)(positions, structure)),
        (
            model(positions[0], structure, hard=False),
            plain(model)(positions[0], structure),
        ),
        (
            model.unroll(positions[0, :, 0], structure, 2, hard=False),
            plain(model).unroll(positions[0, :, 0], structure, 2),
        ),
    ):
        assert_equal(gradients(model, ours, structure), gradients(model, theirs, structure))


@SIZES
def test_both_ways_agree_on_trees(n):
    model = make(FusedDecoder, n)
    structure, positions = trees(n, 7, 20), frames(n, 20, FRAMES)
    for run in (
        lambda hard: model(positions, structure, hard=hard),
        lambda hard: model.unroll(positions[:, 0], structure, 3, hard=hard),
    ):
        assert_equal([run(True)], [run(False)])
        assert_equal(gradients(model, run(True)), gradients(model, run(False)))


@pytest.mark.parametrize("hard", [True, False])
def test_shapes_of_samples_and_batches(hard):
    """Leading dimensions that positions lack are samples; one by one gives the same."""
    n, model = 5, make(FusedDecoder, 5)
    structure, positions = trees(n, 2, 3, 4), frames(n, 3, 4, FRAMES)
    together = model(positions, structure, hard=hard)
    unrolled = model.unroll(positions[..., 0, :, :], structure, 2, hard=hard)
    for index in [(0, 0, 0), (1, 2, 3), (0, 2, 1)]:
        alone = model(positions[index[1:]], structure[index], hard=hard)
        assert_equal([together[index]], [alone])
        assert_equal([unrolled[index]], [model.unroll(positions[index[1:]][0], structure[index], 2, hard=hard)])
    assert_equal([unrolled[..., 0, :, :]], [together[..., 0, :, :]])


@pytest.mark.parametrize("training", [True, False])
def test_logits_are_symmetric_and_follow_the_names_of_nodes(training):
    n, model = 10, make(Encoder, 10).train(training)
    positions = frames(n, ITEMS, FRAMES)
    order = torch.randperm(n, generator=seeded(5))
    logits = model(positions)
    assert torch.equal(logits, logits.mT)
    assert not logits.diagonal(dim1=1, dim2=2).any()
    assert_equal([model(positions[:, :, order])], [logits[:, order][:, :, order]])


@pytest.mark.parametrize("hard", [True, False])
def test_predictions_follow_the_names_of_nodes(hard):
    n, model = 10, make(FusedDecoder, 10)
    structure, positions = (trees if hard else soft)(n, SAMPLES, ITEMS), frames(n, ITEMS, FRAMES)
    order = torch.randperm(n, generator=seeded(5))
    renamed = structure[..., order, :][..., order]
    moved = model(positions, structure, hard=hard)
    assert_equal([model(positions[:, :, order], renamed, hard=hard)], [moved[..., order, :]])


def test_a_channel_that_was_constant_in_training_does_not_explode():
    """For a graph that differs in it: with a variance of 1e-30 it would be 100 times as far from the mean."""
    norm = make(Encoder, 5).eval().requires_grad_(False).mlp3.norm
    norm.running_var[0], norm.running_mean[0], norm.weight[0], norm.bias[0] = 1e-30, 0.0, 1.0, 0.0
    norm.running_var[1:] = 1e4 * HIDDEN / (HIDDEN - 1)  # so that the mean is 1e4
    x = torch.zeros(1, HIDDEN, dtype=torch.float64)
    x[0, 0] = 3.0
    assert norm(x)[0, 0].item() == pytest.approx(3 / (1e4 * 1e-5 + 1e-5) ** 0.5)
    assert norm(0 * x)[0, 0] == 0  # as it was in training


def test_initialisation():
    torch.manual_seed(0)
    encoder, decoder = Encoder(10), FusedDecoder()
    for layer in (m for m in encoder.modules() if isinstance(m, nn.Linear)):
        outputs, inputs = layer.weight.shape
        want = (2 / (inputs + outputs)) ** 0.5
        assert layer.weight.std().item() == pytest.approx(want, rel=4 / layer.weight.numel() ** 0.5)
        assert (layer.bias == 0.1).all()
    for layer in (m for m in decoder.modules() if isinstance(m, nn.Linear)):
        bound = layer.in_features**-0.5
        assert 0.9 * bound < layer.weight.abs().max().item() <= bound
    assert not {"ends", "receivers"} & {*encoder.state_dict(), *decoder.state_dict()}  # constants are not learned
