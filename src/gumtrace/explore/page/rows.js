// Pictures of subsets, permutations, matchings and binary trees. A picture is made once for a run; show(look) is one frame of it.
import { caption, disc, drawing, setStates, svg, sync } from "./dom.js";

// Keys on the left, places on the right, and a line from a key to the place it took.
export function places(run) {
  const [height, left, right] = [30, 110, 330];
  const count = run.keys.length;
  const slots = run.frames.filter(({ kind }) => kind === "decision").length;
  const y = (i) => 34 + height * i;
  const slotY = (i) => y(i + (count - slots) / 2); // fewer places than keys: in the middle
  const links = svg("g");
  const keys = run.keys.map(({ key, label }, i) => disc(left, y(i), 11, label, { "data-key": key }));
  const rings = Array.from({ length: slots }, (_, i) => disc(right, slotY(i), 11, i + 1, { class: "gx-node gx-slot" }));
  const words = [caption(left, 12, "key"), caption(right, 12, "order of choice")];
  const link = (key, place) => {
    const [from, to, bend] = [y(run.keys.findIndex((one) => one.key === key)), slotY(place), (left + right) / 2];
    const d = `M${left + 12} ${from}C${bend} ${from} ${bend} ${to} ${right - 12} ${to}`;
    return svg("path", { class: "gx-link", d });
  };
  return {
    picture: drawing(y(count - 1) + 30, ...words, links, ...rings, ...keys),
    show({ states, winners }) {
      setStates(keys, states);
      rings.forEach((ring, i) => (ring.dataset.state = states.get(winners[i]) ?? "idle"));
      sync(links, new Map(winners.map((key, place) => [`${key}-${place}`, () => link(key, place)])));
    },
  };
}

export function matching(run) {
  const { rows, columns } = run.picture;
  const size = Math.min(62, 330 / Math.max(rows.length, columns.length));
  const [left, top] = [230 - (size * columns.length) / 2, 34];
  const cells = run.keys.map(({ key, label }) => {
    const [x, y] = [left + size * (key % columns.length), top + size * Math.floor(key / columns.length)];
    const box = svg("rect", { x: x + 2, y: y + 2, width: size - 4, height: size - 4, rx: 5 });
    const text = svg("text", { x: x + size / 2, y: y + size / 2 });
    return svg("g", { class: "gx-cell", "data-key": key }, svg("title", {}, label), box, text);
  });
  const names = [
    ...rows.map((name, i) => caption(left - 16, top + size * (i + 0.5), name)),
    ...columns.map((name, j) => caption(left + size * (j + 0.5), 20, name)),
  ];
  return {
    picture: drawing(top + size * rows.length + 10, ...names, ...cells),
    show({ states, winners }) {
      setStates(cells, states);
      for (const cell of cells) {
        const order = winners.indexOf(Number(cell.dataset.key));
        cell.lastChild.textContent = order >= 0 ? order + 1 : cell.dataset.state === "leaves" ? "×" : "";
      }
    },
  };
}

// Words from left to right, each as deep as it hangs once its gap has chosen it; words still to be placed wait below.
export function binaryTree(run) {
  const parents = run.value;
  const depth = (v) => (parents[v] < 0 ? 0 : 1 + depth(parents[v]));
  const deepest = Math.max(...parents.map((_, v) => depth(v)));
  const step = Math.min(70, 420 / parents.length);
  const drop = Math.min(52, 250 / Math.max(deepest, 1));
  const x = (v) => 220 + step * (v - (parents.length - 1) / 2);
  const y = (v) => 24 + drop * depth(v);
  const ground = 86 + drop * deepest;
  const tilted = step < 46; // long words would meet
  const links = svg("g");
  const gap = svg("path", { class: "gx-gap" });
  const stems = run.keys.map(({ key }) => svg("path", { class: "gx-stem", d: `M${x(key)} ${y(key)}V${ground - 3}` }));
  const dots = run.keys.map(({ key }) => svg("circle", { "data-key": key, cx: x(key), r: 9 }));
  const words = run.keys.map(({ key, label }) => {
    const place = { x: x(key), y: ground + 12, transform: tilted ? `rotate(-40 ${x(key)} ${ground + 12})` : null };
    return svg("text", { class: tilted ? "gx-tilted" : null, "data-key": key, ...place }, label);
  });
  const link = (v) => svg("path", { class: "gx-link", d: `M${x(parents[v])} ${y(parents[v])}L${x(v)} ${y(v)}` });
  return {
    picture: drawing(ground + (tilted ? 56 : 34), ...stems, gap, links, ...dots, ...words),
    show({ states, winners, frame }) {
      setStates([...dots, ...words], states);
      dots.forEach((dot, v) => dot.setAttribute("cy", winners.includes(v) ? y(v) : ground - 16));
      stems.forEach((stem, v) => stem.classList.toggle("gx-hidden", !winners.includes(v)));
      const below = winners.filter((v) => parents[v] >= 0);
      sync(links, new Map(below.map((v) => [`${parents[v]}-${v}`, () => link(v)])));
      gap.classList.toggle("gx-hidden", !frame.racing);
      if (!frame.racing) return;
      const [from, to] = [x(Math.min(...frame.racing)) - 0.4 * step, x(Math.max(...frame.racing)) + 0.4 * step];
      gap.setAttribute("d", `M${from} ${ground - 1}v6H${to}v-6`);
    },
  };
}
