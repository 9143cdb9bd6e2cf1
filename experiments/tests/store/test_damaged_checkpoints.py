"""Checkpoints that are damaged or made up: one line that says so, or exactly what was saved; never a crash."""

import os
import random
import zipfile
from functools import partial

import pytest
import tiny_runs
import torch
from damage import check_resumed, contents, damage_checkpoint, in_child, put_back, repacked, with_parts
from hostile_states import EXACT, REFUSED, rewrite
from mutations import MORE
from quadratic import Quadratic, QuadraticConfig
from tiny_runs import TINY, GraphLayout, Killed

from gumtrace.estimators import LinearSurrogate, PairwiseSurrogate
from gumtrace_experiments import train
from gumtrace_experiments.loop.evaluation import evaluate
from gumtrace_experiments.store.checkpoints import load
from gumtrace_experiments.store.errors import RunFolderError

data, run = tiny_runs.data, tiny_runs.run
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # From Python 3.12 on, of a fork where threads run: TensorBoard's may not be gone yet.
    pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning"),
]
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
CONFIG = TINY.replace(estimator="RELAX")


def trained(kind, config, out, **settings):
    """The result of a run, but for how long it took."""
    (result,) = train(kind, config, out, progress=False, **settings)
    return {**result, "seconds": 0}


def stop(run):
    raise Killed


@pytest.fixture(scope="module")
def halves(tmp_path_factory, data):
    """A run that was stopped at its first evaluation, as files; and what becomes of it."""
    out, threads = tmp_path_factory.mktemp("runs"), torch.get_num_threads()
    torch.set_num_threads(1)  # as in the tests: sums have another order with more
    with pytest.raises(Killed):
        train(GraphLayout, CONFIG, out, data=data, progress=False, watch=stop)
    before = contents(out / "seed-0")
    result = trained(GraphLayout, CONFIG, out, data=data)
    torch.set_num_threads(threads)
    return before, result


@pytest.fixture
def folder(halves, tmp_path):
    """Of the run that was stopped."""
    (tmp_path / "seed-0").mkdir()
    put_back(tmp_path / "seed-0", halves[0])
    return tmp_path / "seed-0"


@pytest.fixture
def resumed(halves, folder, data):
    """resumed(name, change): whether the run resumes after a change to its state; in a process of its own, since the
    optimiser's kernel believes what it is given."""
    resume = partial(trained, GraphLayout, CONFIG, folder.parent, data=data)

    def call(name, change):
        rewrite(folder / "state.pt", change)
        return in_child(partial(check_resumed, folder, resume, halves[1], name))

    return call


@forks
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.slow
def test_states_that_nobody_would_write(name, resumed):
    assert not resumed(name, REFUSED[name])


@forks
@pytest.mark.parametrize("name", EXACT)
def test_states_that_are_only_unusual(name, resumed):
    assert resumed(name, EXACT[name])


@forks
def test_states_of_starts(tmp_path, data, monkeypatch):
    """Of a run that was stopped between its starts; the state of the best one is checked as well."""
    config = TINY.replace(starts=3, start_iterations=4)
    build, built = GraphLayout.build, []

    def build_two(*args):
        built.append(1)
        if len(built) == 3:
            raise Killed
        return build(*args)

    with monkeypatch.context() as patch:
        patch.setattr(GraphLayout, "build", build_two)
        with pytest.raises(Killed):
            train(GraphLayout, config, tmp_path, data=data, progress=False)
    folder = tmp_path / "seed-0"
    before = contents(folder)
    resume = partial(trained, GraphLayout, config, tmp_path, data=data)
    result = resume()

    def best(name):
        return lambda state: REFUSED[name](state["starts"]["best"])

    changes = {
        "no score": lambda state: state["starts"].update(scores=[]),
        "too many": lambda state: state["starts"].update(scores=[1.0] * 3),
        "nan": lambda state: state["starts"].update(scores=[float("nan")]),
        "text": lambda state: state["starts"].update(scores="1"),
        "no state": lambda state: state["starts"].update(best=[]),
        "starts in starts": lambda state: state["starts"]["best"].update(starts=state["starts"]),
        **{name: best(name) for name in ("moments: shorter", "iteration -1", "a negative step", "weights in a list")},
    }
    for name, change in {"unchanged": lambda state: None, **changes}.items():
        put_back(folder, before)
        rewrite(folder / "state.pt", change)
        assert in_child(partial(check_resumed, folder, resume, result, name)) == (name == "unchanged")


@pytest.fixture
def quadratic(tmp_path):
    """A run that is done but for its result."""
    config = QuadraticConfig(iterations=10)
    result = trained(Quadratic, config, tmp_path)
    (tmp_path / "seed-0" / "result.json").unlink()
    return tmp_path / "seed-0", partial(trained, Quadratic, config, tmp_path), result


@pytest.mark.slow
def test_mutated_bytes(quadratic):
    folder, resume, result = quadratic
    before, rng, loaded = contents(folder), random.Random(0), {True: 0, False: 0}
    for number in range(400 * MORE):
        put_back(folder, before)
        about, detectable = damage_checkpoint(folder, rng)
        loaded[detectable] += check_resumed(folder, resume, result, f"number {number}, {about}", exact=detectable)
    assert 0 < loaded[True] < 50 * MORE  # a few bytes matter to nobody
    assert loaded[False] > 0  # other numbers


def test_metrics_are_not_older_than_the_state(quadratic):
    """Rows that a state knows of are gone."""
    folder, resume, result = quadratic
    for kept in (0, 1):
        lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(lines[:kept]))
        with pytest.raises(RunFolderError, match=rf"metrics.jsonl cannot be read \(it has {kept} rows, but had 7 when"):
            resume()
        (folder / "metrics.jsonl").write_text("".join(lines))
    assert resume() == result


@pytest.mark.parametrize("name", ["a weight: float64", "weights in a list", "iteration 4.0"])
def test_the_best_model_is_checked_before_the_run_resumes(name, folder, data):
    """And not hours later, when it is needed."""
    rewrite(folder / "best.pt", REFUSED[name])
    before = contents(folder)
    with pytest.raises(RunFolderError, match=r"best\.pt"):
        train(GraphLayout, CONFIG, folder.parent, data=data, progress=False, watch=stop)
    assert contents(folder) == before


@pytest.mark.parametrize("name", [name for name in REFUSED if name.startswith("a weight: ")])
def test_best_models_that_nobody_would_write(name, folder, data):
    rewrite(folder / "best.pt", REFUSED[name])
    assert not check_resumed(folder, partial(evaluate, folder, data=data), None, name)


# What torch checks, which ours relies on --------------------------------------------------------------


def pickled(size: int) -> bytes:
    return b"K" + bytes([size])


@pytest.mark.parametrize(
    "places", [(0,), (1,), (0, 1)], ids=["a part that is too short", "numbers behind the memory", "both"]
)
def test_sizes_that_are_made_up(places, tmp_path):
    """Of a tensor of 77 numbers: how many are in its part of the file, and how many it has."""
    path = tmp_path / "best.pt"
    torch.save({"iteration": 1, "valid": {}, "model": {"w": torch.zeros(77)}}, path)

    def change(parts):
        (name,) = [name for name in parts if name.endswith("data.pkl")]
        pieces = parts[name].split(pickled(77))
        assert len(pieces) == 3
        sizes = [pickled(99 if place in places else 77) for place in (0, 1)]
        parts[name] = pieces[0] + sizes[0] + pieces[1] + sizes[1] + pieces[2]

    assert load(path)["model"]["w"].shape == (77,)
    path.write_bytes(with_parts(path.read_bytes(), change))
    assert zipfile.ZipFile(path).testzip() is None
    with pytest.raises(RunFolderError, match=r"best\.pt cannot be read \(its parts do not fit together\)"):
        load(path)


def test_damage_with_right_checksums_is_no_traceback(tmp_path):
    path = tmp_path / "best.pt"
    torch.save({"iteration": 1, "valid": {"x": 1.0}, "model": {"w": torch.zeros(7, 11).t()}}, path)
    good, rng, read = path.read_bytes(), random.Random(1), 0
    for _ in range(500 * MORE):
        path.write_bytes(repacked(good, rng))
        try:
            read += load(path) is not None
        except RunFolderError:
            continue
    assert 0 < read < 400 * MORE


DTYPES = ["bool", "uint8", "int16", "int64", "bfloat16", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_any_dtype_are_read(tmp_path, name):
    """Of anybody's experiment; tables of rotations are complex, for instance."""
    path, dtype = tmp_path / "best.pt", getattr(torch, name)
    w = torch.arange(6).to(dtype)
    torch.save({"iteration": 1, "valid": {"x": 1.0}, "model": {"w": w}}, path)
    found = load(path)["model"]["w"]
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), w.view(torch.uint8))


# What estimators have learnt --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LinearSurrogate, PairwiseSurrogate])
def test_surrogates_whose_sizes_do_not_go_together(kind):
    """They bring their sizes along: a state before the first loss, before the first solution, and after."""
    states = []
    for losses in (0, 1, 40):
        surrogate = kind()
        if losses:
            surrogate.fit(torch.rand(losses, 5).round(), torch.rand(losses))
        states.append(surrogate.state_dict())
        fresh = kind()
        fresh.load_state_dict(states[-1])
        assert all(torch.equal(value, states[-1][name]) for name, value in fresh.state_dict().items())
    for state in states[1:]:
        for name, value in state.items():
            for other in (torch.cat([value, value[:1]]) if len(value) else value.new_zeros(1), value[None]):
                with pytest.raises(RuntimeError, match=r"size mismatch for .* are not consistent"):
                    kind().load_state_dict({**state, name: other})
        with pytest.raises(RuntimeError, match="are not consistent"):
            kind().load_state_dict({**state, "waiting": torch.zeros(0, 10**12, dtype=torch.float64)})
        with pytest.raises(RuntimeError, match="Missing key"):
            kind().load_state_dict({name: value for name, value in state.items() if name != "gram"})
