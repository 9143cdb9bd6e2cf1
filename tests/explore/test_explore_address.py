"""The address of the explorer's page: it holds what is shown, and whatever it says is checked."""

import pytest
from exploring import chromium

from gumtrace.explore.answers import answer
from gumtrace.explore.requests import read

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium to try the explorer in"),
]


def _written(explored, address):
    """A pause after what is shown, and later where the machine is busy."""
    explored.until(lambda: explored.page.evaluate("location.hash") == f"#{address}")


@pytest.mark.slow
def test_a_reload_shows_the_same(explored, visit, served):
    page = explored.page
    explored.open("spanning-tree")
    explored.after(lambda: page.select_option("[name=n]", "4"))
    page.select_option("[name=components]", "2")
    page.wait_for_selector(".gx[data-last='3']:not([aria-busy])")
    explored.after(lambda: explored.slider(2).fill("-3.5"))
    for key in "nnr":
        explored.after(lambda key=key: explored.press(key))
    explored.press("Escape")  # the slider
    explored.press("ArrowRight")
    shown = explored.look()
    logits = ",".join(f"{x:g}" for x in shown["logits"].values())
    _written(explored, f"structure=spanning-tree&n=4&components=2&logits={logits}&seed=27&redraw=1&step=1")
    page.reload()
    page.wait_for_selector(".gx[data-ready=spanning-tree]")
    assert explored.look() == shown
    other = visit(served.url, path=page.url.removeprefix(served.url))
    assert other.look() == shown
    other.after(lambda: other.page.get_by_text("As at first").click())
    _written(other, "structure=spanning-tree&n=4&components=2&seed=27&step=1")


def test_another_address_shows_another_run(explored):
    page = explored.page
    page.evaluate("location.hash = 'structure=matching&rows=2&columns=3&seed=7&step=99'")
    page.wait_for_selector(".gx[data-ready=matching]:not([aria-busy])")
    run = answer(read({"structure": "matching", "options": {"rows": 2, "columns": 3}, "seed": 7}))
    assert list(explored.times().values()) == run["noise"]["times"]
    assert explored.look()["kind"] == "end"  # there is no step 99
    page.evaluate("location.hash = ''")
    page.wait_for_selector(".gx[data-ready=subset]")


def test_an_address_that_is_written_over_at_once_is_read(explored):
    """What was shown before may be written between a new address and the event that tells of it."""
    shown = explored.page.url
    explored.page.evaluate(
        """(shown) => {
          location.hash = "structure=matching&rows=2&columns=3&seed=7";
          history.replaceState(null, "", shown);
        }""",
        shown,
    )
    explored.page.wait_for_selector(".gx[data-ready=matching]:not([aria-busy])")
    _written(explored, "structure=matching&rows=2&columns=3&seed=7")


REFUSED = {
    "here": "structure must be one of subset, permutation",
    "seed=3": "structure must be one of subset, permutation",
    "structure=<img src=x>": "structure must be one of subset, permutation",
    "structure=subset&seed=": "seed must be a whole number from 0 to 99999, got a string",
    "structure=subset&seed=1e999": "seed must be a whole number from 0 to 99999, got a string",
    "structure=subset&seed=-1": "seed must be a whole number from 0 to 99999, got -1",
    "structure=subset&redraw=x": "redraw must be a whole number from 1 to 9999, got a string",
    "structure=subset&n=3&k=4": "k must be a whole number from 1 to 3, got 4",
    "structure=subset&__proto__=1": "unknown option '__proto__': subset has n, k",
    "structure=subset&n=2&logits=0,5": "logits must be between -4 and 4, got 5",
    "structure=subset&n=2&logits=0,": "logits must be numbers, got a string",
    "structure=subset&n=2&logits=0": "logits must be a list of 2 numbers",
    f"structure=subset&n={'9' * 300}": "n must be a whole number from 2 to 12",
    f"structure=subset&n={'x' * 20_000}": "a request has at most 16384 bytes",
}


def test_an_address_is_checked_as_any_request(explored, visit):
    before = explored.look()
    for i, (address, reason) in enumerate(REFUSED.items()):
        explored.page.evaluate("(address) => { location.hash = address; }", address)
        explored.until(lambda i=i: explored.look() and len(visit.wrong) > i)  # of what the browser itself says
        explored.page.wait_for_selector(".gx:not([aria-busy])")
        assert explored.page.inner_text(".gx-problem").startswith(reason)
        assert explored.look() == before  # what is shown stays
    visit.wrong.clear()
    explored.after(lambda: explored.press("n"))
    assert explored.page.inner_text(".gx-problem") == ""


def test_a_step_that_is_none_is_the_first(explored):
    page = explored.page
    for i, step in enumerate(["x", "-1", "1.5", "NaN", ""]):
        page.evaluate("(address) => { location.hash = address; }", f"structure=subset&seed={i}&step={step}")
        explored.until(lambda i=i: page.input_value("[name=seed]") == str(i))
        page.wait_for_selector(".gx:not([aria-busy])")
        assert page.inner_text(".gx-problem") == ""
        assert explored.look()["at"] == 0
        explored.press("ArrowRight")


def test_the_start_for_those_who_come_by_a_wrong_address(visit, served):
    explored = visit(served.url, path="#structure=subset&seed=x")
    explored.page.get_by_text("seed must be a whole number").wait_for()
    explored.page.wait_for_selector(".gx[data-ready=subset]:not([aria-busy])")
    assert explored.page.inner_text(".gx-problem").startswith("seed must be a whole number")
    _written(explored, "structure=subset&n=8&k=3&seed=17")
    visit.wrong.clear()
