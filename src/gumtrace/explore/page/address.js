// The page's address says after its # what is shown, so that it is shown again on a reload, and by whoever gets the link.
const PAUSE = 300; // ms: browsers refuse to be told of each step of a drag

// { asked, at } of what an address has after its #, or null if that is nothing. Whatever it says is asked for: who answers refuses what makes no sense.
export function readAddress(hash) {
  if (hash.length < 2) return null;
  const fields = Object.fromEntries(new URLSearchParams(hash.slice(1)));
  const { structure, logits, seed, redraw, step = "0", ...options } = fields;
  const asked = {
    structure,
    options: Object.fromEntries(Object.entries(options).map(([name, text]) => [name, number(text)])),
    logits: logits?.split(",").map(number),
    seed: number(seed),
    redraw: number(redraw),
  };
  return { asked, at: /^\d+$/.test(step) ? Number(step) : 0 }; // past the end it is the end
}

let writing;

// Words are those of a request, but for the options, which stand beside the others.
export function writeAddress({ logits, seed, redraw }, { structure, options }, at) {
  const fields = new URLSearchParams({ structure });
  for (const { name, value } of options) fields.set(name, value);
  if (logits) fields.set("logits", logits.join());
  fields.set("seed", seed);
  if (redraw != null) fields.set("redraw", redraw);
  if (at > 0) fields.set("step", at);
  clearTimeout(writing);
  writing = setTimeout(() => history.replaceState(null, "", `#${String(fields).replaceAll("%2C", ",")}`), PAUSE);
}

// What is no number stays as it is, and is refused as that.
function number(text) {
  return text?.trim() && Number.isFinite(Number(text)) ? Number(text) : text;
}
