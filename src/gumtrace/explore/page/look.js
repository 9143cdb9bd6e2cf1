// What is to be seen at one frame of a run: the state of every key, and what was decided so far.
//
// States: idle (not in this race), racing, wins (now), won (before), leaves (now), out (before), drops (now), dropped (before).

export function lookAt(run, at) {
  const states = new Map(run.keys.map(({ key }) => [key, "idle"]));
  const now = run.frames[at];
  const winners = [];
  let contracted = [];
  run.frames.slice(0, at + 1).forEach((frame, i) => {
    const present = i === at && frame.kind !== "end";
    for (const key of frame.removed) states.set(key, present ? "leaves" : "out");
    if (frame.kind === "decision") {
      states.set(frame.winner, present ? "wins" : "won");
      winners.push(frame.winner);
    }
    if (frame.kind === "contraction") contracted.push(frame);
    if (frame.kind === "opening") {
      states.set(frame.dropped, present ? "drops" : "dropped");
      contracted = contracted.filter(({ nodes }) => nodes.join() !== frame.nodes.join());
    }
  });
  for (const key of now.racing ?? []) if (states.get(key) === "idle") states.set(key, "racing");
  return { at, frame: now, states, winners, contracted, clock: clockOf(run, at) };
}

// When the present race begins and ends, and what its keys had spent of their times in earlier races. Rows are moved so that it
// begins at one moment for all of them. A race that is only about to begin has no end.
export function clockOf({ frames, noise, keys }, at) {
  const { kind, racing, winner } = frames[at];
  if (!racing) return null;
  const decision = frames.slice(0, at).filter((frame) => frame.kind === "decision").length;
  const spent = new Map(racing.map((key, i) => [key, kind === "start" ? 0 : noise.spent[decision][i]]));
  const begin = Math.max(...spent.values());
  const time = noise.times[keys.findIndex(({ key }) => key === winner)];
  return { spent, begin, end: kind === "decision" ? begin + time - spent.get(winner) : null };
}

export function chance(p) {
  if (p >= 0.001) return p.toFixed(3);
  const [digits, power] = p.toExponential(1).split("e");
  const small = [...String(Number(power))].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  return `${digits} × 10${small}`;
}

export const logChance = (x) => (x === 0 ? "0.000" : x.toFixed(3).replace("-", "−"));
