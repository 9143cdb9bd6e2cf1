"""The explorer in a browser: what it shows at every step is what the library says, whatever one does to the run."""

import pytest
from cases import OPENING
from explored_page import check_numbers, check_race, drawn
from exploring import chromium

from gumtrace.explore.answers import answer
from gumtrace.explore.requests import read

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium to try the explorer in"),
]


@pytest.mark.parametrize("structure", OPENING)
@pytest.mark.slow
def test_stepped_to_the_end_and_back(structure, explored):
    explored.open(structure)
    expected = explored.expected(structure)
    views, decided, cycles = [explored.look()], [], set()
    for frame in answer(read({"structure": structure}))["frames"]:
        seen, step = views[-1], None
        assert (seen["kind"], seen["text"]) == (frame["kind"], frame["text"])
        if frame["kind"] == "decision":
            step = expected.steps[len(decided)]
            decided.append(step)
            check_race(seen, step, set(frame["removed"]))
        check_numbers(seen, decided, step)
        if frame["kind"] in ("contraction", "opening"):
            cycles ^= {",".join(map(str, frame["nodes"]))}
        assert seen["cycles"] == sorted(cycles)
        explored.press("ArrowRight")
        views.append(explored.look())
    end = views.pop()
    assert end == views[-1]  # nothing comes after the end
    assert len(decided) == len(expected.steps)
    assert drawn(end, structure) == expected.drawn
    assert float(end["trace"]["value"]) == pytest.approx(expected.log_prob)
    if expected.dist.has_log_prob:
        known = expected.dist.log_prob(expected.trace.value).item()
        assert float(end["structure"]["value"]) == pytest.approx(known)
    else:
        assert end["structure"] == {"value": None, "text": "not known", "more": "its traces are not summed"}
    for before in reversed(views[:-1]):
        explored.page.click("[aria-label=Back]")
        assert explored.look() == before
    explored.press("End")
    assert explored.look() == end
    explored.press("Home")
    assert explored.look() == views[0]


@pytest.mark.parametrize("structure", OPENING)
@pytest.mark.slow
def test_a_redraw_moves_the_times_and_keeps_the_rest(structure, explored):
    explored.open(structure)
    explored.press("End")
    before = explored.look()
    for act, words in ((lambda: explored.press("r"), "once"), (lambda: explored.page.click(".gx-given"), "twice")):
        after = explored.after(act)
        assert f"drawn again {words}, given the trace T." in after["note"]
        assert after["note"].endswith("the algorithm made the same decisions.")
        assert all(after["times"][key] != before["times"][key] for key in before["times"])
        assert {**after, "times": 0, "note": 0} == {**before, "times": 0, "note": 0}
        before = after


def test_other_logits_undo_a_redraw(explored):
    """They may change the trace that it was given."""
    explored.press("End")

    def press(words):
        return lambda: explored.page.get_by_text(words).click()

    for act in (lambda: explored.slider(1).fill("4"), press("As at first"), press("Make all equal")):
        for _ in range(3):
            redrawn = explored.after(lambda: explored.press("r"))
        assert "3 times" in redrawn["note"]
        changed = explored.after(act)
        assert changed["note"] == ""
        expected = explored.expected("subset")
        assert changed["times"] == pytest.approx(expected.times)
        assert drawn(changed, "subset") == expected.drawn


GHOSTS = """() => [...document.querySelectorAll(".gx-lane[data-key]")].map((lane) => {
  const [ghost, mark] = [".gx-ghost", ".gx-mark"].map((name) => lane.querySelector(name));
  return { ghost: ghost.checkVisibility() ? ghost.style.left : null, mark: mark.style.left };
})"""


def test_a_redraw_shows_where_the_times_were(explored):
    page = explored.page
    explored.open("arborescence")
    legend = page.get_by_text("before the redraw")
    for _ in range(6):  # the race of a cycle, where lanes are moved
        explored.press("ArrowRight")
    for _ in range(2):
        before = page.evaluate(GHOSTS)
        explored.after(lambda: explored.press("r"))
        after = page.evaluate(GHOSTS)
        assert [lane["ghost"] for lane in after] == [lane["mark"] for lane in before]
        assert all(lane["ghost"] != lane["mark"] for lane in after)
        assert legend.is_visible()
    for anew in (lambda: page.click("[data-structure=arborescence]"), lambda: explored.press("n")):
        explored.after(anew)
        assert {lane["ghost"] for lane in page.evaluate(GHOSTS)} == {None}
        assert not legend.is_visible()
        explored.after(lambda: explored.press("r"))
        assert legend.is_visible()


def test_a_redraw_that_failed_is_told(explored):
    def spoil(route):
        run = answer(read({"structure": "subset", "redraw": 1}))
        run["noise"]["same_trace"] = False
        route.fulfill(json=run)

    explored.page.route("**/api/run", spoil)
    assert "went another way" in explored.after(lambda: explored.press("R"))["note"]


def test_new_noise(explored):
    explored.open("permutation")
    explored.press("End")

    def choose():
        explored.page.fill("[name=seed]", "12345")
        explored.page.press("[name=seed]", "Enter")

    for act, seed in ((lambda: explored.press("n"), 1), (lambda: explored.page.click(".gx-noise"), 2), (choose, 12345)):
        after = explored.after(act)
        assert explored.page.input_value("[name=seed]") == str(seed)
        assert after["kind"] == "end"  # who is at the end stays there
        expected = explored.expected("permutation")
        assert drawn(after, "permutation") == expected.drawn
        assert after["times"] == pytest.approx(expected.times)


def test_logits_by_mouse(explored):
    explored.press("End")
    before = explored.look()
    box = explored.slider(4).bounding_box()
    mouse, y = explored.page.mouse, box["y"] + box["height"] / 2

    mouse.move(box["x"] + box["width"] / 2, y)
    mouse.down()
    for share in (0.6, 0.8, 1.2):
        mouse.move(box["x"] + share * box["width"], y)
    mouse.up()
    explored.until(lambda: explored.look()["logits"] == {**before["logits"], "4": 4.0})
    expected = explored.expected("subset")
    explored.until(lambda: explored.times() == pytest.approx(expected.times))
    after = explored.look()
    assert 4 in expected.drawn
    assert drawn(after, "subset") == expected.drawn
    assert float(after["trace"]["value"]) == pytest.approx(expected.log_prob)
    equal = explored.after(lambda: explored.page.get_by_text("Make all equal").click())
    assert set(equal["logits"].values()) == {0.0}
    explored.page.get_by_text("As at first").click()
    explored.until(lambda: explored.look() == before)


def test_logits_by_keys(explored):
    explored.open("arborescence")
    before = explored.look()
    slider = explored.slider(1)
    slider.focus()
    for key in ["ArrowRight"] * 7 + ["ArrowLeft"]:
        explored.press(key)
    wanted = {**before["logits"], "1": round(before["logits"]["1"] + 0.6, 1)}
    explored.until(lambda: explored.look()["logits"] == wanted)
    expected = explored.expected("arborescence")
    explored.until(lambda: explored.times() == pytest.approx(expected.times))
    assert explored.look()["at"] == 0  # the arrows were the slider's
    assert explored.page.get_by_role("slider", name="logit of A→B").count() == 1
    explored.press("Escape")
    explored.press("ArrowRight")
    explored.until(lambda: explored.look()["at"] == 1)


def test_times_stand_where_the_axis_says(explored):
    """x = √t / (1 + √t) of the lane, in its row, on the axis and for the lines alike."""
    explored.page.emulate_media(reduced_motion="reduce")
    explored.open("arborescence")
    for _ in range(6):
        explored.press("ArrowRight")
    places = explored.page.evaluate("""() => {
      const middle = (node) => node.getBoundingClientRect().left + node.getBoundingClientRect().width / 2;
      const lanes = [...document.querySelectorAll(".gx-lane[data-key]")];
      const { left, width } = lanes[0].querySelector(".gx-time").getBoundingClientRect();
      const share = (node) => (middle(node) - left) / width;
      return {
        ticks: [...document.querySelectorAll(".gx-axis b")].map((tick) => [tick.textContent, share(tick)]),
        marks: lanes.map((lane) => [lane.dataset.key, share(lane.querySelector(".gx-mark"))]),
        lines: [".gx-begin", ".gx-end"].map((line) => share(document.querySelector(line))),
      };
    }""")

    def at(time):
        return pytest.approx(time**0.5 / (1 + time**0.5) if time < float("inf") else 1, abs=0.005)

    for tick, x in places["ticks"]:
        assert x == at(float(tick.replace("∞", "inf")))
    run = answer(read({"structure": "arborescence"}))
    frame, spent = run["frames"][6], run["noise"]["spent"][4]  # the first race of a cycle
    begin, moved = max(spent), dict(zip(frame["racing"], (max(spent) - s for s in spent), strict=True))
    assert len(set(spent)) > 1
    times = {key["key"]: time for key, time in zip(run["keys"], run["noise"]["times"], strict=True)}
    for key, x in places["marks"]:
        assert x == at(times[int(key)] + moved.get(int(key), 0))
    assert places["lines"] == [at(begin), at(times[frame["winner"]] + moved[frame["winner"]])]


def test_sizes(explored):
    page = explored.page
    small = explored.after(lambda: page.select_option("[name=n]", "4"))
    assert list(small["logits"]) == ["0", "1", "2", "3"]
    assert page.locator("[name=k] option").all_inner_texts() == ["1", "2", "3", "4"]
    explored.slider(2).fill("3.5")
    page.select_option("[name=k]", "1")
    page.wait_for_selector(".gx[data-last='2']:not([aria-busy])")
    assert explored.look()["logits"]["2"] == 3.5  # of the same keys, so it is kept
    explored.open("arborescence")
    explored.after(lambda: page.select_option("[name=root]", label="C"))
    assert page.locator(".gx-root").text_content() == "C"
    explored.press("End")
    assert {key % 5 for key in explored.look()["drawn"]} == {0, 1, 3, 4}


def test_nothing_is_lost_while_an_answer_is_awaited(explored):
    """Questions that come faster than answers build on each other; those to keys that are to go are forgotten."""
    page, held = explored.page, []

    def hold_one():
        page.route("**/api/run", lambda route: held.append(route), times=1)

    def answer_all():
        """The question that was held until now, and what was asked meanwhile."""
        explored.until(lambda: explored.look() and held)
        held.pop().continue_()
        page.wait_for_selector(".gx:not([aria-busy])")

    hold_one()
    for _ in range(3):
        explored.press("n")
    explored.slider(1).fill("2")
    explored.slider(2).fill("3")
    answer_all()
    assert page.input_value("[name=seed]") == "20"
    expected = explored.expected("subset")
    assert explored.times() == pytest.approx(expected.times)
    assert (expected.dist.logits[1], expected.dist.logits[2]) == (2, 3)
    hold_one()
    page.click("[data-structure=permutation]")
    explored.slider(1).fill("-2")
    answer_all()
    assert page.get_attribute(".gx", "data-ready") == "permutation"
    assert explored.times() == pytest.approx(explored.expected("permutation").times)
    assert explored.look()["logits"]["1"] != -2


def test_a_row_of_the_table_leads_to_its_decision(explored):
    explored.open("matching")
    explored.page.click("[data-to='3']")
    assert explored.look()["at"] == 3
    assert explored.page.evaluate("document.activeElement.dataset.to") == "3"
