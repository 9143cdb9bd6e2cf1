"""The noise of an update: a function of the seed, the shard and the iteration, and of all three."""

import pytest
import tiny_runs
import torch
from tiny_runs import TINY, GraphLayout

from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.workers import Workers

data = tiny_runs.data
pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
CONFIG = TINY.replace(shards=2)


def made(config, data):
    return Run(GraphLayout.build(config, GraphLayout.load(config, data, CPU), CPU), None, Workers(CPU))


def drawn(run, updates, monkeypatch):
    """The first numbers that the loss of each update and shard would draw."""
    found, real = [], run.experiment.loss

    def loss(index, generator):
        found.append(tuple(torch.rand(4, generator=generator.clone_state()).tolist()))
        return real(index, generator)

    with monkeypatch.context() as patch:
        patch.setattr(run.experiment, "loss", loss)
        for _ in range(updates):
            run.update()
    return found


def test_every_update_shard_and_seed_has_noise_of_its_own(data, monkeypatch):
    """Which a second run has again: also one that resumes from a state."""
    seeds = [drawn(made(CONFIG.replace(seed=seed), data), 6, monkeypatch) for seed in (0, 1, 2)]
    together = [noise for found in seeds for noise in found]
    assert len(together) == 3 * 6 * CONFIG.shards == len(set(together))
    assert drawn(made(CONFIG, data), 6, monkeypatch) == seeds[0]
    resumed, other = made(CONFIG, data), made(CONFIG, data)
    drawn(other, 4, monkeypatch)
    resumed.load_state_dict(other.state_dict())
    assert drawn(resumed, 2, monkeypatch) == seeds[0][4 * CONFIG.shards :]


def trees(run, index, monkeypatch):
    """Those that the decoder is given in the next update, on these items and by a model that is not moved."""
    found, real, update = [], run.experiment.reconstruction, run.experiment.loss

    def reconstruction(positions, structure):
        found.append(structure)
        return real(positions, structure)

    with monkeypatch.context() as patch:
        patch.setattr(run.experiment, "reconstruction", reconstruction)
        patch.setattr(run.experiment, "loss", lambda _, generator: update(index, generator))
        patch.setattr(run.updater.optimiser, "step", lambda: None)
        run.update()
    return torch.stack(found)


def test_the_same_model_draws_other_trees_from_the_same_items(data, monkeypatch):
    """At the next iteration, and as another seed: it is not the order of the data that makes the difference."""
    run, other = made(TINY, data), made(TINY.replace(seed=1), data)
    other.updater.load_model(run.experiment.state_dict())
    index = torch.arange(TINY.items)
    first, second = (trees(run, index, monkeypatch) for _ in range(2))
    elsewhere = trees(other, index, monkeypatch)
    again = trees(made(TINY, data), index, monkeypatch)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, elsewhere)
