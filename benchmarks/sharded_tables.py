"""Tables of what `sharded.py` recorded, for the page on subsets whose keys are on several ranks."""

from recordings import when  # beside this file

WIRE = 1.25e9  # bytes a second: ten gigabits


def table(results: dict) -> str:
    """One row for each number of processes, and a paragraph on what is exchanged."""
    s, where, records = results["settings"], results["machine"], results["records"]
    last = records[-1]
    four, one = (_sent(last, case) for case in ("four_rows", "one_row"))
    a_row = {call: (four[call] - one[call]) // 3 for call in ("sample", "log_prob", "backward")}
    lines = [
        f"{s['k']} of {s['d']:,} keys, one row, float32. CPU milliseconds of the slowest rank, one thread each: the "
        f"least of {s['seeds']} runs for a sample, of {s['repeats']} for the others. Memory of a step (sample, "
        "log-probability, gradient) beyond the logits. Processes keep the memory that they free. By "
        f"`benchmarks/sharded.py` on {where['cpu']}, {where['cores']} cores, {when(where)}.",
        "",
        "| | processes | keys a rank | same traces | sample | log-prob | gradient | noise given trace | memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in records:
        times = (f"{r[name]['least_cpu_ms']:.0f}" for name in ("sample", "log_prob", "backward", "conditional"))
        lines.append(
            f"| {r['structure']} | {r['processes']} | {r['keys_a_rank']:,} | {r['same_traces']} of {s['seeds']} | "
            + " | ".join(times)
            + f" | {r['peak_bytes'] / 1e6:.0f} MB |"
        )
    lines += [
        "",
        f"For each row a rank hands to the others {a_row['sample']:,} bytes for a sample, {a_row['log_prob']:,} for "
        f"its log-probability and {a_row['backward']} for the gradient, and a few for the call: as many with "
        f"{s['small']:,} keys as with {s['d']:,}. A sample of {s['small']:,} keys on {last['processes']} ranks takes "
        f"{last['small']['least_cpu_ms']:.1f} ms of CPU time: what it costs to agree and to merge. Log-probabilities "
        f"differ from those of one process by {max(r['log_prob_gap'] for r in records):.0e} of their size at most.",
    ]
    return "\n".join(lines) + "\n"


def _sent(record: dict, case: str) -> dict[str, int]:
    return {call: sum(sizes) for call, sizes in record["bytes"][case].items()}


MANY = (16, 64, 256, 1024)  # ranks
STEP = {"sample": "sample", "log_prob": "log-prob", "backward": "gradient"}


def scaled(results: dict) -> str:
    """What one rank of many does, and what they exchange; then the same for other numbers of ranks."""
    s, last = results["settings"], results["records"][-1]
    kept, default = (results["one_of_many"][name] for name in ("kept", "default"))
    sent = {name: last["bytes"]["one_row"][name] for name in STEP}
    lines = [
        f"{s['many_keys']:,} keys on {s['many_ranks']} ranks. Measured: time and memory of one process that has the "
        "keys of one such rank, alone in its group; in brackets with the allocator's default settings, where page "
        f"faults are part of the time. Extrapolated: what {s['many_ranks']} ranks exchange, from the bytes counted "
        f"above. Not part of it: the latency of a network, once for each of {sum(map(len, sent.values()))} exchanges, "
        f"and the time to merge {s['many_ranks'] * s['k']:,} winners.",
        "",
        f"| one row, k = {s['k']} | each of {s['many_ranks']} ranks | |",
        "|---|---:|---|",
    ]

    def add(name: str, cell: str, kind: str) -> None:
        lines.append(f"| {name} | {cell} | {kind} |")

    received = _received(sent, s["many_ranks"])
    add("keys", f"{kept['keys']:,}", "")
    add("logits, float32", f"{4e-6 * kept['keys']:,.1f} MB", "computed")
    add("memory of a step beyond them", f"{kept['peak_bytes'] / 1e6:,.0f} MB", "measured")
    for name, words in STEP.items():
        times = [found[name]["least_cpu_ms"] for found in (kept, default)]
        add(f"{words}, CPU time", "{:.0f} ms ({:.0f} ms)".format(*times), "measured")
    add("bytes handed to the others", f"{sum(map(sum, sent.values())):,}", f"measured with {last['processes']} ranks")
    add("bytes received", f"{received:,}", "extrapolated")
    add("their time at 10 Gbit/s", f"{1e3 * received / WIRE:.2f} ms", "extrapolated")
    return "\n".join([*lines, "", *_growth(results, sent)]) + "\n"


def _growth(results: dict, sent: dict[str, list[int]]) -> list[str]:
    """One row for each number of ranks."""
    s, kept = results["settings"], results["one_of_many"]["kept"]
    ms = sum(kept[name]["least_cpu_ms"] for name in STEP)
    lines = [
        f"The same keys on other numbers of ranks. Time (sample, log-probability and gradient) and memory are those "
        f"measured for {kept['keys']:,} keys, in proportion to the keys of a rank; what a call takes whatever its keys "
        f"({results['records'][-1]['small']['least_cpu_ms']:.1f} ms for a sample, above) is not in them, nor is what "
        "the table before leaves out. Each rank hands over the same bytes; it receives those of all.",
        "",
        "| ranks | keys a rank | CPU time | memory | bytes handed over | bytes received | at 10 Gbit/s "
        "| winners to merge |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for ranks in MANY:
        keys = s["many_keys"] // ranks
        share, received = keys / kept["keys"], _received(sent, ranks)
        cells = [f"{ranks:,}", f"{keys:,}", f"{share * ms:,.0f} ms", f"{share * kept['peak_bytes'] / 1e6:,.0f} MB"]
        cells += [f"{sum(map(sum, sent.values())):,}", f"{received:,}", f"{1e3 * received / WIRE:.2f} ms"]
        lines.append(f"| {' | '.join(cells)} | {ranks * s['k']:,} |")
    return lines


def _received(sent: dict[str, list[int]], ranks: int) -> int:
    """Bytes: all get all of a gather; sums go round a ring."""
    first, *sums = sent["log_prob"]
    return ranks * (sum(sent["sample"]) + first) + 2 * sum(sums)
