"""What the harness refuses: folders of other runs or in use, settings that make no sense."""

from dataclasses import dataclass

import pytest
import tiny_runs
from tiny_runs import TINY

from gumtrace_experiments.config import Config
from gumtrace_experiments.store import folder as folders
from gumtrace_experiments.store.folder import RunFolderError

data, run = tiny_runs.data, tiny_runs.run
pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_folder_of_another_config_is_refused(run, tmp_path):
    run("a")
    before = {p: p.read_bytes() for p in (tmp_path / "a" / "seed-0").iterdir()}
    with pytest.raises(RunFolderError, match=r"another run .*lr 0\.0005"):
        run("a", TINY.replace(lr=1e-3))
    assert {p: p.read_bytes() for p in (tmp_path / "a" / "seed-0").iterdir()} == before


def test_a_folder_in_use_is_refused(run, tmp_path):
    folder = folders.RunFolder(tmp_path / "a" / "seed-0", {"experiment": "graph-layout", "config": TINY.to_dict()}, {})
    with pytest.raises(RunFolderError, match="in use by another process"):
        run("a")
    folder.close()
    run("a")


def test_a_folder_without_a_config_is_refused(run, tmp_path):
    (tmp_path / "a" / "seed-0").mkdir(parents=True)
    (tmp_path / "a" / "seed-0" / "state.pt").write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"state\.pt but no config\.json"):
        run("a")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "REINFORCE"}, "unknown estimator 'REINFORCE': choose from NoiseREINFORCE"),
        ({"samples": 256}, "TraceREINFORCE with 256 samples makes 256 calls for one item, more than the 128"),
        ({"estimator": "REBAR", "calls": 2}, "REBAR with 1 samples makes 3 calls for one item"),
        ({"learn_temperature": False}, "learn_temperature: TraceREINFORCE does not learn a temperature, REBAR does"),
        ({"adaptive": True}, "adaptive: TraceREINFORCE has no step that adapts, IMLE does"),
        ({"estimator": "IMLE", "step": 0.0}, "step must be positive, got 0.0"),
        ({"shards": 3}, "32 items cannot be divided evenly among 3 shards"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"clip": -1.0}, "clip must not be negative, got -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay must not be negative, got nan"),
        ({"starts": 2, "iterations": 1500}, "start_iterations must be .* less than iterations, 1500; got 1500"),
        ({"starts": 2, "start_iterations": 700}, "a multiple of evaluate_every, 500"),
    ],
)
def test_bad_configs(settings, message):
    with pytest.raises(ValueError, match=message):
        Config(**settings)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("k", r"property of Config \(structures for each item\)"),
        ("items", r"property of Config \(items in a batch\)"),
        ("calls_per_item", r"property of Config \(objective calls for each item\)"),
        ("replace", r"method of Config \(the config with other values of some fields\)"),
    ],
)
def test_a_field_cannot_take_the_place_of_what_a_config_has(name, what):
    """It would change the number of samples, say, and nobody would notice."""
    with pytest.raises(TypeError, match=f"^Own: {name} is a {what}; give the field another name$"):
        type("Own", (Config,), {"__annotations__": {name: int}, name: 5})


def test_fields_and_methods_may_be_defined_again():
    @dataclass(frozen=True)
    class Own(Config):
        calls: int = 64

        def rate_factor(self, iteration):
            return 0.5

    assert (Own().items, Own().rate_factor(1)) == (16, 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder_lr": -1.0}, "decoder_lr must not be negative, got -1.0"),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"critic_hidden": 0}, "critic_hidden must be at least 1, got 0"),
    ],
)
def test_what_graph_layout_refuses(settings, message):
    with pytest.raises(ValueError, match=message):
        TINY.replace(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_size": 3}, "a batch has 4 items, but the training set has only 3"),
        ({"estimator": "SurrogateREINFORCE", "shards": 2}, "SurrogateREINFORCE .* shards must be 1"),
    ],
)
def test_what_cannot_be_trained(settings, message, run):
    with pytest.raises(ValueError, match=message):
        run("a", TINY.replace(**settings))
