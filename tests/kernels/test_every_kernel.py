"""What `make sanitize` runs on a GPU: does it still run?"""

import sys

import every_kernel


def test_structures_apart(monkeypatch, capsys):
    """As racecheck has them: together they are all, and each one's items are those of a whole run."""

    def run(*options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["every_kernel.py", "--device", "cpu", "--most", "110", *options])
        every_kernel.main()
        return capsys.readouterr().out.split("\n")[:-1]

    (names,) = run("--list")
    assert sorted(line for name in names.split() for line in run("--only", name)) == sorted(run())


def test_small_items_of_every_structure(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["every_kernel.py", "--device", "cpu", "--most", "2000"])
    every_kernel.main()
    ran = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert ran == {
        name for name, _, shape, _ in every_kernel.cases() if name not in ("forest", "SpanningTree.from_edges")
    }
