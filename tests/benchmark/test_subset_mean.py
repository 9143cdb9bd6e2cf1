"""benchmarks/subset_mean.py, and what it recorded."""

import json

import subset_mean  # benchmarks/


def test_it_records(tmp_path, monkeypatch):
    monkeypatch.setattr(subset_mean, "SIZES", ((20, 3),))
    monkeypatch.setattr(subset_mean, "REPEATS", 1)
    subset_mean.main(["--out", str(tmp_path / "out.json")])
    records = json.loads((tmp_path / "out.json").read_text())["records"]
    assert {(r["d"], r["k"], r["dtype"]) for r in records} == {(20, 3, "float32"), (20, 3, "float64")}
    assert all(r["seconds"] > 0 and r["with_gradient"] > 0 for r in records)


def test_a_hundred_of_a_hundred_thousand_take_less_than_a_second():
    """On two cores, as recorded."""
    records = json.loads(subset_mean.RESULTS.read_text())["records"]
    (two,) = {r["threads"] for r in records} - {1}
    large = {r["dtype"]: r["seconds"] for r in records if (r["d"], r["k"], r["threads"]) == (100_000, 100, two)}
    assert two == 2
    assert large.keys() == {"float32", "float64"}
    assert max(large.values()) < 1
