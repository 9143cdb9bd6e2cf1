// The explorer: what one sees of a run, and what one can do with it. Numbers and words come with the run.
import { button, legend, noiseButtons, seedField, select, StepButtons, whyRedraw } from "./controls.js";
import { element } from "./dom.js";
import { arborescence, independentSet, spanningTree } from "./graphs.js";
import { chance, clockOf, logChance, lookAt } from "./look.js";
import { Race } from "./race.js";
import { binaryTree, matching, places } from "./rows.js";
import { TraceTable } from "./table.js";

const PICTURES = { arborescence, binaryTree, independentSet, matching, places, spanningTree }; // a story names one of them

// `listener`: whose keys are the explorer's, the whole document or the explorer alone. `first`: what to open, as `open` takes it.
// `tell(asked, run, at)` is called whenever something else is shown.
export async function mount(root, source, listener, first = null, tell = null) {
  const explorer = new Explorer(root, source, tell);
  await explorer.guard(async () => {
    explorer.build(await source.catalogue());
    listener.addEventListener("keydown", (event) => explorer.key(event));
  });
  await explorer.open(first);
  return explorer;
}

class Explorer {
  constructor(root, source, tell) {
    this.root = root;
    this.source = source;
    this.tell = tell;
    this.at = 0; // the frame that is shown
  }

  // Asking ------------------------------------------------------------------------------------------

  // Asks for a run and shows it at frame `at`. While one answer is awaited only the latest question waits. `this.asked` is the
  // latest question, or what is shown if that was refused: structure, options, logits, seed, redraw.
  async ask(asked, at = 0) {
    this.asked = asked;
    this.waiting = { asked, at };
    if (this.busy) return;
    this.busy = true;
    this.root.setAttribute("aria-busy", "true");
    while (this.waiting) {
      const question = this.waiting;
      this.waiting = null;
      await this.guard(async () => this.take(question.asked, await this.source.run(question.asked), question.at));
      if (!this.waiting) this.asked = this.shown;
    }
    this.busy = this.turning = false;
    this.root.removeAttribute("aria-busy");
  }

  // Asks for other keys. What is done to the present ones until they come has no effect.
  turn(asked, at = 0) {
    this.turning = true;
    return this.ask(asked, at);
  }

  // Shows { asked, at }, or what one starts with: that too if the first that is asked for is refused, and then why.
  async open(wanted) {
    if (!this.tabs) return; // there was no catalogue to build them from
    const start = { asked: { structure: this.root.dataset.structure ?? "subset" }, at: 0 };
    const { asked, at } = wanted ?? start;
    await this.turn(asked, at);
    if (this.run) return;
    const why = this.problem.textContent;
    await this.turn(start.asked);
    this.problem.textContent = why;
  }

  // Asks for the same run but for some changes. Who is at the end stays there.
  change(changes) {
    if (this.turning) return;
    const atEnd = this.at === this.run.frames.length - 1;
    return this.ask({ ...this.asked, ...changes }, atEnd ? Infinity : this.at);
  }

  newNoise() {
    return this.change({ seed: (this.asked.seed + 1) % this.seeds, redraw: null });
  }

  // A redraw is given the trace, which other logits may change.
  setLogits(logits) {
    return this.change({ logits, redraw: null });
  }

  redraw() {
    return this.change({ redraw: (this.asked.redraw ?? 0) + 1 });
  }

  // Options after the one that is set get their defaults, for their bounds may depend on it.
  setOption(place, value) {
    const { options, structure } = this.run;
    const before = options.slice(0, place).map((option) => [option.name, option.value]);
    const changed = Object.fromEntries([...before, [options[place].name, value]]);
    if (options[place].resizes) return this.turn({ structure, options: changed, seed: this.asked.seed });
    return this.change({ options: changed, redraw: null });
  }

  take(asked, run, at) {
    const shown = { ...asked, seed: run.seed, redraw: run.redraw };
    this.before = run.redraw != null && butForRedraw(this.shown) === butForRedraw(shown) ? this.run.noise : null;
    this.run = run;
    this.shown = shown;
    this.drawn = PICTURES[run.picture.drawn](run);
    this.picture.replaceChildren(this.drawn.picture);
    this.settings();
    this.go(at);
  }

  async guard(work) {
    try {
      await work();
      this.problem?.replaceChildren();
    } catch (error) {
      if (!this.problem) this.root.replaceChildren((this.problem = problem()));
      this.problem.textContent = error.message;
    }
  }

  // Showing -----------------------------------------------------------------------------------------

  build({ structures, largest_logit: largest, seeds }) {
    this.seeds = seeds;
    this.rules = new Map(structures.map(({ name, rule }) => [name, rule]));
    this.tabs = structures.map(({ name, title }) =>
      button(title, () => this.turn({ structure: name }), { "data-structure": name }),
    );
    this.steps = new StepButtons({
      first: () => this.go(0),
      back: () => this.go(this.at - 1),
      next: () => this.go(this.at + 1),
      last: () => this.go(Infinity),
    });
    this.race = new Race(largest, this.source.live ? (logits) => this.setLogits(logits) : null);
    this.table = new TraceTable((at) => this.go(at));
    this.rule = element("p", { class: "gx-rule" });
    this.options = element("div", { class: "gx-options" });
    this.problem = problem();
    this.text = element("p", { class: "gx-text" });
    this.note = element("p", { class: "gx-note" });
    this.numbers = element("div", { class: "gx-numbers" });
    this.picture = element("figure", { class: "gx-picture" });
    const draws = noiseButtons(
      () => this.newNoise(),
      () => this.redraw(),
    );
    const lanes = element("div", { class: "gx-race" }, this.race.element, legend(), this.hint());
    this.root.replaceChildren(
      element("nav", { class: "gx-structures", "aria-label": "Structures" }, ...this.tabs),
      element("div", { class: "gx-about" }, this.rule, this.options),
      element("div", { class: "gx-bar" }, this.steps.element, draws),
      whyRedraw(),
      this.problem,
      element("div", { class: "gx-story", role: "status" }, this.text, this.note),
      element("div", { class: "gx-main" }, this.picture, this.numbers, lanes, this.table.element),
    );
    for (const type of ["pointerover", "focusin", "focusout"]) {
      this.root.addEventListener(type, (event) => this.near(event));
    }
  }

  hint() {
    const hint = { class: "gx-hint" };
    if (!this.source.live) {
      const command = element("code", {}, "gumtrace explore");
      return element("p", hint, element("span", {}, "These runs were recorded. Run ", command, " to drag the logits."));
    }
    const equal = button("Make all equal", () => this.setLogits(this.run.keys.map(() => 0)));
    return element(
      "p",
      hint,
      "Drag a logit. ",
      equal,
      button("As at first", () => this.setLogits(null)),
    );
  }

  // What does not change from frame to frame. A field that has the focus keeps it.
  settings() {
    const { run, source } = this;
    for (const tab of this.tabs) tab.setAttribute("aria-pressed", tab.dataset.structure === run.structure);
    this.rule.textContent = this.rules.get(run.structure);
    const held = this.options.contains(document.activeElement) ? document.activeElement.name : null;
    const fields = run.options.map((option, i) => select(option, (value) => this.setOption(i, value), !source.live));
    if (source.live) fields.push(seedField(run.seed, this.seeds, (seed) => this.change({ seed, redraw: null })));
    this.options.replaceChildren(...fields);
    if (held) this.options.querySelector(`[name="${held}"]`)?.focus();
  }

  go(at) {
    const { run } = this;
    const last = run.frames.length - 1;
    this.at = Math.min(Math.max(at, 0), last);
    const look = lookAt(run, this.at);
    const before = this.before && { times: this.before.times, clock: clockOf({ ...run, noise: this.before }, this.at) };
    Object.assign(this.root.dataset, { at: this.at, last, kind: look.frame.kind, ready: run.structure });
    this.steps.show(this.at, last);
    this.text.textContent = look.frame.text;
    this.note.textContent = redrawn(run);
    this.note.classList.toggle("gx-broken", run.noise.same_trace === false);
    this.drawn.show(look);
    this.drawn.picture.setAttribute("aria-label", `${run.title}: ${look.frame.text}`);
    this.race.show(run, look, !this.waiting, before);
    this.root.toggleAttribute("data-redrawn", before != null);
    this.table.show(run, look);
    this.numbers.replaceChildren(...figures(run, look));
    this.tell?.(this.shown, run, this.at);
  }

  // Marks all that belongs to the key under the pointer or with the focus.
  near({ target, type }) {
    const key = target.closest("[data-key]")?.dataset.key;
    for (const node of this.root.querySelectorAll(".gx-near")) node.classList.remove("gx-near");
    if (key == null || type === "focusout") return;
    for (const node of this.root.querySelectorAll(`[data-key="${key}"]`)) node.classList.add("gx-near");
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.run) return;
    const field = event.target.closest?.("input, select");
    if (field && event.key === "Escape") return field.blur();
    if (field && (field.type !== "range" || !/^[nr]$/i.test(event.key))) return;
    const acts = {
      arrowright: () => this.go(this.at + 1),
      arrowleft: () => this.go(this.at - 1),
      home: () => this.go(0),
      end: () => this.go(Infinity),
      n: () => this.newNoise(),
      r: () => this.redraw(),
    };
    const act = acts[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  }
}

const problem = () => element("p", { class: "gx-problem", role: "alert" });

// Two runs for which this is the same have the same trace.
const butForRedraw = (asked) => JSON.stringify({ ...asked, redraw: null });

function figures(run, { frame, at }) {
  const figure = (name, words, p, more) => {
    const number = element("span", { class: "gx-number" }, p);
    return element("div", { "data-figure": name, ...more }, element("span", {}, words), number);
  };
  const withLog = (name, words, x) => {
    const shown = figure(name, words, chance(Math.exp(x)), { "data-value": x });
    shown.append(element("small", {}, `log P = ${logChance(x)}`));
    return shown;
  };
  const { probability: p, running } = frame;
  const decision = figure("decision", "this decision", p == null ? "–" : chance(p), { "data-value": p });
  const known = run.structure_log_prob;
  const later = (words, more = "") => {
    const shown = figure("structure", "the structure", words, { class: "gx-later" });
    shown.append(element("small", {}, more));
    return shown;
  };
  if (at < run.frames.length - 1) return [decision, withLog("trace", "the trace so far", running), later("at the end")];
  const whole =
    known == null ? later("not known", "its traces are not summed") : withLog("structure", "the structure", known);
  return [decision, withLog("trace", "the trace", running), whole];
}

function redrawn({ redraw, noise }) {
  if (redraw == null) return "";
  const times = ["once", "twice"][redraw - 1] ?? `${redraw} times`;
  const again = noise.same_trace
    ? "Run again on it, the algorithm made the same decisions."
    : "Run again on it, the algorithm went another way: the draw was lost to rounding.";
  return `The noise E was drawn again ${times}, given the trace T. ${again}`;
}
