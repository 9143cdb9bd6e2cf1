"""The explorer's answers are the library's, its stories are whole, and what it is asked wrongly it refuses."""

import math
import re

import pytest
import torch
from cases import OPENING
from exploring import Expected

from gumtrace.explore import server
from gumtrace.explore.answers import answer, catalogue
from gumtrace.explore.requests import REDRAWS, SEEDS, STORIES, BadRequest, read

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = [
    {"structure": "subset", "options": {"n": 12, "k": 12}},
    {"structure": "subset", "options": {"n": 2, "k": 1}},
    {"structure": "permutation", "options": {"n": 12}},
    {"structure": "matching", "options": {"rows": 6, "columns": 6}},
    {"structure": "matching", "options": {"rows": 1, "columns": 1}},
    {"structure": "spanning-tree", "options": {"n": 8, "components": 3}},
    {"structure": "spanning-tree", "options": {"n": 2}},
    {"structure": "arborescence", "options": {"n": 7, "root": 3}},
    {"structure": "arborescence", "options": {"n": 2, "root": 1}},
    {"structure": "binary-tree", "options": {"n": 12}},
    {"structure": "binary-tree", "options": {"n": 1}},
    {"structure": "independent-set", "options": {"n": 12}},
    {"structure": "independent-set", "options": {"n": 3}},
    *({"structure": name} for name in STORIES),
]


def _name(asked):
    return f"{asked['structure']} {' '.join(map(str, asked.get('options', {}).values()))}".strip()


def _decisions(run):
    return [frame for frame in run["frames"] if frame["kind"] == "decision"]


def _runs(asked, seeds=range(12)):
    return [answer(read({**asked, "seed": seed})) for seed in seeds]


@pytest.mark.parametrize("structure", OPENING)
@pytest.mark.parametrize("seed", [0, 5, 99_999])
def test_all_numbers_are_the_librarys(structure, seed):
    run = answer(read({"structure": structure, "seed": seed}))
    expected = Expected(structure, {key["key"]: key["logit"] for key in run["keys"]}, seed)
    keys = [key["key"] for key in run["keys"]]
    assert sorted(keys) == expected.dist.racing.flatten().nonzero()[:, 0].tolist()
    noise = expected.noise.flatten()[keys]
    torch.testing.assert_close(torch.tensor(run["noise"]["perturbed"], dtype=torch.float64), noise)
    torch.testing.assert_close(torch.tensor(run["noise"]["times"], dtype=torch.float64), (-noise).exp())
    for frame, step in zip(_decisions(run), expected.steps, strict=True):
        assert frame["winner"] == step.winner
        assert frame["racing"] == list(step.racing)
        assert frame["probability"] == pytest.approx(step.probability)
        assert frame["running"] == pytest.approx(step.running)
        assert sum(frame["chances"]) == pytest.approx(1)
        assert frame["chances"][frame["racing"].index(step.winner)] == pytest.approx(step.probability)
    assert run["value"] == expected.value
    assert run["log_prob"] == pytest.approx(expected.log_prob)
    assert run["frames"][-1]["running"] == pytest.approx(expected.log_prob)
    if expected.dist.has_log_prob:
        assert run["structure_log_prob"] == pytest.approx(expected.dist.log_prob(expected.trace.value).item())
    else:
        assert run["structure_log_prob"] is None


@pytest.mark.parametrize("asked", SIZES, ids=_name)
def test_every_key_wins_or_leaves_once(asked):
    for run in _runs(asked):
        kinds = [frame["kind"] for frame in run["frames"]]
        assert kinds[0] == "start"
        assert kinds[-1] == "end"
        won = [frame["winner"] for frame in _decisions(run)]
        left = [key for frame in run["frames"] for key in frame["removed"]]
        assert sorted(won + left) == sorted(key["key"] for key in run["keys"])
        gone = set()
        for frame in run["frames"]:
            assert not gone & set(frame.get("racing", ()))
            assert set(frame["removed"]).isdisjoint(gone)
            gone |= {*frame["removed"], *([frame["winner"]] if "winner" in frame else [])}
            assert frame["text"].endswith(".")


@pytest.mark.parametrize("asked", SIZES, ids=_name)
def test_the_least_time_left_wins(asked):
    for redraw in (None, 1):
        for run in _runs({**asked, "redraw": redraw}):
            time = {key["key"]: t for key, t in zip(run["keys"], run["noise"]["times"], strict=True)}
            for frame, spent in zip(_decisions(run), run["noise"]["spent"], strict=True):
                left = {key: time[key] - s for key, s in zip(frame["racing"], spent, strict=True)}
                assert min(left, key=left.__getitem__) == frame["winner"]
                assert min(left.values()) > 0


@pytest.mark.parametrize("n", range(2, 8))
def test_cycles_are_contracted_and_opened(n):
    """Taken by its frames alone, the run ends in the tree."""
    contracted = 0
    for run in _runs({"structure": "arborescence", "options": {"n": n}}, seeds=range(40)):
        chosen, cycles = set(), []
        for frame in run["frames"]:
            if frame["kind"] == "decision":
                chosen.add(frame["winner"])
            elif frame["kind"] == "contraction":
                assert all(set(c) < set(frame["nodes"]) or set(c).isdisjoint(frame["nodes"]) for c in cycles)
                assert all(key // n in frame["nodes"] and key % n in frame["nodes"] for key in frame["removed"])
                assert all(key // n not in frame["nodes"] and key % n in frame["nodes"] for key in frame["racing"])
                cycles.append(frame["nodes"])
                contracted += 1
            elif frame["kind"] == "opening":
                cycles.remove(frame["nodes"])
                assert not any(set(frame["nodes"]) < set(c) for c in cycles)  # from the outside in
                chosen.remove(frame["dropped"])
        assert not cycles
        assert chosen == {u * n + v for u in range(n) for v in range(n) if run["value"][u][v]}
    assert (contracted > 0) == (n > 2)


@pytest.mark.parametrize("components", range(1, 6))
def test_forests_stop_with_parts_left(components):
    """The last decision says why it is the last, and the end names every node."""
    asked = {"structure": "spanning-tree", "options": {"n": 6, "components": components}}
    for run in _runs(asked):
        why = "Nothing is left to join;" if components == 1 else f"{components} parts are left, so it stops;"
        last = _decisions(run)[-1]
        if len(last["racing"]) > 1:
            assert why in last["text"]
        edges, _, alone = run["frames"][-1]["text"].partition("; ")
        assert set("ABCDEF") == set(re.findall("[A-F]", run["frames"][-1]["text"]))
        single = [name for name, row in zip("ABCDEF", run["value"], strict=True) if not any(row)]
        assert re.findall("[A-F]", alone) == single
        assert not set(single) & set(edges)
        ending = {0: "", 1: " stands alone."}.get(len(single), " stand alone.")
        assert alone.endswith(ending)
        assert edges.startswith("The tree is " if components == 1 else "The forest is ")


def test_one_that_leaves_at_the_end_is_named():
    for run in _runs({"structure": "spanning-tree", "options": {"n": 3}}):
        assert re.search(r"Nothing is left to join; [ABC]–[ABC] leaves\.$", _decisions(run)[-1]["text"])


@pytest.mark.parametrize("structure", OPENING)
def test_a_redraw_keeps_the_trace(structure):
    asked = {"structure": structure, "seed": 3}
    first = answer(read(asked))
    assert first["noise"]["same_trace"] is None
    expected = Expected(structure, {key["key"]: key["logit"] for key in first["keys"]}, 3)
    for redraw in (1, 2, REDRAWS - 1):
        again = answer(read({**asked, "redraw": redraw}))
        assert again["noise"]["same_trace"] is True
        assert {**again, "noise": 0, "redraw": 0} == {**first, "noise": 0, "redraw": 0}
        noise = torch.full_like(expected.noise.flatten(), -torch.inf)
        noise[[key["key"] for key in again["keys"]]] = torch.tensor(again["noise"]["perturbed"], dtype=torch.float64)
        assert expected.dist.trace(noise.reshape(expected.noise.shape)).equals(expected.trace)
        assert min(abs(a - b) for a, b in zip(first["noise"]["times"], again["noise"]["times"], strict=True)) > 1e-9


def test_a_redraw_that_lost_its_trace_is_told(monkeypatch):
    """Rounding never does this to logits as small as these, so the noise is spoilt by hand."""
    subset = type(STORIES["subset"].build(torch.zeros(2), {"k": 1}))
    conditional = subset.conditional
    monkeypatch.setattr(
        subset, "conditional", lambda self, trace, generator: -conditional(self, trace, generator=generator)
    )
    assert answer(read({"structure": "subset", "redraw": 1}))["noise"]["same_trace"] is False


def test_logits_move_the_times_and_nothing_else():
    """What makes dragging smooth: the same seed is the same noise, at any logits."""
    first = answer(read({"structure": "permutation", "logits": [0] * 7}))
    moved = answer(read({"structure": "permutation", "logits": [0, 0, 1.5, 0, 0, 0, 0]}))
    ratio = [a / b for a, b in zip(first["noise"]["times"], moved["noise"]["times"], strict=True)]
    assert ratio == pytest.approx([1, 1, math.exp(1.5), 1, 1, 1, 1])


def test_options_left_out_fit_the_others():
    assert read({"structure": "subset", "options": {"n": 2}}).options == {"n": 2, "k": 2}
    assert read({"structure": "matching", "options": {"rows": 6}}).options == {"rows": 6, "columns": 6}
    run = answer(read({"structure": "arborescence", "options": {"n": 3, "root": 1}}))
    choices = [(0, "A"), (1, "B"), (2, "C")]
    assert run["options"][1] == {"name": "root", "value": 1, "choices": choices, "resizes": True}
    assert {key["group"] for key in run["keys"]} == {"into A", "into C"}


def test_options_that_do_not_resize_keep_the_keys():
    for name, story in STORIES.items():
        for option in story.options:
            low, high = option.bounds(read({"structure": name}).options)
            keys = [story.racing(read({"structure": name, "options": {option.name: x}}).options) for x in (low, high)]
            assert option.resizes == (keys[0] != keys[1])


LOGITS = "logits must be"
REFUSED = [
    (None, "a request is a JSON object, got null"),
    ([], "a request is a JSON object, got a list"),
    ({}, "structure must be one of subset, permutation,"),
    ({"structure": "tree"}, "structure must be one of"),
    ({"structure": ["subset"]}, "structure must be one of"),
    ({"structure": "subset", "sead": 1}, "unknown field 'sead': choose from logits, options,"),
    ({"structure": "subset", "options": 3}, "options must be a JSON object, got a number"),
    ({"structure": "subset", "options": {"m": 3}}, "unknown option 'm': subset has n, k"),
    ({"structure": "subset", "options": {"n": 13}}, "n must be a whole number from 2 to 12, got 13"),
    ({"structure": "subset", "options": {"n": 10**30}}, "n must be a whole number from 2 to 12"),
    ({"structure": "subset", "options": {"n": 5.0}}, "n must be a whole number from 2 to 12, got 5.0"),
    ({"structure": "subset", "options": {"n": True}}, "n must be a whole number"),
    ({"structure": "subset", "options": {"n": "5"}}, "n must be a whole number from 2 to 12, got a string"),
    ({"structure": "subset", "options": {"n": 4, "k": 5}}, "k must be a whole number from 1 to 4, got 5"),
    ({"structure": "matching", "options": {"rows": 3, "columns": 2}}, "columns must be a whole number from 3 to 6"),
    ({"structure": "spanning-tree", "options": {"n": 9}}, "n must be a whole number from 2 to 8"),
    ({"structure": "arborescence", "options": {"n": 3, "root": 3}}, "root must be a whole number from 0 to 2"),
    (
        {"structure": "subset", "logits": [0] * 7},
        f"{LOGITS} a list of 8 numbers, one for each key that races, got a list of 7",
    ),
    (
        {"structure": "subset", "logits": "0"},
        f"{LOGITS} a list of 8 numbers, one for each key that races, got a string",
    ),
    ({"structure": "subset", "logits": [0] * 7 + ["1"]}, f"{LOGITS} numbers, got a string"),
    ({"structure": "subset", "logits": [0] * 7 + [None]}, f"{LOGITS} numbers, got null"),
    ({"structure": "subset", "logits": [0] * 7 + [True]}, f"{LOGITS} numbers, got a truth value"),
    ({"structure": "subset", "logits": [0] * 7 + [4.1]}, f"{LOGITS} between -4 and 4, got 4.1"),
    ({"structure": "subset", "logits": [0] * 7 + [math.nan]}, f"{LOGITS} between -4 and 4, got nan"),
    ({"structure": "subset", "logits": [0] * 7 + [-math.inf]}, f"{LOGITS} between -4 and 4, got -inf"),
    ({"structure": "subset", "logits": [0] * 7 + [10**400]}, f"{LOGITS} between -4 and 4"),
    ({"structure": "subset", "seed": -1}, f"seed must be a whole number from 0 to {SEEDS - 1}, got -1"),
    ({"structure": "subset", "seed": SEEDS}, "seed must be a whole number"),
    ({"structure": "subset", "redraw": 0}, f"redraw must be a whole number from 1 to {REDRAWS - 1}, got 0"),
]


@pytest.mark.parametrize(("asked", "reason"), REFUSED, ids=[reason[:40] for _, reason in REFUSED])
def test_what_is_refused(asked, reason):
    with pytest.raises(BadRequest) as refusal:
        read(asked)
    assert str(refusal.value).startswith(reason)


def test_catalogue_and_page_know_the_same_structures():
    names = [story["name"] for story in catalogue()["structures"]]
    assert names == list(OPENING)
    drawings = server.page_files()["explorer.js"].decode().partition("const PICTURES = {")[2].partition("};")[0]
    for story in STORIES.values():
        assert f" {story.drawn}," in f"{drawings.rstrip()},"
