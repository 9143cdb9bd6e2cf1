// The trace as a table, one row per decision. Rows to come are empty.
import { element } from "./dom.js";
import { chance, logChance } from "./look.js";

export class TraceTable {
  constructor(go) {
    this.go = go;
    this.body = element("tbody");
    const heads = ["", "racing", "first", "P", "log P so far"].map((word) => element("th", { scope: "col" }, word));
    this.element = element(
      "table",
      { class: "gx-trace" },
      element("caption", {}, "The trace T"),
      element("thead", {}, element("tr", {}, ...heads)),
      this.body,
    );
  }

  show(run, { at }) {
    const label = new Map(run.keys.map((key) => [key.key, key.label]));
    const decisions = run.frames.map((frame, i) => ({ ...frame, i })).filter(({ kind }) => kind === "decision");
    const held = this.body.contains(document.activeElement) ? document.activeElement.dataset.to : null;
    this.body.replaceChildren(
      ...decisions.map((frame, number) => this.row(frame, number + 1, frame.i <= at, frame.i === at, label)),
    );
    if (held) this.body.querySelector(`[data-to="${held}"]`)?.focus();
  }

  row(frame, number, known, present, label) {
    const jump = element(
      "button",
      { type: "button", "data-to": frame.i, "aria-label": `to decision ${number}`, onclick: () => this.go(frame.i) },
      String(number),
    );
    const cells = known
      ? [`${frame.racing.length}`, label.get(frame.winner), chance(frame.probability), logChance(frame.running)]
      : ["", "", "", ""];
    const row = element(
      "tr",
      { "aria-current": present ? "step" : null, "data-decision": number },
      element("td", {}, jump),
      ...cells.map((text) => element("td", {}, text)),
    );
    if (known)
      Object.assign(row.dataset, {
        winner: frame.winner,
        probability: frame.probability,
        running: frame.running,
        racing: frame.racing.join(" "),
      });
    if (known) row.children[1].append(element("small", {}, frame.race));
    return row;
  }
}
