"""The recorded run of sorted numbers: made by the recipe's own code, and shown as it was recorded."""

import json

import numpy as np
import pytest
import sorting
import table


@pytest.mark.usefixtures("one_thread")
def test_record(tmp_path):
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 55_020), ("test", 20)):
        arrays[f"{part}_images"] = random.integers(0, 256, (count, 4, 4), dtype=np.uint8)
        arrays[f"{part}_labels"] = random.integers(0, 10, count, dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", **arrays)
    found = sorting.record(str(tmp_path / "mnist.npz"), sorting.Settings(steps=2, test_lists=250))
    assert 0 <= found["lists"] <= found["numbers"] <= 1
    assert found["cpu_seconds"] > 0


def test_the_table_has_the_recorded_numbers():
    ours = json.loads(sorting.RESULTS.read_text())["result"]
    lines = table.table("sorting").splitlines()
    assert lines[-1] == f"| `Permutation.log_prob` | {ours['lists']:.1%} | {ours['numbers']:.1%} |"
    assert len(lines) == 4 + len(sorting.PUBLISHED) + 1
