"""`gumtrace warm-up`: after it, nothing is left to compile."""

import pytest
import torch

from gumtrace import structures
from gumtrace.cli import main, warm_up
from gumtrace.kernels.cpu import cache, folders


def test_every_structure_can_be_named():
    made = {type(warm_up.make(name, torch.float32)).__name__ for name in warm_up.NAMES}
    assert made == set(structures.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("name", warm_up.NAMES)
def test_what_is_used_is_used_again_without_compiling(name, monkeypatch, capsys):
    """All that a structure has runs on the small batch; a second time nothing asks to be compiled."""
    assert main(["warm-up", name, "--dtype", "float32"]) == 0
    assert f"[1/1] {name} float32" in capsys.readouterr().out
    monkeypatch.setattr(cache.KernelCache, "load_overload", lambda *args: pytest.fail("a kernel was asked for"))
    warm_up.use(warm_up.make(name, torch.float32))


def test_an_unknown_structure_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["warm-up", "Subsets"])
    assert "unknown structure 'Subsets': choose from SpanningTree, Matching" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(folders, "writable_folder", lambda: None)
    assert main(["warm-up", "Subset"]) == 1
    assert "set GUMTRACE_CACHE_DIR" in capsys.readouterr().err
