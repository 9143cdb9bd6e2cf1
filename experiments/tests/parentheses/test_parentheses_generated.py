"""Sequences that a model generates: which are different, which are new, and what is wrong with the others."""

import pytest
import torch

from gumtrace_experiments.config import derive_seed
from gumtrace_experiments.parentheses import evaluation
from gumtrace_experiments.parentheses.data import Split
from gumtrace_experiments.parentheses.evaluation import GENERATED, digest, generate_unique, shares

CPU = torch.device("cpu")


def split_of(*rows, width=8):
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    return Split(tokens, torch.tensor([len(row) for row in rows]))


def sample(size, generator):
    """One or two tokens of 50, some of which came to no end; what is behind them differs."""
    tokens = torch.randint(0, 50, (size, 3), generator=generator)
    return tokens, torch.randint(1, 3, (size,), generator=generator).where(tokens[:, 0] > 0, -1)


def as_rows(split):
    """Lengths, -1 for those without an end, and tokens."""
    return [
        (length, *row[: length if length >= 0 else None])
        for row, length in zip(split.tokens.tolist(), split.lengths.tolist(), strict=True)
    ]


def as_set(split):
    return set(as_rows(split))


@pytest.mark.parametrize("batch", [3, 100])
def test_shares_by_hand(batch, monkeypatch):
    monkeypatch.setattr(evaluation, "BATCH", batch)
    train = split_of((0, 1), (0, 0, 1, 1), width=4)
    generated = split_of(
        (0, 1),  # old
        (2, 3),  # new
        (0, 0, 1, 1, 0, 1),  # new, and never made
        (0, 1, 0, 1, 0, 1, 0, 1),  # new, and too long to be made
        (1, 0),
        (0, 3),
        (0, 0, 1),
        (),
    )
    generated = Split(torch.cat([generated.tokens, torch.zeros(2, 8, dtype=torch.int64)]), generated.lengths)
    generated = Split(generated.tokens, torch.cat([generated.lengths, torch.tensor([-1, 2])]))
    generated.tokens[9, :2] = torch.tensor([4, 5])  # new
    found = shares(generated, train, longest=6)
    assert found == {
        "old": 0.1,
        "new_correct": 0.4,
        "reachable": 0.2,
        "wrong": 0.5,
        **dict.fromkeys(
            ["wrong_empty", "wrong_unfinished", "wrong_unopened", "wrong_mismatched", "wrong_unclosed"], 0.1
        ),
    }


@pytest.mark.parametrize("count", [1, 30, 200])
def test_the_first_different_ones_are_kept(count, monkeypatch):
    monkeypatch.setattr(evaluation, "BATCH", 40)
    found, draws = generate_unique(sample, count, 3, CPU)
    assert len(found.lengths) == len(as_set(found)) == count
    assert draws % min(40, count) == 0
    size, expected = min(40, count), []
    for i in range(draws // size):
        batch = Split(*sample(size, torch.Generator().manual_seed(derive_seed(3, "generated", i))))
        expected += as_rows(batch)
    assert as_rows(found) == list(dict.fromkeys(expected))[:count]


def test_a_model_that_repeats_itself_comes_to_an_end(monkeypatch):
    monkeypatch.setattr(evaluation, "BATCH", 10)
    found, draws = generate_unique(lambda size, _: (torch.zeros(size, 2).long(), torch.full((size,), 2)), 50, 0, CPU)
    assert (len(found.lengths), draws) == (1, evaluation.MOST * 50)


def test_a_model_that_generates_nothing_has_shares_all_the_same():
    """One sequence, of no tokens."""
    found, _ = generate_unique(lambda size, _: (torch.zeros(size, 4).long(), torch.zeros(size).long()), 5, 0, CPU)
    assert found.tokens.shape == (1, 4)
    expected = dict.fromkeys(shares(split_of((0, 1)), split_of((0, 1)), 6), 0.0) | {"wrong": 1.0, "wrong_empty": 1.0}
    assert shares(found, split_of((0, 1)), 6) == expected


class Killed(BaseException):
    pass


def killed_after(batches):
    left = iter(range(batches))

    def call(size, generator):
        if next(left, None) is None:
            raise Killed
        return sample(size, generator)

    return call


def test_what_was_cut_off_is_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "BATCH", 40)
    monkeypatch.setattr(evaluation, "PAUSE", 0.0)
    expected, draws = generate_unique(sample, 300, 3, CPU)
    assert draws > 4 * 40
    with pytest.raises(Killed):
        generate_unique(killed_after(3), 300, 3, CPU, folder=tmp_path, about="a")
    assert (tmp_path / GENERATED).exists()
    calls = []

    def counted(size, generator):
        calls.append(size)
        return sample(size, generator)

    found, again = generate_unique(counted, 300, 3, CPU, folder=tmp_path, about="a")
    assert found.tokens.equal(expected.tokens)
    assert found.lengths.equal(expected.lengths)
    assert again == draws
    assert len(calls) == draws // 40 - 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("harm", ["another model", "other batches", "cut off", "something else", "rows"])
def test_what_cannot_be_continued_is_generated_again(tmp_path, monkeypatch, harm):
    monkeypatch.setattr(evaluation, "BATCH", 40)
    monkeypatch.setattr(evaluation, "PAUSE", 0.0)
    expected, draws = generate_unique(sample, 300, 3, CPU)
    monkeypatch.setattr(evaluation, "BATCH", 30 if harm == "other batches" else 40)
    with pytest.raises(Killed):
        generate_unique(killed_after(3), 300, 3, CPU, folder=tmp_path, about="b" if harm == "another model" else "a")
    monkeypatch.setattr(evaluation, "BATCH", 40)
    path = tmp_path / GENERATED
    if harm == "cut off":
        path.write_bytes(path.read_bytes()[:-100])
    if harm == "something else":
        torch.save([1, 2], path)
    if harm == "rows":
        torch.save({**torch.load(path), "rows": torch.tensor([1, 2], dtype=torch.int16)}, path)
    found, again = generate_unique(sample, 300, 3, CPU, folder=tmp_path, about="a")
    assert found.tokens.equal(expected.tokens)
    assert again == draws


def test_little_is_kept_of_what_takes_a_moment(tmp_path, monkeypatch):
    """Files are written every so often, not for each batch."""
    monkeypatch.setattr(evaluation, "BATCH", 40)
    with pytest.raises(Killed):
        generate_unique(killed_after(3), 300, 3, CPU, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_digests_tell_models_apart():
    weights = {"a": torch.zeros(3), "b": torch.ones(2)}
    assert digest(weights) == digest({name: value.clone() for name, value in weights.items()})
    assert digest(weights) != digest({**weights, "b": torch.tensor([1.0, 1.1])})
    assert digest(weights) != digest({"a": torch.zeros(3), "c": torch.ones(2)})


def test_seeds_decide():
    first, second, other = (generate_unique(sample, 50, seed, CPU)[0] for seed in (1, 1, 2))
    assert first.tokens.equal(second.tokens)
    assert as_set(first) != as_set(other)
