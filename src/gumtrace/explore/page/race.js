// The race: one lane a key, with its logit, its time of arrival and its chance in the present race.
import { element } from "./dom.js";
import { chance } from "./look.js";

const TICKS = [0, 0.01, 0.1, 1, 10, 100];

// All times from 0 to infinity on one line. Half a log scale on both sides of 1: early arrivals are told apart, late ones fit.
const across = (time) => (time > 0 ? 100 / (1 + time ** -0.5) : 0);

export class Race {
  // changed(logits) is called while a slider moves; null where logits cannot be changed.
  constructor(largest, changed) {
    this.largest = largest;
    this.changed = changed;
    this.rows = new Map();
    this.begin = element("i", { class: "gx-begin" });
    this.end = element("i", { class: "gx-end" });
    const lines = element("div", { class: "gx-lines", "aria-hidden": "true" }, this.begin, this.end);
    this.list = element("div", { class: "gx-lanes" });
    this.element = element("div", { class: "gx-field" }, this.list, lines);
  }

  // Keys stay while their names do, so that times and logits move and do not jump.
  // `settled`: no newer logits were asked for, so sliders may be set. `before`: times and clock before a redraw, if this is one.
  show(run, look, settled, before) {
    const names = run.structure + run.keys.map(({ key, label }) => key + label).join();
    if (names !== this.names) this.build(run, names);
    run.keys.forEach(({ key, logit }, i) => {
      const row = this.rows.get(key);
      if (settled) row.slider.value = logit;
      if (settled) this.dress(row, logit);
      this.place(row, run.noise.times[i], look.clock, key);
      if (before) row.ghost.style.left = `${across(zero(before.clock, key) + before.times[i])}%`;
      row.element.dataset.state = look.states.get(key);
      row.element.dataset.time = run.noise.times[i];
      const member = look.frame.racing?.indexOf(key) ?? -1;
      row.chance.textContent = member >= 0 && look.frame.chances ? chance(look.frame.chances[member]) : "";
    });
    const { clock } = look;
    this.begin.classList.toggle("gx-hidden", !clock);
    this.end.classList.toggle("gx-hidden", clock?.end == null);
    if (clock) this.begin.style.left = `${across(clock.begin)}%`;
    if (clock?.end != null) this.end.style.left = `${across(clock.end)}%`;
  }

  build(run, names) {
    this.names = names;
    this.rows.clear();
    const heading = ["key", "logit", "", "time of arrival E", "chance"].map((word) => element("span", {}, word));
    heading[3].append(this.axis());
    this.list.replaceChildren(element("div", { class: "gx-lane gx-heading", "aria-hidden": "true" }, ...heading));
    let group = null;
    for (const { key, label, group: belongs } of run.keys) {
      if (belongs !== group) this.list.append(element("div", { class: "gx-group" }, belongs));
      group = belongs;
      this.list.append(this.row(key, label).element);
    }
  }

  axis() {
    const ticks = [...TICKS, Infinity].map((time) => {
      const tick = element("b", {}, time === Infinity ? "∞" : String(time));
      tick.style.left = time === Infinity ? "100%" : `${across(time)}%`;
      return tick;
    });
    return element("span", { class: "gx-axis" }, ...ticks);
  }

  row(key, label) {
    const settings = {
      min: -this.largest,
      max: this.largest,
      step: 0.1,
      "aria-label": `logit of ${label}`,
      disabled: !this.changed,
    };
    const row = {
      slider: element("input", { type: "range", ...settings, oninput: () => this.dragged(row) }),
      value: element("span", { class: "gx-logit" }),
      spent: element("i", { class: "gx-spent" }),
      run: element("i", { class: "gx-run" }),
      ghost: element("i", { class: "gx-ghost" }),
      mark: element("i", { class: "gx-mark" }),
      chance: element("span", { class: "gx-chance" }),
    };
    const lane = element("span", { class: "gx-time" }, row.spent, row.run, row.ghost, row.mark);
    row.element = element(
      "div",
      { class: "gx-lane", "data-key": key },
      element("span", { class: "gx-key" }, label),
      row.slider,
      row.value,
      lane,
      row.chance,
    );
    this.rows.set(key, row);
    return row;
  }

  dragged(row) {
    this.dress(row, Number(row.slider.value));
    this.changed([...this.rows.values()].map(({ slider }) => Number(slider.value)));
  }

  dress(row, logit) {
    row.slider.style.setProperty("--full", `${(50 * (logit + this.largest)) / this.largest}%`);
    row.value.textContent = logit.toFixed(1).replace("-", "−");
  }

  place(row, time, clock, key) {
    const racing = clock?.spent.has(key);
    const moved = zero(clock, key);
    const from = racing ? clock.begin : 0;
    const arrives = across(moved + time);
    row.element.classList.toggle("gx-in", Boolean(racing));
    row.mark.style.left = `${arrives}%`;
    stretch(row.spent, across(moved), across(from));
    stretch(row.run, across(from), arrives);
    row.element.title = `arrives at ${time.toPrecision(3)}`;
    row.slider.setAttribute("aria-valuetext", `${row.value.textContent}, ${row.element.title}`);
  }
}

// Where a key's own zero is.
const zero = (clock, key) => (clock?.spent.has(key) ? clock.begin - clock.spent.get(key) : 0);

function stretch(bar, from, to) {
  bar.style.left = `${from}%`;
  bar.style.width = `${Math.max(to - from, 0)}%`;
}
