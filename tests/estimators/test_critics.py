"""Critics of RELAX: what they see, and what must make no difference to them."""

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace import estimators as E

ORDER = torch.tensor([2, 0, 3, 1])


def control(critic, dist, noise):
    """What RELAX makes of the noise."""
    return E.RELAX(critic, samples=len(noise)).control(dist, noise, None, None)


def permuted(dist, noise):
    """The same graphs with their nodes in another order: a tree keeps its noise above the diagonal."""
    if isinstance(dist, gt.SpanningTree):
        whole = torch.where(dist.racing, noise, 0.0)
        noise = (whole + whole.mT)[..., ORDER, :][..., ORDER]
        return dist, torch.where(dist.racing, noise, -torch.inf)
    return gt.Arborescence(torch.zeros(4, 4), root=ORDER.tolist().index(0)), noise[..., ORDER, :][..., ORDER]


@pytest.mark.parametrize("structure", [gt.SpanningTree, gt.Arborescence])
def test_the_order_of_nodes_is_nothing_to_a_matrix_critic(structure):
    dist = structure(torch.zeros(4, 4))
    noise = dist.perturb((5,), generator=seeded(1))
    torch.manual_seed(0)
    for critic, same in ((E.MatrixCritic(), True), (E.MatrixCritic(size=4), False)):
        gap = control(critic, dist, noise) - control(critic, *permuted(dist, noise))
        assert (gap.abs().max() < 1e-6) == same


@pytest.mark.parametrize("structure", [gt.SpanningTree, gt.Arborescence, gt.Matching])
def test_padding_is_nothing_to_a_matrix_critic(structure):
    torch.manual_seed(0)
    critic = E.MatrixCritic()
    noise = structure(torch.zeros(3, 3)).perturb((5,), generator=seeded(1))
    alone = control(critic, structure(torch.zeros(3, 3)), noise)
    padded = torch.nn.functional.pad(noise, (0, 2, 0, 2), value=7.0)
    ragged = structure(torch.zeros(5, 5), lengths=torch.tensor(3))
    torch.testing.assert_close(control(critic, ragged, padded), alone)
    assert alone.std() > 1e-4


def test_critics_compute_in_their_own_dtype():
    for critic, dist in (
        (E.VectorCritic(4, context=2), gt.Subset(torch.zeros(4, dtype=torch.float64, requires_grad=True), 2)),
        (E.MatrixCritic(context=2), gt.Matching(torch.zeros(2, 3, dtype=torch.float64, requires_grad=True))),
        (E.MatrixCritic(size=(2, 3)), gt.Matching(torch.zeros(2, 3, dtype=torch.float64, requires_grad=True))),
    ):
        context = None if getattr(critic, "rows", None) is not None else torch.ones(2, dtype=torch.float64)
        E.RELAX(critic)(dist, lambda x: x.flatten(1).cumsum(-1).sum(-1), context).backward()
        assert dist.logits.grad.dtype == torch.float64
        assert all(p.grad.isfinite().all() for p in critic.parameters())


@pytest.mark.slow
def test_a_critic_that_knows_nodes_by_name_learns_of_one_edge():
    """Which of all edges is in the tree: nothing to a critic that treats them alike."""
    dist = gt.SpanningTree(torch.zeros(4, 4))
    noise = dist.perturb((256,), generator=seeded(1))
    wanted = torch.where(dist.racing, noise, 0.0)[:, 0, 1]
    wanted = wanted - torch.where(dist.racing, noise, 0.0)[:, 2, 3]
    left = []
    for size in (None, 4):
        torch.manual_seed(0)
        critic = E.MatrixCritic(size=size)
        optimiser = torch.optim.Adam(critic.parameters(), 0.02)
        for _ in range(150):
            error = (control(critic, dist, noise) - wanted).square().mean()
            optimiser.zero_grad()
            error.backward()
            optimiser.step()
        left.append(error.item() / wanted.var().item())
    assert left[0] > 0.5
    assert left[1] < 0.2


@pytest.mark.parametrize(
    ("critic", "context"),
    [(E.VectorCritic(8), 5), (E.VectorCritic(8, context=5), 0), (E.MatrixCritic(), 2), (E.MatrixCritic(context=3), 2)],
)
def test_a_context_of_another_size_is_named(critic, context):
    given = torch.zeros(2, context) if context else None
    with pytest.raises(ValueError, match=rf"{type(critic).__name__}: made for \d features .* got {context}$"):
        critic(torch.zeros(2, 8) if isinstance(critic, E.VectorCritic) else torch.zeros(2, 3, 3), given)


SUBSETS, TREE = gt.Subset(torch.zeros(3, 4), 2), gt.SpanningTree(torch.zeros(4, 4))


@pytest.mark.parametrize(
    ("critic", "dist", "message"),
    [
        (
            E.VectorCritic(7),
            SUBSETS,
            r"VectorCritic: made for 7 keys, got noise of shape \(8, 3, 4\); pad all .* MatrixCritic takes n x m",
        ),
        (E.VectorCritic(7, context=2), TREE, r"VectorCritic: made for 7 keys, got noise of shape \(8, 4, 4\)"),
        (E.VectorCritic(4), TREE, r"must return shape \(8,\), got \(8, 4\), for noise of shape \(8, 4, 4\); Vector"),
        (E.MatrixCritic(), SUBSETS, r"must return shape \(8, 3\), got \(8,\), for noise of shape \(8, 3, 4\); Vector"),
        (
            E.MatrixCritic(size=(5, 2)),
            SUBSETS,
            r"MatrixCritic: made for 5 x 2 keys, got noise of shape \(8, 3, 4\); VectorCritic takes n",
        ),
    ],
)
def test_noise_of_another_size_is_named(critic, dist, message):
    f = lambda x: x.flatten(1 + len(dist.batch_shape)).sum(-1)  # noqa: E731
    with pytest.raises(ValueError, match=message):
        E.RELAX(critic)(dist, f)


def test_a_matrix_critic_needs_a_matrix():
    with pytest.raises(ValueError, match=r"MatrixCritic: made for n x m keys, got noise of shape \(4,\); VectorCritic"):
        E.MatrixCritic()(torch.zeros(4))
