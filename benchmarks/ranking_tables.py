"""Tables of what ranking.py recorded."""

from recordings import when  # beside this file


def noise(results: dict) -> str:
    """One row for each kind of scores."""
    samples, replicates = (results["settings"][name] for name in ("samples", "replicates"))
    lines = [
        f"Standard deviation of the gradient for DCG@10 of 100 items, K = {samples}, relative to T-REINFORCE+'s, over "
        f"{replicates:,} estimates. By `benchmarks/ranking.py`, {when(results['machine'])}.",
        "",
        "| | loss to go | and the mean over keys that race |",
        "|---|---:|---:|",
    ]
    lines += [f"| {r['list']} | {r['to_go']:.2f} | {r['exact']:.2f} |" for r in results["noise"]]
    return "\n".join(lines) + "\n"


def cost(results: dict) -> str:
    """A sentence."""
    cost, s = results["cost"], results["settings"]
    return (
        f"A step for {s['cost_lists']} lists of 100, the first 10 of them, K = {s['samples']}, on one core: "
        f"{cost['decision_ms']:.0f} ms, and {cost['trace_ms']:.0f} ms with TraceREINFORCE, measured in turn; "
        f"{cost['ratio']:.2f} times as much.\n"
    )


def table(results: dict) -> str:
    """One row for each loss, NDCG@10 at three times for each task."""
    records, s = results["training"], results["settings"]
    names = list(dict.fromkeys(r["task"] for r in records))
    shown = (2, s["checkpoints"] // 2, s["checkpoints"])
    budgets = {name: next(r for r in records if r["task"] == name)["curves"][0][-1][0] for name in names}
    kinds = ", ".join(f"{r['samples']} ({r['task']})" for r in records if r["loss"] == records[0]["loss"])
    heads = [f"{name}, {budgets[name] * i / s['checkpoints']:.1f} s" for name in names for i in shown]
    lines = [
        f"NDCG@10 of test lists after CPU seconds of training on one core, {s['lists']} lists a step, K = "
        f"{kinds}; means of {s['seeds']} runs, behind the last one the range. By "
        f"`benchmarks/ranking.py`, {when(results['machine'])}.",
        "",
        "| | " + " | ".join(heads) + " |",
        "|---|" + "---:|" * len(heads),
    ]
    for loss in dict.fromkeys(r["loss"] for r in records):
        cells = []
        for name in names:
            runs = next(r for r in records if (r["task"], r["loss"]) == (name, loss))["curves"]
            cells += [f"{sum(run[i][1] for run in runs) / len(runs):.3f}" for i in shown]
            ends = sorted(run[-1][1] for run in runs)
            cells[-1] += f" ({ends[0]:.3f} to {ends[-1]:.3f})"
        lines.append(f"| {loss} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
