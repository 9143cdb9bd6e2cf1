"""The faults that the fuzzer is tried with can still be put in."""

import mutants
import pytest


@pytest.mark.parametrize("name", mutants.FAULTS)
def test_the_piece_is_in_the_source_once(name):
    file, piece, fault = mutants.FAULTS[name]
    assert (mutants.SOURCE / "gumtrace" / file).read_text().count(piece) == 1
    assert piece != fault
