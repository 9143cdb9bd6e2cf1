"""Tables of what first_result.py and compile_time.py recorded."""

from recordings import when  # beside this file


def first_result(results: dict) -> str:
    """One row for each structure, seconds."""
    machine = results["machine"]
    lines = [
        "Seconds from the end of `import torch` to the first sample, the first TraceREINFORCE step and the first "
        "relaxed step, float32, with nothing compiled; then to the last of these with everything compiled, and with "
        "nothing compiled for the slowest of four processes that start at once. By `benchmarks/first_result.py` on "
        f"{machine['cpu']}, {machine['threads']} threads, {when(machine)}.",
        "",
        "| | sample | step | relaxed step | compiled before | slowest of four |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for record in results["records"]:
        cold = (record["cold"].get(name) for name in ("sample", "step", "relaxed"))
        cold = ["" if seconds is None else f"{seconds:.1f}" for seconds in cold]
        rest = [f"{max(record['warm'].values()):.1f}", f"{record['slowest_of_four']:.1f}"]
        lines.append(f"| {record['structure']} | " + " | ".join([*cold, *rest]) + " |")
    return "\n".join(lines) + "\n"


COMPILING = {  # part of the compiler: row of the table
    "optimisation": "LLVM: optimisation",
    "code generation": "LLVM: code generation",
    "linking": "LLVM: linking",
    "text of IR": "writing IR as text, and reading it",
    "lowering": "Numba: lowering to IR",
    "typing": "Numba: typing",
    "other passes": "Numba: other passes",
}  # and all others by their names


def compile_time(results: dict) -> str:
    """One row for each part of the compiler, CPU seconds."""
    machine, records = results["machine"], results["records"]
    sizes = (
        f"{r['structure']} {r['functions']} functions, the largest of which, `{r['largest']}`, takes "
        f"{r['largest_seconds']:.1f} s with LLVM's work on all that it is made of"
        for r in records
    )
    lines = [
        "CPU seconds from the end of `import torch` to the end of a first TraceREINFORCE step, float32, with nothing "
        f"compiled. It compiles for {'; for '.join(sizes)}. By `benchmarks/compile_time.py` on {machine['cpu']}, "
        f"{when(machine)}.",
        "",
        "| | " + " | ".join(r["structure"] for r in records) + " |",
        "|---|" + "---:|" * len(records),
    ]
    for part in records[0]["seconds"]:
        lines.append(
            f"| {COMPILING.get(part, part)} | " + " | ".join(f"{r['seconds'][part]:.1f}" for r in records) + " |"
        )
    lines.append("| together | " + " | ".join(f"{sum(r['seconds'].values()):.1f}" for r in records) + " |")
    return "\n".join(lines) + "\n"
