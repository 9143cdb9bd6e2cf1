"""Commands that other distributions add: found by their entry points, and never in the way of the library's own."""

import sys

import pytest

from gumtrace.cli import Command, available, main

OWN = ["demo", "explore", "toy", "warm-up", "bench"]
MODULE = '''
"""A command of another distribution."""

from gumtrace.cli import Command

GREET = Command("say hello", "other_commands", "; nobody was greeted")
MORE = {"greet": GREET, "demo": Command("not the library's", "other_commands")}
LIST = [GREET]


def add_arguments(parser):
    parser.add_argument("name")


def run(args):
    if args.name == "nobody":
        raise KeyboardInterrupt
    print(f"hello, {args.name}")
    return 3
'''


@pytest.fixture
def other(tmp_path, monkeypatch):
    """other(entry point): a distribution with it is installed."""
    (tmp_path / "other_commands.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def install(value):
        about = tmp_path / "other-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[gumtrace.commands]\nother = {value}\n")

    yield install
    sys.modules.pop("other_commands", None)


def test_a_command_of_another_distribution(other, capsys):
    other("other_commands:MORE")
    found = available()
    assert list(found)[: len(OWN)] == OWN
    assert found["greet"].help == "say hello"
    assert found["demo"].module == "gumtrace.cli.demo"
    assert main(["greet", "world"]) == 3
    assert capsys.readouterr().out == "hello, world\n"
    assert main(["greet", "nobody"]) == 130
    assert capsys.readouterr().err == "gumtrace: interrupted; nobody was greeted\n"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("other_commands:LIST", "other_commands:LIST is not a dictionary of commands"),
        ("other_commands:MISSING", "module 'other_commands' has no attribute 'MISSING'"),
        ("not_there:MORE", "No module named 'not_there'"),
    ],
)
def test_commands_that_cannot_be_loaded_are_reported(value, reason, other, capsys):
    other(value)
    assert list(available())[: len(OWN)] == OWN
    assert capsys.readouterr().err == f"gumtrace: the commands of 'other' cannot be loaded: {reason}\n"


def test_commands_that_are_handed_over(capsys):
    more = {"greet": Command("say hello", "nowhere"), "toy": Command("not the library's", "nowhere")}
    assert available(more)["greet"] is more["greet"]
    assert available(more)["toy"].module == "gumtrace.cli.toy"
    with pytest.raises(SystemExit):
        main(["--help"], more)
    assert "say hello" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "command"), [(["demo", "--see", "3"], "gumtrace demo"), (["--vers"], "gumtrace")])
def test_options_are_not_abbreviated(argv, command, capsys):
    """A typo should not run, and shows the usage of its command."""
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"usage: {command} [-h]")
    assert f"\n{command}: error: " in err


def test_the_library_alone_names_the_other_distribution(capsys, monkeypatch):
    monkeypatch.setattr("gumtrace.cli.entry_points", lambda group: ())
    assert list(available()) == OWN
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "gumtrace-experiments adds train" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["train", "listops"])
    assert end.value.code == 2
    assert "gumtrace-experiments adds train" in capsys.readouterr().err
