"""Equal rows, against sets and dictionaries of Python."""

import pytest
import torch
from common import seeded

from gumtrace_experiments.parentheses import distinct as distinct_rows
from gumtrace_experiments.parentheses.data import Split
from gumtrace_experiments.parentheses.distinct import contained, distinct, first_equal, sequences, table


@pytest.mark.parametrize("mixed", [distinct_rows._mixed, lambda words: words[:, 0] % 3], ids=["apart", "alike"])
@pytest.mark.parametrize("width", [1, 3, 4, 9])
@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_rows_against_python(count, width, mixed, monkeypatch):
    """Of large numbers and negative ones, of which many rows are equal up to the last column; also where different rows
    are mixed to the same number."""
    monkeypatch.setattr(distinct_rows, "_mixed", mixed)
    rows = torch.randint(-1, 2, (count, width), generator=seeded(width)).short()
    rows[:, : width // 2] *= 30_000
    keys = [tuple(row) for row in rows.tolist()]
    expected = [keys.index(key) for key in keys]
    assert first_equal(rows).tolist() == expected
    assert [tuple(row) for row in distinct(rows).tolist()] == list(dict.fromkeys(keys))
    known = rows[: count // 10]
    assert contained(rows, known).tolist() == [key in keys[: count // 10] for key in keys]


def test_mixed_numbers_are_different():
    """For 100,000 rows that differ in two columns, by little or in the highest bits: by chance none in 10^9 times."""
    rows = torch.zeros(100_000, 8, dtype=torch.int16)
    numbers = torch.arange(100_000)
    for columns in ((0, 1), (3, 7)):
        rows[:, columns[0]], rows[:, columns[1]] = numbers % 400, numbers // 400
        assert len(distinct_rows._mixed(rows.view(torch.int64)).unique()) == 100_000


def test_tables_of_other_widths():
    wide, narrow = torch.tensor([[2, 1, 1, 0, 0, 0], [2, 1, 1, 0, 0, 1]]).short(), torch.tensor([[2, 1, 1]]).short()
    assert contained(wide, narrow).tolist() == [True, False]
    assert contained(narrow, wide).tolist() == [True]


def test_tables_do_not_show_padding():
    split = Split(torch.tensor([[4, 5, 7], [1, 2, 3], [9, 9, 9]]), torch.tensor([2, -1, 0]))
    rows = table(split)
    assert rows.tolist() == [[2, 4, 5, 0], [-1, 1, 2, 3], [0, 0, 0, 0]]
    again = sequences(rows)
    assert again.lengths.equal(split.lengths)
    assert again.tokens.tolist() == [[4, 5, 0], [1, 2, 3], [0, 0, 0]]
