"""The fuzzer's oracles: by hand, against each other, and the formula by enumeration and by differences."""

from collections import Counter

import numpy as np
import pytest
import torch

from gumtrace.fuzz import checks, drawing, formula, laws, oracles
from gumtrace.fuzz.algorithms import Gaps, Scramble
from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.recursions import edmonds, every_run, interpret
from gumtrace.fuzz.structures import STRUCTURES, written_out
from gumtrace.fuzz.subject import Subject
from gumtrace.fuzz.times import Times
from gumtrace.fuzz.values import every_outcome

every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def rng(*seed):
    return np.random.default_rng(seed)


def small(structure, seed=0):
    return drawing.draw_small(structure, rng(seed))


def test_greedy_by_hand():
    """Ties go to the smaller key; keys that do not race are passed over."""
    noise = np.array([[1.0, 3.0, 3.0, 9.0, -0.0, 0.0]])
    racing = np.array([[True, True, True, False, True, True]])
    winners, members = oracles.greedy(noise, racing, np.array([5]), oracles.winner_leaves)
    assert winners.tolist() == [[1, 2, 0, 4, 5]]
    assert members[0].sum(-1).tolist() == [5, 4, 3, 2, 1]


def test_matching_by_hand():
    """8 is the largest; it crosses out 7 and 5, and 2 is left, of the two that are equal the first."""
    noise = np.array([[8.0, 7.0, 1.0, 5.0, 2.0, 2.0]])
    winners, members = oracles.greedy(noise, noise > 0, np.array([2]), oracles.row_and_column_leave(3))
    assert winners.tolist() == [[0, 4]]
    assert np.flatnonzero(members[0, 1]).tolist() == [4, 5]


def test_kruskal_by_hand():
    """A square with a diagonal: the third edge of the triangle 0 1 2 leaves when the other two are in."""
    ends = np.array([[0, 1, 0, 2, 3], [1, 2, 2, 3, 0]])
    noise = np.array([[5.0, 4.0, 3.0, 1.0, 2.0]])
    winners, members = oracles.greedy(noise, noise > 0, np.array([3]), oracles.edges_inside_leave(ends, 4))
    assert winners.tolist() == [[0, 1, 4]]
    assert np.flatnonzero(members[0, 2]).tolist() == [3, 4]


def test_binary_tree_by_hand():
    winners, members, parents = oracles.cartesian(
        np.array([[1.0, 5.0, 0.0, 5.0, 2.0]]), np.array([[True, True, False, True, True]])
    )
    assert parents.tolist() == [[1, -1, -2, 1, 3]]
    assert winners.tolist() == [[0, 1, -1, 3, 4]]
    assert np.flatnonzero(members[0, 1]).tolist() == [0, 1, 3, 4]


def test_edmonds_by_hand():
    """1 and 2 prefer each other, so they become one node; E into it, less what each node has spent: 0 -> 1 has
    4 - 1 = 3 left, 0 -> 2 has 9 - 2 = 7. So 0 -> 1 enters, and 1 -> 2 stays."""
    e = {(0, 1): 4.0, (2, 1): 1.0, (0, 2): 9.0, (1, 2): 2.0}
    noise = [-np.inf] * 9
    for (u, v), time in e.items():
        noise[3 * u + v] = -np.log(time)
    keys = [3 * u + v for u, v in e]
    result = edmonds(keys, 3, 3, 0, Times(noise, keys).choose)
    assert sorted(winner for winner, _ in result.decisions) == [1, 5, 7]  # at 1 and 2, then at both together
    assert set(result.value.values()) == {1, 5}


@pytest.mark.parametrize(
    "structure", ["subset", "permutation", "matching", "spanning-tree", "sparse-tree", "binary-tree"]
)
def test_oracles_agree(structure):
    """Arrays over items, and sets in plain Python, with many ties."""
    for seed in range(8):
        case = small(structure, seed)
        noise = rng(seed).integers(-2, 3, (20, *case.logits.shape)).astype(float)
        case = case.change(noise=torch.from_numpy(noise))
        fast = case.kind.outcome(case, np.where(case.racing, noise.reshape(20, -1), -np.inf))
        keys = np.flatnonzero(case.racing[0]).tolist()
        runs = [case.kind.play(case, 0)(Times(g, keys).choose) for g in noise.reshape(20, -1).tolist()]
        winners, members = written_out(runs, case.racing.shape[1])
        assert np.array_equal(winners, fast.winners)
        assert np.array_equal(members, fast.members)
        assert np.array_equal(case.kind.values(case, 0, winners, runs), fast.value)


def test_rounding_is_known_for_what_it_is():
    """Equal times are no matter of rounding, even after equal subtractions; nearly equal differences are."""
    exact = Times([3.0, 1.0, 1.0, 0.0], range(4))
    assert [exact.choose(members) for members in ([0, 1, 2, 3], [1, 2, 3], [2, 3])] == [0, 1, 2]
    assert not exact.unsure
    third = -np.log1p(np.exp(-2.0))  # e^-third = 1 + e^-2: less 1 it is e^-2
    close = Times([0.0, third, 2.0, 3.0], range(4))
    close.choose([0, 1])
    close.choose([1, 2])
    assert close.unsure


def test_what_rounding_alone_has_left_may_be_less_than_anything():
    """Nothing but the last bits are left of key 1, and key 2 is tiny: rounded otherwise, key 1 is first."""
    times = Times([0.0, -30 * np.spacing(1.0), 150.0], range(3), {(1, 2): 1})
    assert times.choose([0, 1]) == 0
    assert times.choose([1, 2]) == 1
    assert times.unsure


def test_what_little_was_taken_off_is_left_in_the_end():
    """1 - (1 - e^-447) is e^-447: more than e^-639, though 1 - e^-447 is 1 in float64."""
    times = Times([0.0, -0.0, 447.0, 1110.0, 639.0, -1031.0], range(6), {(0, 1): 1})
    assert times.choose([1, 2]) == 2
    assert times.choose([0, 3]) == 3
    assert times.choose([0, 1]) == 1
    assert times.choose([0, 4, 5]) == 4


@pytest.mark.parametrize(
    ("structure", "shape", "settings"),
    [
        ("custom", (8,), {"algorithm": Gaps(8), "event_dim": 1}),
        ("custom", (7,), {"algorithm": Scramble(7, 3), "event_dim": 1}),
        ("arborescence", (5, 5), {"root": 2}),
    ],
)
def test_where_rounding_decides_the_librarys_choice_is_followed(structure, shape, settings):
    """Noise that differs in its last bits: times are all 1, what is left of them is nothing but rounding."""
    noise = torch.from_numpy(rng(1).integers(-3, 4, (50, *shape)) * 5e-324)
    s = Subject(Case(structure, torch.zeros(shape, dtype=torch.float64), noise, settings), Counter())
    checks.traces(s)
    checks.log_prob(s)
    assert s.outcome.unsure.sum() > 25


@pytest.mark.parametrize(
    ("structure", "shape", "settings", "count"),
    [("spanning-tree", (4, 4), {}, 96), ("arborescence", (4, 4), {"root": 0}, 82), ("permutation", (4,), {}, 24)],
)
def test_traces_are_counted(structure, shape, settings, count):
    """As they are by hand. Several runs of the arborescence's recursion may decide the same."""
    case = Case(structure, torch.zeros(shape), torch.zeros(shape), settings)
    runs = every_run(case.kind.play(case, 0), 10_000)
    assert len({frozenset((w, frozenset(m)) for w, m in result.decisions) for result in runs}) == count


@every_structure
def test_chances_sum_to_one(structure):
    for seed in range(5):
        case = small(structure, seed)
        outcome = every_outcome(case, 0, 2000)
        x = np.repeat(case.x, len(outcome.winners), 0)
        assert np.exp(formula.log_prob(x, outcome)).sum() == pytest.approx(1, abs=1e-12)


@every_structure
def test_derivatives_of_the_formula(structure):
    """Against differences of the formula itself."""
    case = small(structure, 3)
    outcome = every_outcome(case, 0, 2000).at(slice(0, 5))
    x = np.repeat(case.x, len(outcome.winners), 0)
    keys = np.flatnonzero(case.racing[0])
    weight = rng(1).normal(size=len(x))
    along = np.where(case.racing, rng(2).normal(size=x.shape), 0.0)
    grad = formula.gradient(x, outcome, weight)
    curve = formula.curvature(x, outcome, along)
    for k in keys:
        up, down = x.copy(), x.copy()
        up[:, k] += 1e-5
        down[:, k] -= 1e-5
        slope = (formula.log_prob(up, outcome) - formula.log_prob(down, outcome)) / 2e-5
        np.testing.assert_allclose(grad[:, k], weight * slope, atol=1e-8)
        bend = formula.gradient(up, outcome, np.ones(len(x))) - formula.gradient(down, outcome, np.ones(len(x)))
        np.testing.assert_allclose(curve[:, k], (bend * along).sum(1) / 2e-5, atol=1e-8)


@every_structure
def test_gradient_of_the_noise_given_a_trace(structure):
    """E = Σ minima + fresh, written out with fixed uniforms, and differentiated by torch."""
    case = small(structure, 4)
    outcome = every_outcome(case, 0, 2000).at(slice(0, 3))
    x = torch.from_numpy(np.repeat(case.x, 3, 0)[: len(outcome.winners)]).requires_grad_()
    members = torch.from_numpy(outcome.members).double()
    there = torch.from_numpy(outcome.winners >= 0)
    totals = torch.where(members > 0, x[:, None, :], -torch.inf).logsumexp(-1)
    unit = torch.from_numpy(rng(1).exponential(size=tuple(there.shape)))
    minima = torch.where(there, unit / torch.where(there, totals, 0.0).exp(), 0.0)
    won = torch.from_numpy(formula._won(outcome)) > 0
    racing = torch.from_numpy(np.isfinite(case.x)).expand(x.shape)
    fresh = torch.from_numpy(rng(2).exponential(size=tuple(x.shape))) / torch.where(racing, x, 0.0).exp()
    e = torch.einsum("ibk,ib->ik", members, minima) + torch.where(won, 0.0, fresh)
    noise = torch.where(racing, -e.log(), 0.0)
    weight = rng(3).normal(size=tuple(x.shape))
    (expected,) = torch.autograd.grad((noise * torch.from_numpy(weight))[racing].sum(), x)
    ours = formula.conditional_gradient(x.detach().numpy(), outcome, noise.detach().numpy(), weight)
    np.testing.assert_allclose(ours[racing.numpy()], expected[racing].numpy(), atol=1e-9)


def test_p_values():
    """Of what is drawn from the law, anything; of what is not, none to speak of. Rare bins are put together."""
    expected = np.array([5000.0, 4000.0, 999.0, 0.5, 0.5])
    drawn = rng(0).multinomial(10_000, expected / 10_000)
    assert laws.p_value(drawn, expected) > 1e-4
    assert laws.p_value(np.array([5500, 3500, 999, 1, 0]), expected) < laws.ALARM
    assert laws.p_value(np.array([10.0]), np.array([10.0])) == 1


def test_a_recursion_is_interpreted_as_the_library_does():
    """Winners of all parts, a winner that stays wins again without a decision, the value from the inside out."""
    case = small("custom", 9)
    algorithm = case.settings["algorithm"]
    noise = case.build().perturb(generator=torch.Generator().manual_seed(0))
    g = noise.detach().flatten().tolist()
    keys = np.flatnonzero(case.racing[0]).tolist()
    result = interpret(algorithm, keys, Times(g, keys).choose)
    trace = case.build().trace(noise)
    assert [winner for winner, _ in result.decisions] == trace.winners.tolist()
