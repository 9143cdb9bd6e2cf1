"""The toy experiment: every structure and estimator takes a few steps, and the picture is drawn."""

import math
import re

import pytest
import torch

from gumtrace import cli
from gumtrace.toy import SIZES, applicable, left_out, optimise, problem


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.slow
def test_every_estimator_takes_steps(name, smooth):
    p = problem(name, size=4 if name != "subset" else 6, smooth=smooth)
    for estimator, build in applicable(p, samples=3).items():
        curve = optimise(p, estimator, build, iterations=2, every=1)
        assert len(curve.objective) == 3
        assert all(map(math.isfinite, curve.objective + curve.std))


def test_optimising_lowers_the_objective():
    p = problem("spanning-tree", size=5)
    curve = optimise(p, "T", applicable(p)["T-REINFORCE+"], iterations=60, every=60)
    assert curve.objective[-1] < 0.7 * curve.objective[0]


def test_objective_is_the_same_for_hard_values_of_any_batch_shape():
    p = problem("binary-tree", size=5)
    value = p.dist.sample((2, 3))
    torch.testing.assert_close(p.objective(value)[1, 2], p.objective(value[1, 2]))


def test_command_writes_a_figure(tmp_path, capsys):
    arguments = ["toy", "matching", "--iterations", "2", "--seeds", "1", "--samples", "3", "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert (tmp_path / "matching.png").stat().st_size > 10_000
    out, err = capsys.readouterr()
    assert re.search(r"^T-REINFORCE\+ +TraceREINFORCE +[\d.]+ ", out, re.MULTILINE)
    assert "lower is better" in out
    assert "it/s" not in err  # bars are for terminals


def test_one_sample_leaves_none_out(tmp_path, capsys):
    """The "+" of a label stands for the leave-one-out baseline."""
    arguments = ["toy", "permutation", "--iterations", "1", "--seeds", "1", "--samples", "1", "--rough"]
    assert cli.main([*arguments, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^T-REINFORCE +TraceREINFORCE ", out, re.MULTILINE)
    assert "+" not in out


def test_help_says_defaults_and_what_is_better(capsys):
    with pytest.raises(SystemExit):
        cli.main(["toy", "--help"])
    out = capsys.readouterr().out
    for default in ("toy", "150", "3", "8"):
        assert f"(default: {default})" in out
    assert "lower is better" in out


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    assert cli.main(["toy", "subset", "--out", str(file)]) == 2
    assert capsys.readouterr().err == f"gumtrace toy: cannot write into {file}: it is a file; choose another --out\n"


def test_estimators_that_take_fewer_samples_are_left_out(tmp_path, capsys):
    p = problem("permutation", size=3)
    assert left_out(p, 12) == {}
    assert left_out(p, 16) == {"U-REINFORCE+": 12}
    assert {*applicable(p, 12)} - {*applicable(p, 16)} == {"U-REINFORCE+"}
    for build in applicable(p, 16).values():
        build()
    arguments = ["toy", "permutation", "--iterations", "1", "--seeds", "1", "--samples", "16", "--rough"]
    assert cli.main([*arguments, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Without U-REINFORCE+, which takes at most 12 samples.\n")


@pytest.mark.parametrize("given", [["--seeds", "0"], ["--samples", "0"], ["--iterations", "-3"], ["--seeds", "two"]])
def test_numbers_that_make_no_sense(given, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["toy", "spanning-tree", *given])
    assert stopped.value.code == 2
    assert f"argument {given[0]}: must be a whole number from 1 on, got '{given[1]}'" in capsys.readouterr().err


def test_unknown_structure():
    with pytest.raises(ValueError, match="unknown structure 'forest': choose from subset"):
        problem("forest")
