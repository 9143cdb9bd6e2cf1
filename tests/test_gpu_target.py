"""What `make test-gpu` relies on: tests for a GPU are found by what their files say, failures are printed at once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import failures_at_once

MARKER = re.compile(r"mark\.(device|gpu)|every_device")  # as the Makefile looks for it
FAILING = """
def test_one():
    assert 6 * 9 == 42

def test_two():
    print("the second test runs")
"""


def test_files_say_that_they_have_tests_for_a_gpu(request):
    """Of all that was collected with this test. `make test-gpu` collects no other files."""
    marked = {
        item.path
        for item in request.session.items
        if item.get_closest_marker("device") or item.get_closest_marker("gpu")
    }
    assert [path for path in marked if not MARKER.search(path.read_text(encoding="utf-8"))] == []
    assert MARKER.pattern in (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")


def test_failures_are_printed_as_they_happen(tmp_path):
    (tmp_path / "test_some.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-n", "1", "-v", "--tb=short", "-p", "failures_at_once", "test_some.py"]
    env = os.environ | {"PYTHONPATH": str(Path(failures_at_once.__file__).parent), "PYTEST_ADDOPTS": ""}
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    before, end = run.stdout.split("test_some.py::test_two", 1)
    assert "assert (6 * 9) == 42" in before
    assert "test_some.py::test_one (call)" in before
    assert "1 failed, 1 passed" in end
