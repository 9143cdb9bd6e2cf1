"""The explorer's page: by keys, by touch, by ear; when something goes wrong; and inside another page."""

import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cases import OPENING
from explored_page import drawn
from exploring import Expected, chromium, serving

from gumtrace.explore import precompute

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium to try the explorer in"),
]
PHONE = {"width": 390, "height": 844}


def test_everything_can_be_reached_by_keys_and_shows_the_focus(explored):
    reached = set()
    for _ in range(80):
        explored.press("Tab")
        name, outline = explored.page.evaluate("""() => {
          const { activeElement: node } = document;
          const { structure } = node.dataset;
          const name = structure || node.className || node.name || node.getAttribute("aria-label") || node.textContent;
          return [node === document.body ? null : name, getComputedStyle(node).outlineStyle];
        }""")
        if name is None:
            break
        reached.add(name)
        assert outline == "solid", f"{name} does not show that it has the focus"
    sliders = {f"logit of {key}" for key in "ABCDEFGH"}
    assert {*OPENING, *sliders, "n", "k", "seed", "gx-step", "gx-noise", "gx-given", "to decision 1"} <= reached


def test_told_to_those_who_do_not_see_it(explored):
    explored.open("spanning-tree")
    explored.press("ArrowRight")
    page = explored.page
    assert "edges between 6 parts raced" in page.get_by_role("status").inner_text()
    assert page.get_by_role("img").get_attribute("aria-label").startswith("Spanning tree: 15 edges")
    assert page.get_by_role("button", name="Spanning tree").get_attribute("aria-pressed") == "true"
    assert page.get_by_role("button", name="Subset").get_attribute("aria-pressed") == "false"
    assert page.locator(".gx-trace [aria-current=step]").count() == 1
    first = explored.slider(1).get_attribute("aria-valuetext")
    assert first == f"1.8, arrives at {explored.times()['1']:.3g}"


def test_e_and_t_are_named_where_they_are_seen(explored):
    """Not in tooltips: there are none where one touches."""
    page = explored.page
    assert page.locator(".gx-draws button").all_inner_texts() == ["New times", "New times, same trace (E | T)"]
    assert page.locator(".gx-why").is_visible()
    why = page.locator(".gx-why").inner_text().replace("\u00a0", " ")
    assert why == (
        "The noise E: all times of arrival. The trace T: all that was decided. "
        "Other times would have led to the same decisions; E | T draws some of them."
    )
    assert page.locator(".gx-heading").inner_text().split("\n")[2].startswith("time of arrival E")
    assert page.locator(".gx-trace caption").inner_text() == "The trace T"


def test_every_mark_is_in_the_legend(explored):
    legend = explored.page.eval_on_selector_all(".gx-legend [data-state]", "all => all.map((one) => one.dataset.state)")
    alike = {"drops": "leaves", "dropped": "out"}
    explored.open("arborescence")  # whose lanes have all states that there are
    seen = set()
    for _ in range(int(explored.page.get_attribute(".gx", "data-last"))):
        explored.press("ArrowRight")
        seen |= {alike.get(state, state) for state in explored.look()["states"].values()}
    assert set(legend) == seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.slow
def test_on_a_phone(scheme, visit, served):
    explored = visit(served.url, viewport=PHONE, has_touch=True, is_mobile=True, color_scheme=scheme)
    page = explored.page
    for structure in OPENING:
        explored.open(structure)
        for key in ("Home", "ArrowRight", "End"):
            explored.press(key)
            assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
            outside = page.evaluate("""() => [...document.querySelectorAll("main *")].filter((node) => {
                const { left, right, width } = node.getBoundingClientRect();
                return width > 0 && (left < 0 || right > innerWidth);
              }).map((node) => node.outerHTML.slice(0, 80))""")
            assert outside == []
    page.tap("[aria-label='To the start']")
    page.tap("[aria-label=Next]")
    assert explored.look()["at"] == 1
    small = page.evaluate("""() => [...document.querySelectorAll(".gx :is(button, select, input)")].filter((node) => {
        const { width, height } = node.getBoundingClientRect();
        return width < 24 || height < 24;
      }).map((node) => node.outerHTML.slice(0, 80))""")
    assert small == []  # too small for fingers
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")


def test_no_motion_for_those_who_want_none(visit, served):
    for setting, duration in (("no-preference", "0.3s"), ("reduce", "0s")):
        page = visit(served.url, reduced_motion=setting).page
        assert page.evaluate("getComputedStyle(document.querySelector('.gx-mark')).transitionDuration") == duration


def test_what_goes_wrong_is_said(explored, visit):
    page = explored.page
    problem = page.locator(".gx-problem[role=alert]")
    page.fill("[name=seed]", "-3")
    page.press("[name=seed]", "Enter")
    problem.get_by_text("seed must be a whole number from 0 to 99999, got -3").wait_for()
    page.press("[name=seed]", "Escape")
    page.route("**/api/run", lambda route: route.abort())
    explored.press("n")
    problem.get_by_text("Is the command gumtrace explore still running?").wait_for()
    page.unroute("**/api/run")
    explored.after(lambda: explored.press("n"))
    assert problem.text_content() == ""
    assert len(visit.wrong) == 2  # what the browser itself says of the two
    visit.wrong.clear()


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site with the explorer on a page in a folder; nothing but files."""
    root = tmp_path_factory.mktemp("site")
    precompute.write(root / "static")
    (root / "pages").mkdir()
    (root / "pages" / "page.html").write_text(
        '<!doctype html><link rel="icon" href="../static/look.js"><link rel="stylesheet" href="../static/explorer.css">'
        '<body data-theme="dark"><section class="gx" data-runs="../static/" data-structure="matching"></section>'
        '<script type="module" src="../static/embed.js"></script>'
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=root))
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}/"


@pytest.mark.slow
def test_recorded_runs_in_another_page(visit, site):
    explored = visit(site, path="pages/page.html#here")
    page = explored.page
    page.wait_for_selector(".gx[data-ready=matching]")
    assert page.evaluate("getComputedStyle(document.querySelector('.gx')).colorScheme") == "dark"
    explored.press("ArrowRight")
    assert explored.look()["at"] == 0  # its keys are its own only while it has the focus
    for structure in OPENING:
        explored.open(structure)
        explored.press("End")
        seen = explored.look()
        first, *_ = json.loads(page.request.get(f"{site}static/{structure}.json").text())["runs"]
        expected = Expected(structure, {int(key): x for key, x in seen["logits"].items()}, first["run"]["seed"])
        assert drawn(seen, structure) == expected.drawn
        assert float(seen["trace"]["value"]) == pytest.approx(expected.log_prob)
        again = explored.after(lambda: explored.press("r"))
        keys = [str(key["key"]) for key in first["run"]["keys"]]
        assert again["times"] == dict(zip(keys, first["redraws"][0]["times"], strict=True))
        assert again["drawn"] == seen["drawn"]
        for _ in range(precompute.RUNS):
            last = explored.after(lambda: explored.press("n"))
        assert last["times"] == seen["times"]  # after the last comes the first
    assert page.locator(".gx input[type=range]:not(:disabled)").count() == 0
    assert "Run gumtrace explore to drag the logits" in page.inner_text(".gx-hint")
    page.wait_for_timeout(400)  # the explorer's own page would have written its address by now
    assert page.url == f"{site}pages/page.html#here"  # which is the other page's


def test_recorded_runs_that_are_not_there(visit, site):
    explored = visit(site, path="pages/page.html")
    explored.page.route("**/subset.json", lambda route: route.abort())
    explored.page.click("[data-structure=subset]")
    explored.page.get_by_text("subset.json could not be loaded.").wait_for()
    assert len(visit.wrong) == 1  # what the browser itself says
    visit.wrong.clear()
