"""The explorer's page as tests see it: what it shows, and how to wait for it."""

import time

import pytest
from exploring import Expected

# Seconds to wait for what is to be seen. The first run of a structure compiles its kernels: seconds, or on a busy
# machine a minute.
PATIENCE = 120.0

# All that is to be seen at a frame, read off the page.
READ = """() => {
  const root = document.querySelector(".gx");
  const all = (selector) => [...root.querySelectorAll(selector)];
  const lanes = all(".gx-lane[data-key]");
  const byKey = (read) => Object.fromEntries(lanes.map((lane) => [lane.dataset.key, read(lane)]));
  const number = (name) => {
    const figure = root.querySelector(`[data-figure="${name}"]`);
    const [, text, more = ""] = [...figure.children].map((node) => node.textContent);
    return { value: figure.dataset.value, text, more };
  };
  const inPicture = all(".gx-picture [data-key]:is([data-state=won], [data-state=wins])");
  return {
    at: Number(root.dataset.at),
    kind: root.dataset.kind,
    text: root.querySelector(".gx-text").textContent,
    note: root.querySelector(".gx-note").textContent,
    states: byKey((lane) => lane.dataset.state),
    logits: byKey((lane) => Number(lane.querySelector("input").value)),
    times: byKey((lane) => Number(lane.dataset.time)),
    chances: byKey((lane) => lane.querySelector(".gx-chance").textContent),
    drawn: inPicture.map((node) => Number(node.dataset.key)).sort((a, b) => a - b),
    cycles: all(".gx-cycles path").map((shape) => shape.dataset.id).sort(),
    lines: all(".gx-picture .gx-link").map((line) => line.dataset.id).sort(),
    decision: number("decision"),
    trace: number("trace"),
    structure: number("structure"),
    rows: all(".gx-trace tr[data-winner]").map((row) => ({
      ...row.dataset,
      texts: [...row.cells].map((cell) => cell.textContent),
    })),
  };
}"""


class Explored:
    """A page with the explorer on it."""

    def __init__(self, page):
        self.page = page
        self.press = page.keyboard.press

    def look(self) -> dict:
        return self.page.evaluate(READ)

    def open(self, structure: str) -> None:
        self.page.click(f".gx-structures [data-structure={structure}]")
        self.page.wait_for_selector(f".gx[data-ready={structure}]:not([aria-busy])")

    def after(self, act) -> dict:
        """What is to be seen once the run that an action asks for is there: other times, and nothing under way."""
        before = self.times()
        act()
        self.until(lambda: self.times() != before)
        self.page.wait_for_selector(".gx:not([aria-busy])")
        return self.look()

    def times(self) -> dict[str, float]:
        return self.look()["times"]

    def until(self, true) -> None:
        """Waits. Playwright's own way of waiting for a condition evaluates strings, which the page forbids."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"waited in vain; the page shows {self.look()}"
            time.sleep(0.01)

    def slider(self, key: int):
        return self.page.locator(f".gx-lane[data-key='{key}'] input")

    def expected(self, structure: str) -> Expected:
        """The run that should be seen, for the logits and the seed that are seen."""
        logits = {int(key): logit for key, logit in self.look()["logits"].items()}
        return Expected(structure, logits, int(self.page.input_value("[name=seed]")))


def drawn(seen: dict, structure: str) -> set:
    """The structure as the picture has it, in the form of `Expected.drawn`."""
    return set(seen["lines"] if structure in ("permutation", "binary-tree") else seen["drawn"])


def check_numbers(seen, decided, step):
    """After these decisions, the last of which is the present one unless step is None."""
    running = decided[-1].running if decided else 0.0
    assert float(seen["trace"]["value"]) == pytest.approx(running, abs=1e-12)
    assert seen["trace"]["more"] == f"log P = {running:.3f}".replace("-", "−")
    assert seen["decision"]["text"] == (shown(step.probability) if step else "–")
    assert seen["decision"]["value"] is None if step is None else float(seen["decision"]["value"]) == step.probability
    for row, past in zip(seen["rows"], decided, strict=True):
        assert int(row["winner"]) == past.winner
        assert list(map(int, row["racing"].split())) == list(past.racing)
        assert float(row["probability"]) == pytest.approx(past.probability)
        assert float(row["running"]) == pytest.approx(past.running)
        assert row["texts"][3:] == [shown(past.probability), f"{past.running:.3f}".replace("-", "−")]


def check_race(seen, step, removed):
    """Who races, who wins and what leaves; and everybody's chance."""
    states = {
        state: {int(key) for key in seen["states"] if seen["states"][key] == state} for state in seen["states"].values()
    }
    assert states["wins"] == {step.winner}
    assert states.get("leaves", set()) == removed
    assert states.get("racing", set()) == set(step.racing) - {step.winner} - removed
    assert {int(key) for key, text in seen["chances"].items() if text} == set(step.racing)
    assert seen["chances"][str(step.winner)] == shown(step.probability)


def shown(p):
    if p >= 0.001:
        return f"{p:.3f}"
    digits, _, power = f"{p:.1e}".partition("e-")
    return f"{digits} × 10⁻{''.join('⁰¹²³⁴⁵⁶⁷⁸⁹'[int(c)] for c in str(int(power)))}"
