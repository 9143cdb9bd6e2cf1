// Pictures of spanning trees, arborescences and independent sets: nodes on a circle, as in rows.js.
import { disc, drawing, setStates, svg, sync } from "./dom.js";

const [MIDDLE, RADIUS, NODE, HEIGHT] = [[220, 178], 138, 15, 356];

function circle(count) {
  return Array.from({ length: count }, (_, v) => {
    const turn = (2 * Math.PI * v) / count - Math.PI / 2;
    return [MIDDLE[0] + RADIUS * Math.cos(turn), MIDDLE[1] + RADIUS * Math.sin(turn)];
  });
}

export function spanningTree(run) {
  const names = run.picture.nodes;
  const at = circle(names.length);
  const ends = (key) => [at[Math.floor(key / names.length)], at[key % names.length]];
  const line = (key) => ends(key).map(String).join("L");
  const edges = run.keys.map(({ key, label }) =>
    svg("path", { class: "gx-edge", "data-key": key, d: `M${line(key)}` }, svg("title", {}, label)),
  );
  const tree = run.frames.filter(({ kind }) => kind === "decision").map(({ winner }) => winner);
  const number = (key, i) => {
    const others = tree.filter((other) => other !== key).map(ends);
    const [x, y] = freePlace(...ends(key), at, others);
    return svg("g", { class: "gx-badge" }, svg("circle", { cx: x, cy: y, r: 8.5 }), svg("text", { x, y }, i + 1));
  };
  const [parts, numbers] = [svg("g", { class: "gx-parts" }), svg("g")];
  const nodes = names.map((name, v) => disc(...at[v], NODE, name));
  return {
    picture: drawing(HEIGHT, parts, svg("g", {}, ...edges), numbers, ...nodes),
    show({ states, winners }) {
      setStates(edges, states);
      edges.forEach(raise);
      sync(parts, new Map(winners.map((key) => [key, () => svg("path", { d: `M${line(key)}` })])));
      sync(numbers, new Map(winners.map((key, i) => [key, () => number(key, i)])));
    },
  };
}

export function independentSet(run) {
  const { edges } = run.picture;
  const at = circle(run.keys.length);
  const lines = edges.map(([u, v]) => svg("path", { class: "gx-graph", d: `M${at[u]}L${at[v]}` }));
  const nodes = run.keys.map(({ key, label }) => disc(...at[key], NODE, label, { "data-key": key }));
  return {
    picture: drawing(HEIGHT, ...lines, ...nodes),
    show({ states, winners }) {
      setStates(nodes, states);
      const tied = ([u, v]) => winners.includes(u) || winners.includes(v);
      lines.forEach((line, i) => line.classList.toggle("gx-tied", tied(edges[i])));
    },
  };
}

// Edges bend to their left, so that both directions are seen. A contracted cycle is one shape around its nodes: they lie on a
// circle, so that no other node is inside.
export function arborescence(run) {
  const { nodes: names, root } = run.picture;
  const at = circle(names.length);
  const edges = run.keys.map(({ key, label }) => {
    const [line, head] = arrow(at[Math.floor(key / names.length)], at[key % names.length]);
    const parts = [svg("title", {}, label), svg("path", { class: "gx-edge", d: line })];
    return svg("g", { "data-key": key }, ...parts, svg("path", { class: "gx-head", d: head }));
  });
  const cycles = svg("g", { class: "gx-cycles" });
  const around = (nodes, inner) => {
    const corners = nodes.map((v) => at[v]).join("L");
    return svg("path", { d: `M${corners}Z`, "stroke-width": 2 * (NODE + 7 + 8 * inner) });
  };
  const nodes = names.map((name, v) => disc(...at[v], NODE, name, { class: `gx-node ${v === root ? "gx-root" : ""}` }));
  return {
    picture: drawing(HEIGHT, cycles, svg("g", {}, ...edges), ...nodes),
    show({ states, contracted, frame }) {
      setStates(edges, states);
      edges.forEach(raise);
      const inside = (cycle) => contracted.filter((other) => other !== cycle && cycle.nodes.includes(other.nodes[0]));
      const shape = (cycle) =>
        around(cycle.nodes, inside(cycle).filter((c) => c.nodes.length < cycle.nodes.length).length);
      sync(cycles, new Map(contracted.map((cycle) => [cycle.nodes.join(), () => shape(cycle)])));
      const into = new Set(frame.kind === "start" ? [] : frame.racing?.map((key) => key % names.length));
      nodes.forEach((node, v) => node.classList.toggle("gx-target", into.has(v)));
    },
  };
}

// The paths of a bent line and of the arrow's head at its end.
function arrow(from, to) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const middle = [(from[0] + to[0]) / 2 + 0.13 * dy, (from[1] + to[1]) / 2 - 0.13 * dx];
  const start = towards(from, middle, NODE + 1);
  const tip = towards(to, middle, NODE + 2);
  const neck = towards(tip, middle, 9);
  const [ax, ay] = [(tip[0] - neck[0]) / 2, (tip[1] - neck[1]) / 2]; // half as wide as it is long
  const head = `M${tip}L${neck[0] - ay} ${neck[1] + ax}L${neck[0] + ay} ${neck[1] - ax}Z`;
  return [`M${start}Q${middle} ${neck}`, head];
}

function towards(point, other, distance) {
  const share = distance / Math.hypot(other[0] - point[0], other[1] - point[1]);
  return [point[0] + share * (other[0] - point[0]), point[1] + share * (other[1] - point[1])];
}

// What happens now is drawn over the rest. Only that is moved: what is put into the page anew has no transition.
function raise(edge) {
  if (["wins", "drops"].includes(edge.dataset.state) && edge.nextSibling) edge.parentNode.append(edge);
}

// The point of an edge that is farthest from nodes and from the other edges of the tree; the middle if it is no worse.
function freePlace(from, to, nodes, others) {
  const point = (share) => [from[0] + share * (to[0] - from[0]), from[1] + share * (to[1] - from[1])];
  const room = (share) => {
    const here = point(share);
    const gaps = nodes.map((node) => Math.hypot(here[0] - node[0], here[1] - node[1]));
    const aside = others.map(([a, b]) => 12 + 0.8 * distance(here, a, b));
    return Math.min(45, ...gaps, ...aside) - 6 * Math.abs(share - 0.5);
  };
  const shares = Array.from({ length: 21 }, (_, i) => 0.25 + 0.025 * i);
  return point(shares.reduce((best, share) => (room(share) > room(best) ? share : best), 0.5));
}

function distance(point, a, b) {
  const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
  const along = ((point[0] - a[0]) * dx + (point[1] - a[1]) * dy) / (dx * dx + dy * dy);
  const share = Math.min(1, Math.max(0, along));
  return Math.hypot(point[0] - a[0] - share * dx, point[1] - a[1] - share * dy);
}
