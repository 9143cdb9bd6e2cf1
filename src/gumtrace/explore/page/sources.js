// Where runs come from. Both kinds of source have `live`, `catalogue()` and `run(asked)`.
const SILENT = "No answer. Is the command gumtrace explore still running?";

export function live() {
  return {
    live: true,
    catalogue: () => read("api/structures", SILENT),
    run: (asked) =>
      read("api/run", SILENT, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(asked),
      }),
  };
}

// A folder as gumtrace.explore.precompute writes it: one file per structure, a few runs in each.
export function recorded(folder) {
  const files = new Map();
  const load = (name) => {
    if (!files.has(name)) files.set(name, read(new URL(name, folder), `${name} could not be loaded.`));
    return files.get(name);
  };
  return {
    live: false,
    catalogue: () => load("catalogue.json"),
    async run({ structure, seed, redraw }) {
      const { runs } = await load(`${structure}.json`);
      const found = runs.find((one) => one.run.seed === seed) ?? runs[0]; // after the last comes the first
      if (redraw == null) return found.run;
      const place = (redraw - 1) % found.redraws.length;
      return { ...found.run, redraw: place + 1, noise: found.redraws[place] };
    },
  };
}

// `lost`: what to say if no answer comes.
async function read(address, lost, settings) {
  let response;
  try {
    response = await fetch(address, settings);
  } catch {
    throw new Error(lost);
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `The server answered ${response.status}.`);
  return answer;
}
