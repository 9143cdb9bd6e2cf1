"""What a config asks for is what training does: so many evaluations per iteration, by an estimator so set."""

from dataclasses import dataclass
from functools import partial

import pytest
import tiny_runs
import torch
import tyro
from common import seeded
from tiny_runs import TINY, GraphLayout

import gumtrace as gt
from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import Config
from gumtrace_experiments.config import build_estimator, with_settings_of
from gumtrace_experiments.loop.update import Updater
from gumtrace_experiments.loop.workers import Workers

data = tiny_runs.data
pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
SOFT = [name for name, cls in ESTIMATORS.items() if "temperature" in cls.settings()]


# --- evaluations per iteration ---


def counted(config, data, monkeypatch):
    """Structures that the decoder was given in one update, and of how many items."""
    model, structures, items = GraphLayout.build(config, GraphLayout.load(config, data, CPU), CPU), [], []

    def counting(real):
        def call(positions, structure, *args, **settings):
            structures.append(structure.shape[:-2].numel())
            items.append(len(positions))
            return real(positions, structure, *args, **settings)

        return call

    for name in ("forward", "unroll"):
        monkeypatch.setattr(model.decoder, name, counting(getattr(model.decoder, name)))
    Updater(model, Workers(CPU)).update(0)
    (size,) = set(items)
    return sum(structures), size


@pytest.mark.parametrize("training", ["teacher-forced", "unrolled"])
@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_iteration_has_as_many_evaluations_as_the_config_says(estimator, samples, training, data, monkeypatch):
    """Or fewer, where they would not be those of whole items: REBAR's control variate asks for two more a sample, which
    are paid for with items. Structures that a surrogate speaks for are not evaluated, nor are Gumbel-Rao's draws."""
    calls = 25
    config = TINY.replace(estimator=estimator, samples=samples, calls=calls, extra=5, training=training)
    found, items = counted(config, data, monkeypatch)
    an_item = samples * ESTIMATORS[estimator].calls_per_sample
    assert items == config.items == calls // an_item
    assert found == items * an_item
    assert calls - an_item < found <= calls


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"estimator": "TraceREINFORCE"}, (24, 6)),  # four samples per item
        ({"estimator": "StochasticSoftmax"}, (25, 25)),  # one
        ({"estimator": "RELAX"}, (25, 25)),
        ({"estimator": "REBAR"}, (24, 8)),
        ({"estimator": "REBAR", "learn_temperature": False}, (24, 8)),
        ({"estimator": "TraceREINFORCE", "samples": 2, "shards": 3}, (24, 4)),  # the items are those of a shard
    ],
)
def test_samples_that_suit_the_estimator(settings, expected, data, monkeypatch):
    assert counted(TINY.replace(calls=25, **settings), data, monkeypatch) == expected


# --- the estimator's settings ---


def built(**settings):
    """As the experiment builds it, with a critic and a surrogate of its own, and without."""
    yield GraphLayout.build(TINY.replace(**settings), None, CPU).estimator
    if "critic" not in ESTIMATORS[settings["estimator"]].settings():
        yield build_estimator(Config(**settings))


def loss_and_gradient(estimator, seen=None):
    """On two trees; `seen` gets the shapes of what the objective is given."""
    dist = gt.SpanningTree(torch.randn(2, 4, 4, generator=seeded(1)).requires_grad_())
    weights, context = torch.arange(16.0).view(4, 4), torch.zeros(2, TINY.frames * TINY.nodes * 2)

    def objective(x):
        if seen is not None:
            seen.append(x.shape)
        return (x * weights).square().sum((-1, -2))

    loss = estimator(dist, objective, context, generator=seeded(2))
    return loss.detach(), torch.autograd.grad(loss.sum(), dist.logits)[0]


@pytest.mark.parametrize("samples", [1, 3, 5])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_objective_gets_k_structures(name, samples):
    for estimator in built(estimator=name, samples=samples, calls=16, extra=6):
        assert type(estimator) is getattr(gt.estimators, name)
        assert estimator.samples == samples
        seen = []
        loss_and_gradient(estimator, seen)
        assert set(seen) == {(samples, 2, 4, 4)}
        assert len(seen) == ESTIMATORS[name].calls_per_sample


@pytest.mark.parametrize("temperature", [0.3, 2.0])
@pytest.mark.parametrize("name", SOFT)
def test_a_temperature_is_the_estimator_s(name, temperature):
    """As if it had been made by hand."""
    for estimator in built(estimator=name, temperature=temperature, samples=2):
        settings = {"samples": 2, "draws": Config().draws}
        same, other = (
            loss_and_gradient(ESTIMATORS[name].from_settings({**settings, "temperature": t}))
            for t in (temperature, 1.0)
        )
        loss, gradient = loss_and_gradient(estimator)
        torch.testing.assert_close((loss, gradient), same)
        assert not torch.allclose(gradient, other[1], rtol=1e-3)


class Decaying(gt.estimators.Estimator):
    """With settings that no config declares.

    Args:
        samples: runs for each item.
        decay: of the mean,
            at each call.
    """

    def __init__(self, *, samples: int = 4, decay: float = 0.9, fast: bool = False, temperature: float = 0.5):
        super().__init__(samples=samples)
        self.decay, self.fast, self.temperature = decay, fast, temperature


@dataclass(frozen=True)
@partial(with_settings_of, {"Decaying": Decaying})
class OfDecaying:
    """A config of such an estimator."""

    temperature: float = 1.0


def test_settings_that_no_config_declares_are_fields(capsys):
    """With the estimator's defaults, and its words as help."""
    with pytest.raises(SystemExit, match="0"):
        tyro.cli(OfDecaying, args=["--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--decay FLOAT Decaying: of the mean, at each call. (default: 0.9)" in shown
    assert "--temperature FLOAT (default: 1.0)" in shown
    config = tyro.cli(OfDecaying, args=["--fast", "--decay", "0.5"])
    made = Decaying.from_settings(vars(config))
    assert (made.decay, made.fast, made.temperature) == (0.5, True, 1.0)


@pytest.mark.parametrize("learn", [True, False])
def test_rebar_learns_its_temperature_or_not(learn):
    for estimator in built(estimator="REBAR", learn_temperature=learn):
        assert [p.requires_grad for p in (estimator.log_temperature, estimator.scale)] == [learn, True]


@pytest.mark.parametrize("draws", [1, 7])
def test_gumbel_rao_makes_its_draws(draws, monkeypatch):
    made, real = [], gt.SpanningTree.conditional
    monkeypatch.setattr(gt.SpanningTree, "conditional", lambda *args, **more: (made.append(1), real(*args, **more))[1])
    for estimator in built(estimator="GumbelRao", draws=draws):
        made.clear()
        loss_and_gradient(estimator)
        assert len(made) == draws


@pytest.mark.parametrize("extra", [5, 90])
def test_the_surrogate_gets_its_extra_structures(extra, monkeypatch):
    made, real = [], gt.SpanningTree.sample_trace
    monkeypatch.setattr(
        gt.SpanningTree, "sample_trace", lambda self, shape, **more: (made.append(shape), real(self, shape, **more))[1]
    )
    for estimator in built(estimator="SurrogateREINFORCE", extra=extra, samples=3):
        made.clear()
        loss_and_gradient(estimator)
        assert made == [(3,), (extra,)]


def test_the_width_of_what_is_learned_along():
    net = next(built(estimator="RELAX", critic_hidden=11)).critic.net
    seen = TINY.frames * TINY.nodes * 2
    assert (net[0].in_features, net[0].out_features) == (seen + 16, 11)
    surrogate = next(built(estimator="SurrogateREINFORCE")).surrogate
    assert (surrogate.nodes, surrogate.features) == (TINY.nodes, TINY.frames * 2)
