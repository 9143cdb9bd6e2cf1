// Making elements, and the parts that all pictures share.

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function drawing(height, ...children) {
  return svg("svg", { viewBox: `0 0 440 ${height}`, role: "img" }, ...children);
}

export function disc(x, y, r, label, attributes = {}) {
  return svg(
    "g",
    { class: "gx-node", ...attributes },
    svg("circle", { cx: x, cy: y, r }),
    svg("text", { x, y }, label),
  );
}

export function caption(x, y, text) {
  return svg("text", { class: "gx-caption", x, y }, text);
}

export function setStates(nodes, states) {
  for (const node of nodes) node.dataset.state = states.get(Number(node.dataset.key));
}

// Gives a group the children that `wanted` names, id -> how to make it. Those that are there stay as they are.
export function sync(group, wanted) {
  const ids = [...wanted.keys()].map(String);
  const there = new Map([...group.children].map((node) => [node.dataset.id, node]));
  for (const [id, node] of there) if (!ids.includes(id)) node.remove();
  for (const [id, make] of wanted) {
    if (there.has(String(id))) continue;
    const node = make();
    node.dataset.id = id;
    group.append(node);
  }
}
