"""A subset of ten million keys on one, two and four ranks: python benchmarks/sharded.py

Compares the traces of 100 seeds with those of a `Subset` in one process, counts the bytes that a rank hands to the
others, and takes times. Writes benchmarks/results/sharded.json. Some minutes on two cores.

Times are CPU times of a process: ranks share cores here, and would not where they are worth having. The allocator is
told to keep its memory: whether it gives some back, and pays for it in page faults, depends on what it did before, and
can more than double a time. What one rank of many has to do is measured with and without this.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import gumtrace as gt
from gumtrace.benchmark import machine, peak_bytes

RESULTS = Path(__file__).parent / "results" / "sharded.json"
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}  # of glibc


@dataclass(frozen=True)
class Settings:
    """What a run depends on, apart from the machine."""

    d: int = 10_000_000
    k: int = 64
    seeds: int = 100
    repeats: int = 10  # of log-probabilities and conditionals
    small: int = 1000  # keys of all ranks: what a call takes apart from its keys
    processes: tuple[int, ...] = (1, 2, 4)
    many_keys: int = 1_000_000_000
    many_ranks: int = 64


@contextmanager
def counting(sizes: list[int]) -> Iterator[None]:
    """The bytes of every tensor that this rank hands to the others, one number for each exchange."""
    kept: Any = dist.all_gather, dist.all_reduce

    def gather(out, x, **kwargs):
        sizes.append(x.numel() * x.element_size())
        return kept[0](out, x, **kwargs)

    def reduce(x, *args, **kwargs):
        sizes.append(x.numel() * x.element_size())
        return kept[1](x, *args, **kwargs)

    dist.all_gather, dist.all_reduce = gather, reduce
    try:
        yield
    finally:
        dist.all_gather, dist.all_reduce = kept


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clocked(run: Callable[[], Any], times: list[list[float]]) -> Any:
    """What it returns; CPU and wall-clock milliseconds are added to `times`."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = run()
    times.append([1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)])
    return result


def summary(times: list[list[float]]) -> dict[str, float]:
    cpu, wall = zip(*times, strict=True)
    return {"cpu_ms": statistics.median(cpu), "least_cpu_ms": min(cpu), "wall_ms": statistics.median(wall)}


def steps(make: Callable[[torch.Tensor], Any], logits: torch.Tensor, s: Settings, seeds: int) -> dict[str, Any]:
    """Winners and log-probabilities of the seeds, and what all of it takes."""
    x = logits.requires_grad_()
    d = make(x)

    def step() -> None:
        torch.autograd.grad(d.trace_log_prob(d.sample_trace(generator=seeded(0))), x)

    step()  # compiles
    d.conditional(d.sample_trace(generator=seeded(0)), generator=seeded(0))
    times: dict[str, list[list[float]]] = {"sample": [], "log_prob": [], "backward": [], "conditional": []}
    winners, log_probs = [], []
    for seed in range(seeds):
        trace = clocked(lambda seed=seed: d.sample_trace(generator=seeded(seed)), times["sample"])
        winners.append(trace.winners.tolist())
        if seed < s.repeats:
            log_prob = clocked(lambda trace=trace: d.trace_log_prob(trace), times["log_prob"])
            clocked(lambda log_prob=log_prob: torch.autograd.grad(log_prob, x), times["backward"])
            log_probs.append(log_prob.item())
    for seed in range(s.repeats):
        clocked(lambda seed=seed, trace=trace: d.conditional(trace, generator=seeded(seed)), times["conditional"])
    return {
        "winners": winners,
        "log_probs": log_probs,
        "keys": x.numel(),
        "peak_bytes": peak_bytes(step),
        **{name: summary(each) for name, each in times.items()},
    }


def exchanged(logits: torch.Tensor, k: int) -> dict[str, list[int]]:
    """Bytes of each exchange of a call."""
    d = gt.ShardedSubset(logits.detach().requires_grad_(), k)
    sizes: dict[str, list[int]] = {"sample": [], "log_prob": [], "backward": [], "conditional": []}
    with counting(sizes["sample"]):
        trace = d.sample_trace()
    with counting(sizes["log_prob"]):
        log_prob = d.trace_log_prob(trace)
    with counting(sizes["backward"]):
        log_prob.sum().backward()
    with counting(sizes["conditional"]):
        d.conditional(trace)
    return sizes


def rank_work(rank: int, size: int, folder: str, s: Settings) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    logits = torch.randn(s.d, generator=seeded(0)).chunk(size)[rank].clone()
    small = torch.zeros(s.small).chunk(size)[rank]
    found = steps(lambda x: gt.ShardedSubset(x, s.k), logits, s, s.seeds)
    found["small"] = steps(lambda x: gt.ShardedSubset(x, s.k), small.clone(), s, s.repeats)["sample"]
    found["bytes"] = {
        "one_row": exchanged(logits, s.k),
        "few_keys": exchanged(small, s.k),
        "four_rows": exchanged(small.expand(4, -1), s.k),
        "twice_k": exchanged(small, 2 * s.k),
    }
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def alone_work(rank: int, size: int, folder: str, s: Settings) -> None:
    torch.set_num_threads(1)
    found = steps(lambda x: gt.Subset(x, s.k), torch.randn(s.d, generator=seeded(0)), s, s.seeds)
    (Path(folder) / "0.json").write_text(json.dumps(found))


def measured(work: Callable, size: int, s: Settings, keep: bool = True) -> list[dict[str, Any]]:
    """What each of so many processes found; `keep`: their memory."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(KEEP if keep else {})
        try:
            spawn(work, (size, folder, s), nprocs=size)
        finally:
            for name in KEEP:
                os.environ.pop(name, None)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]


def record(ranks: list[dict[str, Any]], alone: dict[str, Any]) -> dict[str, Any]:
    """Of the slowest rank; traces and bytes are the same on all."""
    same = [all(rank["winners"][seed] == winners for rank in ranks) for seed, winners in enumerate(alone["winners"])]
    gaps = [abs(a - b) / abs(b) for a, b in zip(ranks[0]["log_probs"], alone["log_probs"], strict=True)]
    names = ["sample", "log_prob", "backward", "conditional", *(["small"] if "small" in ranks[0] else [])]
    return {
        "same_traces": sum(same),
        "log_prob_gap": max(gaps),
        "keys_a_rank": max(rank["keys"] for rank in ranks),
        "peak_bytes": max(rank["peak_bytes"] for rank in ranks),
        **{name: max((rank[name] for rank in ranks), key=lambda x: x["least_cpu_ms"]) for name in names},
        **({"bytes": ranks[0]["bytes"]} if "bytes" in ranks[0] else {}),
    }


def one_of_many(s: Settings) -> dict[str, Any]:
    """The keys of one rank of many, in a group of its own: all that it does but wait for the others."""
    part = replace(s, d=s.many_keys // s.many_ranks, seeds=s.repeats)
    found = {}
    for name, keep in (("kept", True), ("default", False)):
        print(f"{part.d:,} keys, memory {name}", flush=True)
        (rank,) = measured(rank_work, 1, part, keep)
        found[name] = {key: rank[key] for key in ("keys", "peak_bytes", "sample", "log_prob", "backward")}
    return found


# Tables --------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None, s: Settings | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    s = s or Settings()
    print(f"Subset of {s.d:,} keys, one process", flush=True)
    (alone,) = measured(alone_work, 1, s)
    records = [{"structure": "Subset", "processes": 1, **record([alone], alone)}]
    for size in s.processes:
        print(f"ShardedSubset, {size} processes", flush=True)
        records.append({"structure": "ShardedSubset", "processes": size, **record(measured(rank_work, size, s), alone)})
    found = {"machine": machine("cpu"), "settings": asdict(s), "records": records, "one_of_many": one_of_many(s)}
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
