"""benchmarks/sharded.py, and what it recorded."""

import json

import pytest
import sharded  # benchmarks/
import table  # benchmarks/


@pytest.mark.slow
def test_it_records(tmp_path):
    few = sharded.Settings(d=300, k=4, seeds=3, repeats=2, small=40, processes=(2,), many_keys=640)
    sharded.main(["--out", str(tmp_path / "out.json")], few)
    found = json.loads((tmp_path / "out.json").read_text())
    alone, two = found["records"]
    assert (alone["same_traces"], two["same_traces"]) == (3, 3)
    assert two["keys_a_rank"] == 150
    assert [part["keys"] for part in found["one_of_many"].values()] == [10, 10]


def test_ten_million_keys_have_the_traces_of_one_process():
    """As recorded, for 100 seeds; and bytes are O(k) a row."""
    found = json.loads(sharded.RESULTS.read_text())
    s, records = found["settings"], found["records"]
    assert (s["d"], s["seeds"]) == (10_000_000, 100)
    assert [(r["processes"], r["same_traces"]) for r in records] == [(1, 100), (1, 100), (2, 100), (4, 100)]
    assert all(r["log_prob_gap"] < 1e-6 for r in records)
    for r in records[1:]:
        sent = {case: {call: sum(sizes) for call, sizes in calls.items()} for case, calls in r["bytes"].items()}
        assert sent["one_row"] == sent["few_keys"]  # whatever d is
        assert all(
            sent["four_rows"][call] <= 4 * n and sent["twice_k"][call] <= 2 * n for call, n in sent["one_row"].items()
        )


def test_the_page_shows_what_was_recorded():
    assert "100 of 100" in table.table("sharded")
    scaled = table.table("sharded-scaled")
    assert "1,000,000,000" in scaled
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in scaled.splitlines()]
    grown = {row[0]: row for row in rows if len(row) == 8 and row[0][0].isdigit()}
    assert list(grown) == ["16", "64", "256", "1,024"]
    assert {row[4] for row in grown.values()} == {"2,632"}  # whatever the number of ranks
    assert grown["64"][1:4] == ["15,625,000", "209 ms", "266 MB"]  # as measured
    assert grown["1,024"][7] == "65,536"
