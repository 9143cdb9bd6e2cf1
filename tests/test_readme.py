"""Every Python block of the README runs, in order, in one namespace."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 9
    namespace = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)
    total, p_value, broken = map(float, capsys.readouterr().out.split())
    assert abs(total - 1) < 1e-5
    assert 0 <= p_value <= 1
    assert broken == 0


def test_speed_table_is_that_of_the_recorded_run():
    spec = spec_from_file_location("table", README.parent / "benchmarks" / "table.py")
    table = module_from_spec(spec)
    spec.loader.exec_module(table)
    assert table.with_table(README.read_text()) == README.read_text()
