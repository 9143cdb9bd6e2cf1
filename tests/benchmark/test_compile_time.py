"""Where the time of a first step goes: every second is counted once, and the page shows what was recorded."""

import json

import compile_time
import pytest
import table


@pytest.fixture
def clock(monkeypatch):
    """Whose `now` is set by hand."""
    monkeypatch.setattr(compile_time.Clock, "now", 0.0, raising=False)
    clock = compile_time.Clock()
    clock.since = 0.0
    monkeypatch.setattr(compile_time.time, "process_time", lambda: clock.now)
    return clock


def test_seconds_belong_to_the_innermost_part(clock):
    def lower():
        clock.now += 1.0
        clock.timed("linking", link)()
        clock.now += 2.0

    def link():
        clock.now += 4.0
        raise ValueError("no such symbol")

    clock.now = 8.0
    with pytest.raises(ValueError, match="no such symbol"):
        clock.timed("lowering", lower)()
    clock.now += 16.0
    clock.tick()
    assert dict(clock.seconds) == {compile_time.REST: 24.0, "lowering": 1.0, "linking": 4.0}


def test_seconds_belong_to_the_innermost_function(clock):
    clock.functions.append("kernel")
    clock.now = 1.0
    clock.tick()
    clock.functions.append("part")
    clock.now = 3.0
    clock.tick()
    clock.functions.pop()
    clock.now = 7.0
    clock.tick()
    assert dict(clock.of_functions) == {"kernel": 5.0, "part": 2.0}


def test_the_record():
    """That of both structures has every part, and none has swallowed the others."""
    results = json.loads(compile_time.RESULTS.read_text(encoding="utf-8"))
    assert [record["structure"] for record in results["records"]] == list(compile_time.STRUCTURES)
    for record in results["records"]:
        assert list(record["seconds"]) == list(compile_time.PARTS)
        total = sum(record["seconds"].values())
        assert all(0 < seconds < total / 2 for seconds in record["seconds"].values())
        assert 10 < record["functions"] < 200
    rows = table.table("compile-time").splitlines()
    assert [row for row in rows if row.startswith("| LLVM: optimisation |")]
    assert rows[-1].startswith("| together |")


@pytest.mark.slow
def test_a_new_record_has_the_same_parts():
    with compile_time.fresh_library() as (library, cache):
        process = compile_time.start("BinaryTree", library, cache, compile_time.__file__)
        record = compile_time.finished(process)
    assert set(record["seconds"]) == set(compile_time.PARTS)
    assert all(record["seconds"][part] > 0 for part in compile_time.PARTS)
    assert record["largest_seconds"] < sum(record["seconds"].values())
