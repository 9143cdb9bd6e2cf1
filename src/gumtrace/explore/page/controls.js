// Buttons and fields. They call what they are given and know nothing of runs.
import { element, svg } from "./dom.js";

const STEPS = {
  first: ["To the start", "M4 3v14M16 3L7 10l9 7z"],
  back: ["Back", "M14 3L5 10l9 7z"],
  next: ["Next", "M6 3l9 7-9 7z"],
  last: ["To the end", "M16 3v14M4 3l9 7-9 7z"],
};

export function button(words, act, attributes = {}) {
  return element("button", { type: "button", onclick: act, ...attributes }, words);
}

// Four buttons with a count in their middle: acts has one for each of STEPS.
export class StepButtons {
  constructor(acts) {
    this.count = element("span", { class: "gx-count" });
    this.buttons = Object.entries(STEPS).map(([name, [words, shape]]) => {
      const icon = svg("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, svg("path", { d: shape }));
      return button(icon, acts[name], { class: "gx-step", "aria-label": words, title: words });
    });
    const [first, back, next, last] = this.buttons;
    const group = { class: "gx-steps", role: "group", "aria-label": "Steps" };
    this.element = element("div", group, first, back, this.count, next, last);
  }

  // Not `disabled`: a button that is would lose the focus.
  show(at, last) {
    this.count.textContent = `${at} / ${last}`;
    this.buttons.forEach((node, i) => node.setAttribute("aria-disabled", i < 2 ? at === 0 : at === last));
  }
}

export function noiseButtons(newNoise, redraw) {
  const anew = button("New times", newNoise, { class: "gx-noise", title: "key N" });
  const given = button("New times, same trace (E | T)", redraw, { class: "gx-given", title: "key R" });
  return element("div", { class: "gx-draws", role: "group", "aria-label": "Noise" }, anew, given);
}

export function whyRedraw() {
  const [e, t] = ["E", "T"].map((name) => element("i", {}, name));
  const why = "Other times would have led to the same decisions; E\u00a0|\u00a0T draws some of them.";
  const sentence = ["The noise ", e, ": all times of arrival. The trace ", t, `: all that was decided. ${why}`];
  return element("p", { class: "gx-why" }, ...sentence);
}

export function select({ name, value, choices }, changed, disabled) {
  const items = choices.map(([number, label]) =>
    element("option", { value: number, selected: number === value }, label),
  );
  const act = ({ target }) => changed(Number(target.value));
  return element("label", {}, `${name} `, element("select", { name, onchange: act, disabled }, ...items));
}

export function seedField(seed, seeds, changed) {
  const act = ({ target }) => changed(target.valueAsNumber);
  const settings = { name: "seed", type: "number", min: 0, max: seeds - 1, value: seed, inputmode: "numeric" };
  return element("label", {}, "seed ", element("input", { ...settings, onchange: act }));
}

export function legend() {
  const item = (state, mark, words) => element("span", { "data-state": state }, element("i", { class: mark }), words);
  return element(
    "p",
    { class: "gx-legend", "aria-hidden": "true" },
    item("racing", "gx-mark", "racing"),
    item("idle", "gx-mark", "not in this race"),
    item("wins", "gx-mark", "wins"),
    item("won", "gx-mark", "won before"),
    item("leaves", "gx-mark", "leaves"),
    item("out", "gx-mark", "left before"),
    item(null, "gx-spent", "time before this race"),
    item(null, "gx-ghost", "before the redraw"),
  );
}
