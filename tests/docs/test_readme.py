"""The README: its example runs, its numbers are those of recorded runs, and its links work on a package index."""

import doctest
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import table  # benchmarks/
from matplotlib.image import imread

from gumtrace.cli import main

README = Path(__file__).parents[2] / "README.md"


def load(path):
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_runs():
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {}
    exec(compile(block, str(README), "exec"), names)
    assert names["loss"].shape == (32,)
    assert names["logits"].grad.abs().sum() > 0


def test_one_screen_and_the_commands_of_the_checks():
    text = README.read_text()
    assert len(text.splitlines()) <= 120
    checks = re.findall(r"^make [a-z-]+$", (README.parent / ".ci" / "run").read_text(), re.MULTILINE)
    assert checks
    assert all(f"$ {check} " in text for check in checks)


def test_the_table_is_that_of_the_recorded_runs():
    text = README.read_text()
    assert len(re.findall(r"<!-- speed -->\n.+?<!-- /speed -->", text, re.DOTALL)) == 1
    assert table.with_tables(text) == text, "python benchmarks/table.py"


def test_three_numbers_of_speed():
    def run(device, *records):
        machine = {"cpu": "Z80", "threads": 3, "device": device, "torch": "2.99.0+x", "date": "2030-01-02"}
        return {"machine": machine, "records": [{"step": "t_step", **record} for record in records]}

    tree = {"structure": "SpanningTree", "size": {"n": 50}, "batch": 1000}
    big = {"structure": "SpanningTree.from_edges", "size": {"nodes": 1_000_000, "edges": 10_000_000}, "ms": 4321.0}
    text = table.headline(run("cpu", tree | {"ms": 12.0}, big), run("X1", tree | {"device_ms": 0.034}))
    for number in ("**12 µs**", "**34 ns**", "**4.3 s**", "3 threads of Z80", "on X1", "torch 2.99.0, 2030-01-02"):
        assert number in text


def test_cuda_table_is_blank_where_nothing_was_measured():
    facts = {"structure": "BinaryTree", "size": {"n": 5}, "batch": 4096, "logits_bytes": 100}
    times = {"copy_ms": 0.0123, "ms": 123.4, "device_ms": 0.0456, "graph_ms": None, "peak_bytes": 250}
    steps = ("sample_trace", "log_prob", "conditional", "t_step", "trace_reinforce")
    records = [{**facts, **times, "step": step} for step in steps]
    records[2]["device_ms"] = None
    machine = {"device": "NVIDIA X1", "torch": "2.99.0+cu1", "date": "2030-01-02"}
    text = table.cuda({"machine": machine, "records": records})
    for word in ("NVIDIA X1", "torch 2.99.0", "2030-01-02", "a batch of 4,096"):
        assert word in text
    assert "| BinaryTree n=5 | 0.012 | 0.046 | 0.046 |  | 0.046 |  | 2.5 |" in text


@pytest.fixture
def hatch_build(monkeypatch):
    """The module, without the build tool, which only builds need."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return load(README.parent / "hatch_build.py")


TARGET = re.compile(r"\]\(([^)\s]+)\)")


def test_links_on_a_package_index(hatch_build):
    text = README.read_text()
    here = TARGET.findall(text)
    assert len(here) > 20
    there = hatch_build.readme_for_index(text, "https://example.org", "1.2")
    assert TARGET.findall(there) == [f"https://example.org/{'raw' if is_image(x) else 'blob'}/v1.2/{x}" for x in here]
    code = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    assert code.findall(there) == code.findall(text)
    assert doctest.testmod(hatch_build) == (0, 2)


def is_image(file: str) -> bool:
    return file.endswith((".png", ".svg"))


def test_the_picture_is_the_demo_s(tmp_path):
    """Pixel by pixel, but for the edges of letters and lines, where versions of matplotlib may differ."""
    assert main(["demo", "--out", str(tmp_path)]) == 0
    kept, drawn = (imread(folder / "structures.png") for folder in (README.parent / "docs" / "_static", tmp_path))
    assert kept.shape == drawn.shape, "gumtrace demo --out docs/_static"
    assert abs(kept - drawn).mean() < 0.002, "gumtrace demo --out docs/_static"


def test_badges_say_what_is_so():
    badges = load(README.parent / "docs" / "badges.py")
    for file, text in badges.badges().items():
        assert (badges.OUT / file).read_text(encoding="utf-8") == text, "python docs/badges.py"
        assert f"docs/_static/badges/{file}" in README.read_text()
