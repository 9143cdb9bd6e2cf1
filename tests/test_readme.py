"""Every Python block of the README runs, in order, in one namespace."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 7
    namespace = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)
    total, p_value, broken = map(float, capsys.readouterr().out.split())
    assert abs(total - 1) < 1e-5
    assert 0 <= p_value <= 1
    assert broken == 0
